#include "aten/decomposition.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <mutex>
#include <set>
#include <unordered_map>

#include "aten/debug.h"
#include "aten/errors.h"
#include "aten/fallback.h"
#include "aten/plan.h"
#include "aten/python_hooks.h"
#include "aten/shape_inference.h"
#include "aten/storage.h"
#include "trace/runtime.h"
#include "trace/trace.h"

namespace torch_tpu::aten {
namespace {

using torch::jit::Stack;
using trace::ValuePtr;

struct CapturedOutput {
  bool defined = true;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes, strides;
  size_t bytes = 0;
};

// One signature's captured sub-trace.
struct Captured {
  std::shared_ptr<trace::Operation> operation;  // null: cannot be captured
  std::vector<ValuePtr> closed_over;
  std::vector<CapturedOutput> outputs;
  std::vector<int> list_counts;  // -1: a single tensor
};

std::mutex captured_mutex;
std::unordered_map<std::string, std::shared_ptr<Captured>>& Cache() {
  static auto* cache = new std::unordered_map<std::string, std::shared_ptr<Captured>>;
  return *cache;
}

// Operators this thread is decomposing: a decomposition that comes back to its own operator has no
// end.
thread_local std::set<const OperatorEntry*> active;

class ActiveScope {
 public:
  explicit ActiveScope(const OperatorEntry* entry) : entry_(entry) { active.insert(entry); }
  ~ActiveScope() { active.erase(entry_); }

 private:
  const OperatorEntry* entry_;
};

void AppendKey(std::string& key, const void* data, size_t bytes) {
  key.append(static_cast<const char*>(data), bytes);
}
void AppendKey(std::string& key, int64_t word) { AppendKey(key, &word, sizeof word); }

void AppendKey(std::string& key, const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& t = value.toTensor();
    if (!t.defined()) return AppendKey(key, -2);
    AppendKey(key, static_cast<int64_t>(t.scalar_type()) | t.dim() << 8 |
                       int64_t{t.is_conj()} << 20 | int64_t{t.is_neg()} << 21);
    for (int64_t d : t.sizes()) AppendKey(key, d);
    for (int64_t d : t.strides()) AppendKey(key, d);
    AppendKey(key, t.storage_offset());
    return;
  }
  AppendKey(key, static_cast<int64_t>(value.isNone()     ? 1
                                      : value.isInt()    ? 2
                                      : value.isDouble() ? 3
                                      : value.isBool()   ? 4
                                      : value.isString() ? 5
                                      : value.isList()   ? 6
                                                         : 7));
  if (value.isInt()) {
    AppendKey(key, value.toInt());
  } else if (value.isDouble()) {
    const double d = value.toDouble();
    AppendKey(key, &d, sizeof d);
  } else if (value.isBool()) {
    AppendKey(key, int64_t{value.toBool()});
  } else if (value.isString()) {
    key += value.toStringRef();
    key.push_back('\0');
  } else if (value.isComplexDouble()) {
    const auto c = value.toComplexDouble();
    AppendKey(key, &c, sizeof c);
  } else if (value.isList()) {
    AppendKey(key, static_cast<int64_t>(value.toListRef().size()));
    for (const c10::IValue& element : value.toListRef()) AppendKey(key, element);
  }
}

bool Decompose(const OperatorEntry& entry, Stack* stack) {
  if (Hooks().decompose == nullptr) return false;
  at::AutoDispatchBelowADInplaceOrView below;
  return Hooks().decompose(*entry.op, stack);
}

std::shared_ptr<Captured> Capture(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments,
                                  trace::Device& device) {
  auto captured = std::make_shared<Captured>();
  trace::Trace capture(&device);
  std::vector<std::pair<at::Tensor, ValuePtr>> placeholders;
  auto placeholder = [&](const at::Tensor& t) -> at::Tensor {
    if (!t.defined() || !t.device().is_privateuseone()) return t;
    at::Tensor stand_in;
    {
      trace::Trace::Scope scope(&capture);
      stand_in = DenseLike(t, capture.Placeholder(LogicalType(t)));
    }
    placeholders.emplace_back(stand_in, StateOf(stand_in).value);
    return stand_in;
  };
  Stack stack;
  for (const c10::IValue& value : arguments) {
    if (value.isTensor()) {
      stack.emplace_back(placeholder(value.toTensor()));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& element : value.toListRef()) {
        list.push_back(placeholder(element.toTensor()));
      }
      stack.emplace_back(std::move(list));
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& element : value.toListRef()) {
        list.push_back(element.isTensor()
                           ? std::optional<at::Tensor>(placeholder(element.toTensor()))
                           : std::nullopt);
      }
      stack.emplace_back(std::move(list));
    } else {
      stack.push_back(value);
    }
  }
  std::vector<ValuePtr> outputs;
  try {
    trace::Trace::Scope scope(&capture);
    if (!Decompose(entry, &stack)) return captured;
    for (const auto& [tensor, value] : placeholders) {
      if (StateOf(tensor).value != value) return captured;  // it mutates an argument
    }
    auto output = [&](const at::Tensor& t) {
      CapturedOutput& out = captured->outputs.emplace_back();
      out.defined = t.defined();
      if (!t.defined()) return true;
      if (!t.device().is_privateuseone()) return false;
      out.dtype = t.scalar_type();
      out.sizes = t.sizes().vec();
      out.strides = DenseStrides(t);
      if (t.numel() == 0) {
        outputs.emplace_back();
        return true;
      }
      const at::Tensor dense = DenseLike(t, Materialize(t));
      out.bytes = dense.storage().nbytes();
      outputs.push_back(StateOf(dense).value);
      return true;
    };
    for (const c10::IValue& value : stack) {
      if (value.isTensor()) {
        captured->list_counts.push_back(-1);
        if (!output(value.toTensor())) return captured;
      } else if (value.isTensorList()) {
        captured->list_counts.push_back(static_cast<int>(value.toListRef().size()));
        for (const c10::IValue& element : value.toListRef()) {
          if (!output(element.toTensor())) return captured;
        }
      } else {
        return captured;
      }
    }
  } catch (...) {
    if (!capture.aborted()) throw;
    return captured;
  }
  std::vector<ValuePtr> computed;
  for (ValuePtr& value : outputs) {
    if (value) computed.push_back(std::move(value));
  }
  captured->operation = capture.Close(entry.name, computed);
  captured->closed_over = capture.closed_over();
  return captured;
}

