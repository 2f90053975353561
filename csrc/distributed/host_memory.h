#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trace/value.h"

namespace torch_tpu::distributed {

// Host memory as one-dimensional CPU tensors of bytes. Large pieces are kept for reuse: the pages
// of fresh memory cost more than copying into them.
at::Tensor NewBytes(int64_t size);

// The contents of the values, one after another. Waits until they are computed and throws what went
// wrong in that. A single value whose device memory is host memory is read where it is.
at::Tensor ReadValues(const std::vector<trace::ValuePtr>& values);

// Writes the bytes to the tensors, one after another; bytes that are left over are not used. The
// memory must not be written to any more: device memory may be made of it.
void WriteTensors(const at::Tensor& bytes, const std::vector<at::Tensor>& tensors);

}  // namespace torch_tpu::distributed
