#include "aten/linalg_errors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <torch/library.h>

#include <string_view>

#include "aten/resize.h"

namespace torch_tpu::aten {
namespace {

std::string_view BaseName(const OperatorEntry& entry) {
  const std::string_view name = entry.name;
  return name.substr(0, name.find('.'));
}

// What PyTorch's kernels call themselves in their messages.
std::string_view ApiName(std::string_view name) {
  if (name == "linalg_cholesky_ex") return "linalg.cholesky_ex";
  if (name == "linalg_inv_ex") return "linalg.inv_ex";
  if (name == "linalg_lu_factor_ex") return "torch.linalg.lu_factor_ex";
  return "torch.linalg.solve_ex";
}

// A triangle has no inverse if its diagonal has a zero.
void CheckInvertible(const at::Tensor& triangle) {
  const at::Tensor zero = triangle.diagonal(0, -2, -1).eq(0);
  if (zero.numel() == 0 || !zero.any().item().toBool()) return;
  const at::Tensor info = at::argmax(zero.to(at::kInt), -1).add_(1).mul_(zero.any(-1));
  at::_linalg_check_errors(info.to(at::kInt), "cholesky_inverse", triangle.dim() == 2);
}

// The deprecated form of linalg.cholesky, whose checks come under its own name.
at::Tensor Cholesky(const at::Tensor& self, bool upper) {
  TORCH_CHECK(self.dim() >= 2, "cholesky: The input tensor A must have at least 2 dimensions.");
  TORCH_CHECK(self.size(-1) == self.size(-2),
              "cholesky: A must be batches of square matrices, but they are ", self.size(-2),
              " by ", self.size(-1), " matrices");
  const at::ScalarType dtype = self.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(
      dtype == at::kFloat || dtype == at::kDouble || self.is_complex() || self.numel() == 0,
      "\"cholesky_cpu\" not implemented for '", dtype, "'");
  if (self.numel() == 0) return at::empty_like(self, at::MemoryFormat::Contiguous);
  auto [factor, info] = at::linalg_cholesky_ex(self, upper, /*check_errors=*/false);
  at::_linalg_check_errors(info, "cholesky", self.dim() == 2);
  return factor;
}

at::Tensor& CholeskyOut(const at::Tensor& self, bool upper, at::Tensor& out) {
  TORCH_CHECK(c10::canCast(self.scalar_type(), out.scalar_type()),
              "cholesky: Expected result to be safely castable from ", self.scalar_type(),
              " dtype, but got result with dtype ", out.scalar_type());
  const at::Tensor result = Cholesky(self, upper);
  if (!out.sizes().equals(result.sizes())) ResizeOutput(out, result.sizes());
  return out.copy_(result);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("cholesky", &Cholesky);
  m.impl("cholesky.out", &CholeskyOut);
}

}  // namespace

bool LinalgErrorsKernel::Serves(const OperatorEntry& entry) {
  return entry.op->schema().argumentIndexWithName("check_errors").has_value() ||
         BaseName(entry) == "cholesky_inverse";
}

LinalgErrorsKernel::LinalgErrorsKernel(const OperatorEntry* entry)
    : rule_(entry),
      num_arguments_(entry->arguments.size()),
      check_errors_(entry->op->schema().argumentIndexWithName("check_errors").value_or(-1)) {}

void LinalgErrorsKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                    torch::jit::Stack* stack) {
  const auto arguments = torch::jit::last(*stack, num_arguments_);
  const at::Tensor matrix = arguments[0].toTensor();
  const bool check = check_errors_ < 0 || arguments[check_errors_].toBool();
  rule_(op, keys, stack);
  if (!check) return;
  if (check_errors_ < 0) {
    CheckInvertible(matrix);
  } else {
    const std::string& name = op.operator_name().name;  // "aten::linalg_inv_ex"
    at::_linalg_check_errors(stack->back().toTensor(), ApiName(std::string_view(name).substr(6)),
                             matrix.dim() == 2);
  }
}

}  // namespace torch_tpu::aten
