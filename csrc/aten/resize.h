#pragma once

#include <ATen/core/Tensor.h>

namespace torch_tpu::aten {

// Grows or shrinks a storage; what fits is kept. A new address range is taken if it grows.
void ResizeStorage(c10::StorageImpl& storage, size_t bytes);

// Gives an out= tensor its result's shape, with PyTorch's warning if it held elements. Without
// strides it becomes row-major; with them, those of a dense tensor of these sizes.
void ResizeOutput(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides = {});

}  // namespace torch_tpu::aten
