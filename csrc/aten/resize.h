#pragma once

#include <ATen/core/Tensor.h>

namespace torch_tpu::aten {

// Grows or shrinks a storage; what fits is kept. A new address range is taken if it grows.
void ResizeStorage(c10::StorageImpl& storage, size_t bytes);

// Gives an out= tensor its result's shape, with PyTorch's warning if it held elements.
void ResizeOutput(const at::Tensor& tensor, c10::IntArrayRef sizes);

}  // namespace torch_tpu::aten
