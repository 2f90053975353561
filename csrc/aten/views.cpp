// PyTorch's own implementations of the operators that only change sizes and strides; transpose,
// slice, select, expand and the rest stand on these.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "aten/guard.h"
#include "aten/storage.h"
#include "lowering/call.h"
#include "trace/runtime.h"

namespace torch_tpu::aten {
namespace {

c10::DeviceIndex DeviceFor(std::optional<c10::Device> device) {
  const c10::DeviceIndex index = device && device->has_index() ? device->index() : CurrentDevice();
  if (C10_LIKELY(index < trace::Runtime::Get().DeviceCount())) return index;
  DeviceAt(0);  // says why no client could be started, if so
  return DeviceMeant(index);
}

void CheckOptions(std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout) {
  TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == c10::kStrided, "tpu: ", *layout,
                              " tensors are not supported");
  lowering::ToDType(c10::dtype_or_default(dtype));  // raises for dtypes XLA does not have
}

void CheckSizes(c10::IntArrayRef sizes) {
  for (int64_t d : sizes) {
    TORCH_CHECK(d >= 0, "Trying to create tensor with negative dimension ", d, ": ", sizes);
  }
}

at::Tensor Empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                 std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  CheckOptions(dtype, layout);
  CheckSizes(sizes);
  at::Tensor tensor = MakeTensor(sizes, {}, c10::dtype_or_default(dtype), DeviceFor(device));
  if (format && *format != c10::MemoryFormat::Contiguous) {
    tensor.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return tensor;
}

at::Tensor EmptyStrided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                        std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                        std::optional<c10::Device> device, std::optional<bool>) {
  CheckOptions(dtype, layout);
  CheckSizes(sizes);
  TORCH_CHECK(sizes.size() == strides.size(), "mismatch in length of strides and shape");
  return MakeTensor(sizes, strides, c10::dtype_or_default(dtype), DeviceFor(device));
}

// Zeros that nothing is computed with: autograd's place holders for gradients.
at::Tensor EfficientZeroTensor(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                               std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                               std::optional<bool> pin) {
  at::Tensor unwritten = Empty(sizes, dtype, layout, device, pin, std::nullopt);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(unwritten.storage()),
      c10::DispatchKeySet({c10::DispatchKey::PrivateUse1, c10::DispatchKey::ZeroTensor}),
      unwritten.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

at::Tensor AsStrided(const at::Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                     std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

at::Tensor View(const at::Tensor& self, c10::IntArrayRef sizes) {
  return at::native::view(self, sizes);
}

at::Tensor ReshapeAlias(const at::Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return at::native::_reshape_alias(self, sizes, strides);
}

// True lets Module.to() and `p.data =` swap the contents of a parameter instead of making a new
// one, so that tied weights stay tied and optimizers keep their parameters.
bool HasCompatibleShallowCopyType(const at::Tensor& self, const at::Tensor& from) {
  auto dense = [](const at::Tensor& t) {
    return t.layout() == c10::kStrided && (t.device().is_privateuseone() || t.device().is_cpu());
  };
  return dense(self) && dense(from);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &Empty);
  m.impl("empty_strided", &EmptyStrided);
  m.impl("_efficientzerotensor", &EfficientZeroTensor);
  m.impl("as_strided", &AsStrided);
  m.impl("view", &View);
  m.impl("_reshape_alias", &ReshapeAlias);
  m.impl("is_set_to", &at::native::is_set_to);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("_has_compatible_shallow_copy_type", &HasCompatibleShallowCopyType);
}
TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_has_compatible_shallow_copy_type", &HasCompatibleShallowCopyType);
}

}  // namespace
}  // namespace torch_tpu::aten
