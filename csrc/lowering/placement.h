#pragma once

#include "lowering/call.h"

// Writing a part of a tensor at a place that is known when the program is built: what the
// functional twins of views and the gradients of views do.
namespace torch_tpu::lowering {

// base with `part` in place of base[..., start::step, ...] along `dim`.
Value PlaceSlice(Value base, Value part, int64_t dim, int64_t start, int64_t step);
// Zeros of `dims` with `part` in that place.
Value PlaceSliceInZeros(const Dims& dims, Value part, int64_t dim, int64_t start, int64_t step);
// base with `diagonal` (as torch.diagonal gives it) in place of its diagonal.
Value PlaceDiagonal(Value base, Value diagonal, int64_t offset, int64_t dim1, int64_t dim2);

// Column minus row of every element, over dimensions `row` and `column`.
Value DiagonalNumber(Builder& builder, const Dims& dims, int64_t row, int64_t column);

// start and end of a slice as PyTorch wraps and clamps them, and the number of elements.
struct SliceBounds {
  int64_t start = 0, end = 0, length = 0;
};
SliceBounds NormalizeSlice(std::optional<int64_t> start, std::optional<int64_t> end, int64_t step,
                           int64_t size);

}  // namespace torch_tpu::lowering