void Replay(const OperatorEntry& entry, const Captured& captured,
            c10::ArrayRef<c10::IValue> arguments, trace::Device& device, size_t num_arguments,
            Stack* stack) {
  std::vector<ValuePtr> inputs;
  for (const c10::IValue& value : arguments) {
    ForEachTensor(value, [&](const at::Tensor& t) {
      if (t.defined() && t.device().is_privateuseone()) inputs.push_back(Materialize(t));
    });
  }
  inputs.insert(inputs.end(), captured.closed_over.begin(), captured.closed_over.end());
  std::vector<ValuePtr> results(captured.operation->results().size());
  trace::Run(captured.operation, device, inputs, false, results.data());
  if (C10_UNLIKELY(DebugMode()) && trace::Trace::Current() == nullptr) {
    std::vector<Examined> before, after;
    for (const ValuePtr& value : inputs) before.push_back(Whole(value));
    for (const ValuePtr& value : results) after.push_back(Whole(value));
    CheckForNaN(device, before, after, [&] { return Describe(entry, arguments); });
  }
  std::vector<c10::IValue> returned;
  size_t output = 0, result = 0;
  auto next = [&]() -> at::Tensor {
    const CapturedOutput& out = captured.outputs[output++];
    if (!out.defined) return {};
    ValuePtr value = out.bytes > 0 ? std::move(results[result++]) : nullptr;
    return MakeTensor(out.sizes, out.strides, c10::scalarTypeToTypeMeta(out.dtype), device.index(),
                      out.bytes, std::move(value));
  };
  for (int count : captured.list_counts) {
    if (count < 0) {
      returned.emplace_back(next());
      continue;
    }
    c10::List<at::Tensor> list;
    for (int i = 0; i < count; ++i) list.push_back(next());
    returned.emplace_back(std::move(list));
  }
  torch::jit::drop(*stack, num_arguments);
  for (auto& value : returned) stack->emplace_back(std::move(value));
}

}  // namespace

void DecompositionKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                                     Stack* stack) {
  Located([&] { Call(op, stack); });
}

void DecompositionKernel::Call(const c10::OperatorHandle& op, Stack* stack) const {
  const OperatorEntry& entry = *entry_;
  if (active.count(entry_) != 0) {
    CpuFallback(op, stack);
    return;
  }
  const size_t n = entry.arguments.size();
  const auto arguments = torch::jit::last(*stack, n);
  c10::DeviceIndex index = 0;
  bool tpu = false, abnormal = false;
  std::string key(reinterpret_cast<const char*>(&entry_), sizeof entry_);
  for (const c10::IValue& value : arguments) {
    ForEachTensor(value, [&](const at::Tensor& t) {
      if (!t.defined()) return;
      if (t.device().is_privateuseone()) {
        index = t.device().index();
        tpu = true;
      } else {
        abnormal = true;  // a CPU tensor would be baked in
      }
    });
    AppendKey(key, value);
  }
  ActiveScope scope(entry_);
  if (tpu && !abnormal) {
    std::shared_ptr<Captured> captured;
    {
      std::lock_guard guard(captured_mutex);
      if (auto it = Cache().find(key); it != Cache().end()) captured = it->second;
    }
    trace::Device& device = DeviceAt(index);
    if (!captured) {
      captured = Guarded([&] { return Capture(entry, arguments, device); }, "aten::" + entry.name);
      if (captured->operation) {
        // The log compares the types of arguments by itself.
        captured->operation->Explain("", Hooks().source_line ? Hooks().source_line() : "");
      }
      std::lock_guard guard(captured_mutex);
      Cache().emplace(key, captured);
    }
    if (captured->operation) {
      Guarded([&] { Replay(entry, *captured, arguments, device, n, stack); },
              "aten::" + entry.name);
      return;
    }
  }
  Stack inner(arguments.begin(), arguments.end());
  if (Decompose(entry, &inner)) {
    torch::jit::drop(*stack, n);
    for (auto& value : inner) stack->push_back(std::move(value));
    return;
  }
  CpuFallback(op, stack);
}

}  // namespace torch_tpu::aten
