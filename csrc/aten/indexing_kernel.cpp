#include "aten/indexing_kernel.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/native/TensorAdvancedIndexingUtils.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/index.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/scalar_tensor.h>

#include "aten/errors.h"
#include "aten/expanded_kernel.h"
#include "aten/shape_inference.h"

namespace torch_tpu::aten {
namespace {

using OptionalTensors = c10::List<std::optional<at::Tensor>>;

bool IsMask(const at::Tensor& index) {
  return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
}

// False where the rule takes the indices as they are; a 0-d integer on the CPU is a number to it.
bool NeedPreparation(const c10::IValue& indices) {
  for (const c10::IValue& element : indices.toListRef()) {
    if (!element.isTensor() || !element.toTensor().defined()) continue;
    const at::Tensor& index = element.toTensor();
    if (IsMask(index) || (index.dim() > 0 && !index.device().is_privateuseone())) return true;
  }
  return false;
}

void CheckDevices(const at::Tensor& self, const OptionalTensors& indices) {
  for (const std::optional<at::Tensor>& index : indices) {
    if (!index || !index->defined()) continue;
    TORCH_CHECK(index->device().is_cpu() || index->device() == self.device(),
                "indices should be either on ", at::kCPU,
                " or on the same device as the indexed tensor (", self.device(), ")");
  }
}

// The mask that `self[indices] = value` comes down to, if it is one; undefined otherwise.
at::Tensor MaskFilled(const at::Tensor& self, const OptionalTensors& indices,
                      const at::Tensor& value) {
  if (value.numel() != 1) return {};
  // The question is about the indices alone; it is answered for values on the CPU.
  static const at::Tensor stand_in = at::scalar_tensor(0);
  auto [fills, mask] = at::native::canDispatchToMaskedFill(self, indices, stand_in);
  if (!fills || !mask.defined()) return {};
  return mask.scalar_type() == at::kByte ? mask.to(at::kBool) : mask;
}

// index_put_ of an expanded tensor: where several elements share memory, the last one put stays.
void PutExpanded(const at::Tensor& self, const OptionalTensors& indices, const at::Tensor& values,
                 bool accumulate) {
  WarnOfExpanded("index_put_", "tensor[indices] = tensor");
  // The place of each element's memory among all, indexed as the elements are.
  at::Tensor cells = Unexpanded(self);
  const at::Tensor all = at::arange(cells.numel(), self.options().dtype(at::kLong));
  const at::Tensor places = at::index(all.reshape(cells.sizes()).expand(self.sizes()), indices);
  TORCH_CHECK_INDEX(at::is_expandable_to(values.sizes(), places.sizes()),
                    "shape mismatch: value tensor of shape ", values.sizes(),
                    " cannot be broadcast to indexing result of shape ", places.sizes());
  cells.put_(places, values.to(self.device()).expand(places.sizes()), accumulate);
}

}  // namespace

bool IndexingKernel::Serves(std::string_view op) {
  return op == "index.Tensor" || op == "index_put" || op == "_index_put_impl";
}

void IndexingKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                torch::jit::Stack* stack) {
  constexpr size_t kSelf = 0, kIndices = 1, kValues = 2, kAccumulate = 3;
  const size_t n = entry_->arguments.size();
  const bool expanded =
      entry_->form == Form::kInplace && IsExpanded(torch::jit::peek(*stack, kSelf, n).toTensor());
  const bool plain = !expanded && !NeedPreparation(torch::jit::peek(*stack, kIndices, n));
  if (C10_LIKELY(plain) || ProbingShapes()) {
    rule_(op, keys, stack);
    return;
  }
  bool done = Located([&] {
    const at::Tensor self = torch::jit::peek(*stack, kSelf, n).toTensor();
    const auto given = torch::jit::peek(*stack, kIndices, n).to<OptionalTensors>();
    CheckDevices(self, given);
    at::native::checkIndexTensorTypes(given, /*allow_int=*/true);
    if (n > kAccumulate && entry_->form != Form::kOut &&
        !torch::jit::peek(*stack, kAccumulate, n).toBool()) {
      const at::Tensor values = torch::jit::peek(*stack, kValues, n).toTensor();
      if (at::Tensor mask = MaskFilled(self, given, values); mask.defined()) {
        const at::Tensor value = values.reshape({});
        at::Tensor result = entry_->form == Form::kInplace ? self.masked_fill_(mask, value)
                                                           : at::masked_fill(self, mask, value);
        torch::jit::drop(*stack, n);
        stack->emplace_back(std::move(result));
        return true;
      }
    }
    OptionalTensors indices;
    for (at::Tensor& index : at::native::expandTensors(self, given, /*ensure_same_device=*/true)) {
      indices.push_back(index.defined() ? std::optional<at::Tensor>(std::move(index))
                                        : std::nullopt);
    }
    if (expanded) {
      PutExpanded(self, indices, torch::jit::peek(*stack, kValues, n).toTensor(),
                  torch::jit::peek(*stack, kAccumulate, n).toBool());
      torch::jit::drop(*stack, n);
      stack->emplace_back(self);
      return true;
    }
    torch::jit::peek(*stack, kIndices, n) = std::move(indices);
    return false;
  });
  if (!done) rule_(op, keys, stack);
}

}  // namespace torch_tpu::aten
