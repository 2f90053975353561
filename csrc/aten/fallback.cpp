#include "aten/fallback.h"

#include <ATen/core/Tensor.h>
#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_set>

#include "aten/errors.h"
#include "aten/python_hooks.h"
#include "aten/registration.h"
#include "aten/resize.h"
#include "aten/shape_inference.h"

namespace torch_tpu::aten {
namespace {

std::mutex records_mutex;
std::map<std::string, FallbackRecord>& records() {
  static auto* map = new std::map<std::string, FallbackRecord>;
  return *map;
}

std::atomic<int> policy{-1};

std::string NameOf(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  const std::string base = name.name.substr(name.name.find("::") + 2);
  return name.overload_name.empty() ? base : base + "." + name.overload_name;
}

std::string QualifiedNameOf(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

// Operators whose meaning is lost on copies: what returns views or changes storages, and what
// mutates arguments without saying so in its schema.
bool IsRefused(const c10::OperatorHandle& op, const std::string& name) {
  static const std::unordered_set<std::string> refused = {"set_",
                                                          "set_.source_Storage",
                                                          "set_.source_Storage_storage_offset",
                                                          "set_.source_Tensor",
                                                          "resize_",
                                                          "resize_as_",
                                                          "is_set_to",
                                                          "_resize_output_",
                                                          "_copy_from",
                                                          "_copy_from_and_resize",
                                                          "_local_scalar_dense",
                                                          "record_stream",
                                                          "pin_memory",
                                                          "is_pinned",
                                                          "_pin_memory",
                                                          "native_batch_norm",
                                                          "cudnn_batch_norm",
                                                          "miopen_batch_norm",
                                                          "batch_norm_gather_stats",
                                                          "batch_norm_gather_stats_with_counts",
                                                          "batch_norm_update_stats",
                                                          "_fused_moving_avg_obs_fq_helper"};
  if (refused.count(name) != 0) return true;
  for (const auto& ret : op.schema().returns()) {
    if (ret.alias_info() != nullptr && !ret.alias_info()->isWrite()) return true;
  }
  return false;
}

// An in-place or out= form without a kernel whose functional form has one: compute, then copy.
bool ByFunctionalForm(const c10::OperatorHandle& op, const std::string& name,
                      torch::jit::Stack* stack) {
  const Variant* variant = FindVariant(name);
  if (variant == nullptr || variant->functional == name) return false;
  auto functional = FindOperator(variant->functional);
  if (!functional || !functional->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
    return false;
  }
  const size_t n = op.schema().arguments().size();
  std::vector<c10::IValue> arguments(stack->end() - static_cast<ptrdiff_t>(n), stack->end());
  torch::jit::Stack inner;
  std::vector<at::Tensor> written;
  for (size_t i = 0; i < n; ++i) {
    const c10::Argument& argument = op.schema().arguments()[i];
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
      if (!arguments[i].isTensor()) return false;
      written.push_back(arguments[i].toTensor());
    }
    if (!argument.is_out()) inner.push_back(arguments[i]);
  }
  if (functional->schema().arguments().size() != inner.size() ||
      functional->schema().returns().size() != written.size()) {
    return false;
  }
  functional->callBoxed(&inner);
  for (size_t i = 0; i < written.size(); ++i) {
    const at::Tensor& result = inner[i].toTensor();
    TORCH_CHECK(c10::canCast(result.scalar_type(), written[i].scalar_type()), "result type ",
                c10::toString(result.scalar_type()), " can't be cast to the desired output type ",
                c10::toString(written[i].scalar_type()));
    if (variant->out == name) {
      ResizeOutput(written[i], result.sizes());
    } else {
      TORCH_CHECK(written[i].sizes().equals(result.sizes()), "output with shape ",
                  written[i].sizes(), " doesn't match the broadcast shape ", result.sizes());
    }
    written[i].copy_(result);
  }
  torch::jit::drop(*stack, n);
  for (size_t i = 0; i < op.schema().returns().size(); ++i) stack->emplace_back(written[i]);
  return true;
}

void Record(const std::string& name) {
  bool first = false;
  {
    std::lock_guard guard(records_mutex);
    first = ++records()[name].count == 1;
  }
  if (!first) return;
  const std::string where = Hooks().source_line != nullptr ? Hooks().source_line() : "";
  {
    std::lock_guard guard(records_mutex);
    records()[name].where = where;
  }
  if (GetFallbackPolicy() == FallbackPolicy::kWarn && Hooks().warn != nullptr) {
    Hooks().warn(name + " has no tpu implementation yet and runs on the CPU" +
                 (where.empty() ? "" : " (first called at " + where + ")") +
                 "; see torch.tpu.fallbacks(). TORCH_TPU_FALLBACK=error makes this an error.");
  }
}

void FallbackKernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Located([&] { CpuFallback(op, stack); });
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&FallbackKernel>());
}

}  // namespace

PythonHooks& Hooks() {
  static auto* hooks = new PythonHooks;
  return *hooks;
}

void CpuFallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string name = NameOf(op);
  const bool is_aten = op.operator_name().getNamespace() == "aten";
  if (is_aten && ByFunctionalForm(op, name, stack)) return;
  TORCH_CHECK_NOT_IMPLEMENTED(!IsRefused(op, name), "Could not run '", QualifiedNameOf(op),
                              "' on the tpu device: it has no implementation there, and running it "
                              "on CPU copies would give "
                              "wrong results");
  TORCH_CHECK_NOT_IMPLEMENTED(
      GetFallbackPolicy() != FallbackPolicy::kError, "The operator '", QualifiedNameOf(op),
      "' is not implemented for the tpu device, and TORCH_TPU_FALLBACK=error forbids running it on "
      "the CPU");
  Record(QualifiedNameOf(op));
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

std::vector<FallbackRecord> Fallbacks() {
  std::lock_guard guard(records_mutex);
  std::vector<FallbackRecord> result;
  for (auto [name, record] : records()) {
    record.op = name;
    result.push_back(std::move(record));
  }
  return result;
}

void ClearFallbacks() {
  std::lock_guard guard(records_mutex);
  records().clear();
}

FallbackPolicy GetFallbackPolicy() {
  if (policy.load() < 0) {
    const char* text = std::getenv("TORCH_TPU_FALLBACK");
    const std::string value = text == nullptr ? "" : text;
    policy.store(static_cast<int>(value == "error"    ? FallbackPolicy::kError
                                  : value == "silent" ? FallbackPolicy::kSilent
                                                      : FallbackPolicy::kWarn));
  }
  return static_cast<FallbackPolicy>(policy.load());
}

void SetFallbackPolicy(FallbackPolicy value) { policy.store(static_cast<int>(value)); }

}  // namespace torch_tpu::aten
