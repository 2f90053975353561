#include <ATen/core/ivalue.h>
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "lowering/indices.h"
#include "lowering/placement.h"
#include "lowering/rule.h"

// Gradients of views: the incoming gradient in its place, zeros elsewhere.
namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT
using c10::IntArrayRef;

ResultSpec InputResult(const ShapeCall& s, std::string_view grad) {
  return {.dtype = s.tensor(grad).dtype, .sizes = s.argument("input_sizes").toIntVector()};
}

Values SliceBackward(Call& c) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  const int64_t dim = WrapDim(c.integer("dim"), out.rank());
  const int64_t step = c.integer("step");
  const SliceBounds bounds =
      NormalizeSlice(c.integer("start"), c.integer("end"), step, out.dims[dim]);
  Dims place = out.dims;
  place[dim] = bounds.length;
  Value grad = BroadcastTo(c.tensor("grad_output"), place);
  return {PlaceSliceInZeros(out.dims, grad, dim, bounds.start, step)};
}

std::vector<ResultSpec> SliceBackwardShape(const ShapeCall& s) {
  ResultSpec result = InputResult(s, "grad_output");
  c10::maybe_wrap_dim(s.argument("dim").toInt(), static_cast<int64_t>(result.sizes.size()));
  TORCH_CHECK(s.argument("step").toInt() > 0, "slice step must be positive");
  return {result};
}
TPU_RULE({.op = "slice_backward", .lower = &SliceBackward, .shape = &SliceBackwardShape});

Values SelectBackward(Call& c) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  const int64_t dim = WrapDim(c.integer("dim"), out.rank());
  int64_t index = c.integer("index");
  if (index < 0) index += out.dims[dim];
  Dims place = out.dims;
  place[dim] = 1;
  return {PlaceSliceInZeros(out.dims, Reshape(c.tensor("grad_output"), place), dim, index, 1)};
}

std::vector<ResultSpec> SelectBackwardShape(const ShapeCall& s) {
  ResultSpec result = InputResult(s, "grad_output");
  const int64_t dim =
      c10::maybe_wrap_dim(s.argument("dim").toInt(), static_cast<int64_t>(result.sizes.size()));
  const int64_t index = s.argument("index").toInt(), size = result.sizes[dim];
  TORCH_CHECK_INDEX(-size <= index && index < size, "select(): index ", index,
                    " out of range for tensor of size ", IntArrayRef(result.sizes),
                    " at dimension ", dim);
  return {result};
}
TPU_RULE({.op = "select_backward", .lower = &SelectBackward, .shape = &SelectBackwardShape});

Values DiagonalBackward(Call& c) {
  const Type& out = c.result();
  return {PlaceDiagonal(Zeros(c.builder(), out), c.tensor("grad_output"), c.integer("offset"),
                        WrapDim(c.integer("dim1"), out.rank()),
                        WrapDim(c.integer("dim2"), out.rank()))};
}

std::vector<ResultSpec> DiagonalBackwardShape(const ShapeCall& s) {
  return {InputResult(s, "grad_output")};
}
TPU_RULE({.op = "diagonal_backward", .lower = &DiagonalBackward, .shape = &DiagonalBackwardShape});

// Windows of `size` elements every `step` elements are added back. A window is cut into blocks of
// `step` elements: block j of window w lands on block w + j, so that one addition a block does for
// all windows.
Values UnfoldBackward(Call& c) {
  Value grad = c.tensor("grad_in");
  const Type& out = c.result();
  if (out.numel() == 0 || grad.numel() == 0) return {Zeros(c.builder(), out)};
  if (out.rank() == 0) return {Reshape(grad, {})};
  const int64_t dim = WrapDim(c.integer("dim"), out.rank());
  const int64_t size = c.integer("size"), step = c.integer("step");
  const int64_t length = out.dims[dim], windows = grad.dims()[dim];
  const DType compute = ComputeType(out.dtype);
  grad = Convert(grad, compute);

  // [before, windows, after, size] -> [before, windows, size, after]
  int64_t before = 1, after = 1;
  for (int64_t d = 0; d < dim; ++d) before *= out.dims[d];
  for (int64_t d = dim + 1; d < out.rank(); ++d) after *= out.dims[d];
  grad = Transpose(Reshape(grad, {before, windows, after, size}), {0, 1, 3, 2});

  const int64_t blocks = (size + step - 1) / step;
  Value zero = Zeros(c.builder(), {compute, {}});
  grad = Pad(grad, zero, {0, 0, 0, 0}, {0, 0, blocks * step - size, 0});
  Value sum;
  for (int64_t j = 0; j < blocks; ++j) {
    Value block = SliceDim(grad, 2, j * step, (j + 1) * step);
    block = Pad(block, zero, {0, j, 0, 0}, {0, blocks - 1 - j, 0, 0});
    sum = sum ? Add(sum, block) : block;
  }
  const int64_t covered = (windows + blocks - 1) * step;
  sum = Reshape(sum, {before, covered, after});
  sum = Pad(sum, zero, {0, 0, 0}, {0, length - covered, 0});  // crops if negative
  return {Convert(Reshape(sum, out.dims), out.dtype)};
}

std::vector<ResultSpec> UnfoldBackwardShape(const ShapeCall& s) {
  return {InputResult(s, "grad_in")};
}
TPU_RULE({.op = "unfold_backward", .lower = &UnfoldBackward, .shape = &UnfoldBackwardShape});

}  // namespace
}  // namespace torch_tpu::lowering
