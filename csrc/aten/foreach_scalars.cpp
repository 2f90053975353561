// List operators whose numbers come in one CPU tensor: the form with a list of numbers does them.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <torch/library.h>

namespace torch_tpu::aten {
namespace {

std::vector<c10::Scalar> Numbers(const at::Tensor& scalars, size_t count) {
  TORCH_CHECK(scalars.device().is_cpu(), "Expected scalars to be on CPU, got ", scalars.device(),
              " instead.");
  TORCH_CHECK(scalars.is_contiguous(), "Expected scalars to be contiguous.");
  TORCH_CHECK(scalars.dim() == 1, "Expected packed scalar Tensor to be of dimension 1. Got ",
              scalars.dim(), " instead.");
  TORCH_CHECK(scalars.size(0) == static_cast<int64_t>(count),
              "Expected length of scalars to match ", "input of length ", count, " but got ",
              scalars.size(0), " instead.");
  std::vector<c10::Scalar> numbers;
  for (size_t i = 0; i < count; ++i) numbers.push_back(scalars[static_cast<int64_t>(i)].item());
  return numbers;
}

std::vector<at::Tensor> AddCMul(at::TensorList self, at::TensorList a, at::TensorList b,
                                const at::Tensor& scalars) {
  return at::_foreach_addcmul(self, a, b, Numbers(scalars, self.size()));
}
void AddCMulInPlace(at::TensorList self, at::TensorList a, at::TensorList b,
                    const at::Tensor& scalars) {
  at::_foreach_addcmul_(self, a, b, Numbers(scalars, self.size()));
}
std::vector<at::Tensor> AddCDiv(at::TensorList self, at::TensorList a, at::TensorList b,
                                const at::Tensor& scalars) {
  return at::_foreach_addcdiv(self, a, b, Numbers(scalars, self.size()));
}
void AddCDivInPlace(at::TensorList self, at::TensorList a, at::TensorList b,
                    const at::Tensor& scalars) {
  at::_foreach_addcdiv_(self, a, b, Numbers(scalars, self.size()));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_foreach_addcmul.Tensor", &AddCMul);
  m.impl("_foreach_addcmul_.Tensor", &AddCMulInPlace);
  m.impl("_foreach_addcdiv.Tensor", &AddCDiv);
  m.impl("_foreach_addcdiv_.Tensor", &AddCDivInPlace);
}

}  // namespace
}  // namespace torch_tpu::aten
