#include "lowering/placement.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace torch_tpu::lowering {
using namespace stablehlo;  // NOLINT

namespace {

Value PadToPlace(Value part, const Dims& dims, int64_t dim, int64_t start, int64_t step) {
  Dims low(dims.size(), 0), high(dims.size(), 0), interior(dims.size(), 0);
  const int64_t count = part.dim(static_cast<int>(dim));
  if (count == 0) {
    low[dim] = dims[dim];
  } else {
    low[dim] = start;
    interior[dim] = step - 1;
    high[dim] = dims[dim] - start - ((count - 1) * step + 1);
  }
  return Pad(part, ScalarInt(part.builder(), part.dtype(), 0), low, high, interior);
}

}  // namespace

Value PlaceSliceInZeros(const Dims& dims, Value part, int64_t dim, int64_t start, int64_t step) {
  return PadToPlace(part, dims, dim, start, step);
}

Value PlaceSlice(Value base, Value part, int64_t dim, int64_t start, int64_t step) {
  if (part.numel() == 0) return base;
  if (step == 1 || part.dim(static_cast<int>(dim)) == 1) {
    Dims starts(base.rank(), 0);
    starts[dim] = start;
    return UpdateSlice(base, part, starts);
  }
  Value mask = base.builder().ConstantInt({DType::kPred, part.dims()}, 1);
  return Select(PadToPlace(mask, base.dims(), dim, start, step),
                PadToPlace(part, base.dims(), dim, start, step), base);
}

Value DiagonalNumber(Builder& builder, const Dims& dims, int64_t row, int64_t column) {
  const Dims plane = {dims[row], dims[column]};
  const DType dtype = std::max(plane[0], plane[1]) <= std::numeric_limits<int32_t>::max()
                          ? DType::kS32
                          : DType::kS64;
  Value number = Subtract(builder.Iota({dtype, plane}, 1), builder.Iota({dtype, plane}, 0));
  if (row > column) {
    number = Transpose(number, {1, 0});
    std::swap(row, column);
  }
  return BroadcastInDim(number, dims, {row, column});
}

Value PlaceDiagonal(Value base, Value diagonal, int64_t offset, int64_t dim1, int64_t dim2) {
  if (diagonal.numel() == 0 || base.numel() == 0) return base;
  // Element i lies in row i (offset >= 0) or in column i: spread it over that row or column, then
  // keep the diagonal.
  const int64_t along = offset >= 0 ? dim1 : dim2;
  const int last = diagonal.rank() - 1;
  Dims low(diagonal.rank(), 0), high(diagonal.rank(), 0);
  high[last] = base.dims()[along] - diagonal.dim(last);
  Value spread = Pad(diagonal, ScalarInt(diagonal.builder(), diagonal.dtype(), 0), low, high);
  std::vector<std::pair<int64_t, int64_t>> targets;  // dimension of base, dimension of `spread`
  for (int64_t d = 0; d < base.rank(); ++d) {
    if (d != dim1 && d != dim2) targets.emplace_back(d, static_cast<int64_t>(targets.size()));
  }
  targets.emplace_back(along, last);
  std::sort(targets.begin(), targets.end());
  std::vector<int64_t> permutation, broadcast_dimensions;
  for (const auto& [target, source] : targets) {
    broadcast_dimensions.push_back(target);
    permutation.push_back(source);
  }
  spread = BroadcastInDim(Transpose(spread, permutation), base.dims(), broadcast_dimensions);
  Value number = DiagonalNumber(base.builder(), base.dims(), dim1, dim2);
  Value mask = Eq(number, base.builder().ConstantInt(number.type(), offset));
  return Select(mask, spread, base);
}

SliceBounds NormalizeSlice(std::optional<int64_t> start, std::optional<int64_t> end, int64_t step,
                           int64_t size) {
  SliceBounds bounds{start.value_or(0), end.value_or(std::numeric_limits<int64_t>::max()), 0};
  if (bounds.start < 0) bounds.start += size;
  if (bounds.end < 0) bounds.end += size;
  bounds.start = std::clamp<int64_t>(bounds.start, 0, size);
  bounds.end = std::clamp<int64_t>(bounds.end, bounds.start, size);
  bounds.length = (bounds.end - bounds.start + step - 1) / step;
  return bounds;
}

}  // namespace torch_tpu::lowering
