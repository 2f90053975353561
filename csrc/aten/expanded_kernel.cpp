#include "aten/expanded_kernel.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/any.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu.h>
#include <ATen/ops/zeros.h>

#include <string_view>

#include "aten/errors.h"
#include "aten/shape_inference.h"

namespace torch_tpu::aten {
namespace {

std::string_view BaseOf(std::string_view op) { return op.substr(0, op.find('.')); }

// Which memory cells of an expanded tensor a mask that broadcasts to it touches.
at::Tensor AnyOfShared(const at::Tensor& self, const at::Tensor& mask) {
  std::vector<int64_t> shared;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (self.size(d) > 1 && self.stride(d) == 0) shared.push_back(d);
  }
  return at::any(mask.expand(self.sizes()), shared, /*keepdim=*/true);
}

}  // namespace

bool IsExpanded(const at::Tensor& self) {
  return at::has_internal_overlap(self) == at::MemOverlap::Yes;
}

at::Tensor Unexpanded(const at::Tensor& self) {
  at::Tensor cells = self;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (self.size(d) > 1 && self.stride(d) == 0) cells = cells.narrow(d, 0, 1);
  }
  return cells;
}

void WarnOfExpanded(const char* op, const char* example) {
  TORCH_WARN("Use of ", op,
             " on expanded tensors is deprecated. Please clone() the tensor before performing this "
             "operation. This also applies to advanced indexing e.g. ",
             example);
}

bool ExpandedKernel::Serves(const OperatorEntry& entry) {
  const std::string_view base = BaseOf(entry.rule->op);
  return entry.form == Form::kInplace &&
         (base == "masked_fill" || base == "index_fill" || base == "triu" || base == "tril");
}

ExpandedKernel::ExpandedKernel(const OperatorEntry* entry) : rule_(entry) {
  const std::string_view base = BaseOf(entry->rule->op);
  kind_ = base == "masked_fill"  ? Kind::kMask
          : base == "index_fill" ? Kind::kIndex
                                 : Kind::kTriangle;
}

void ExpandedKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                torch::jit::Stack* stack) {
  const size_t n = op.schema().arguments().size();
  if (C10_LIKELY(!IsExpanded(torch::jit::peek(*stack, 0, n).toTensor())) || ProbingShapes()) {
    rule_(op, keys, stack);
    return;
  }
  Located([&] {
    const std::vector<c10::IValue> arguments(stack->end() - static_cast<ptrdiff_t>(n),
                                             stack->end());
    const at::Tensor self = arguments[0].toTensor();
    const at::TensorOptions boolean = self.options().dtype(at::kBool);
    at::Tensor mask;
    c10::IValue value = c10::Scalar(0);
    switch (kind_) {
      case Kind::kMask:
        mask = arguments[1].toTensor();
        value = arguments[2];
        WarnOfExpanded("masked_fill_", "tensor[mask] = scalar");
        TORCH_CHECK(mask.scalar_type() == at::kBool,
                    "masked_fill_ only supports boolean masks, but got mask with dtype ",
                    mask.scalar_type());
        break;
      case Kind::kIndex: {
        const int64_t dim = c10::maybe_wrap_dim(arguments[1].toInt(), self.dim());
        std::vector<int64_t> sizes(self.dim(), 1);
        sizes[dim] = self.size(dim);
        WarnOfExpanded("index_fill_", "tensor[mask] = scalar");
        mask = at::zeros({self.size(dim)}, boolean);
        mask = mask.index_fill_(0, arguments[2].toTensor(), true).reshape(sizes);
        value = arguments[3];
        break;
      }
      case Kind::kTriangle: {
        TORCH_CHECK(self.dim() >= 2, op.schema().name(),
                    ": input tensor must have at least 2 "
                    "dimensions");
        const at::Tensor all = at::ones(self.sizes().slice(self.dim() - 2), boolean);
        const int64_t diagonal = arguments[1].toInt();
        const bool upper = BaseOf(op.schema().name()).find("triu") != std::string_view::npos;
        mask = (upper ? at::triu(all, diagonal) : at::tril(all, diagonal)).logical_not();
      }
    }
    at::Tensor cells = Unexpanded(self);
    const at::Tensor touched = AnyOfShared(self, mask);
    if (value.isTensor()) {
      cells.masked_fill_(touched, value.toTensor());
    } else {
      cells.masked_fill_(touched, value.toScalar());
    }
    torch::jit::drop(*stack, n);
    stack->emplace_back(self);
  });
}

}  // namespace torch_tpu::aten
