#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "lowering/call.h"

// What rules that address elements by index tensors share.
namespace torch_tpu::lowering {

// Whether negative indices count from the end or are errors.
enum class Negative { kWraps, kIsError };

// Indices into a dimension of `size` elements: checked at run time, wrapped, and 32-bit where that
// is enough. The check comes before the narrowing, which would hide indices beyond 32 bits.
Value CheckedIndices(Call& c, Value indices, int64_t size, Negative negative, std::string message,
                     Call::ErrorKind kind = Call::ErrorKind::kIndex);

// All zeros.
Value Zeros(Builder& builder, const Type& type);
// 0, 1, 2, ... along `dimension`, 32-bit where that is enough.
Value Positions(Builder& builder, const Dims& dims, int dimension);
// Position of each true element among the true elements of a flattened mask. At false ones it is
// that of the true element before, -1 if there is none.
Value RankAmongTrue(Call& c, Value flat_mask);
// The first `size` of the masked elements of x, in order, then `fill`s. `rank` is
// RankAmongTrue(mask).
Value PackTrue(Value flat_x, Value flat_mask, Value rank, int64_t size, Value fill);
// Coordinate along dimension `dim` of flat positions in an array of `dims`.
Value CoordinateOf(Value flat_positions, const Dims& dims, int dim);

// How a scattered element meets the one that is there.
enum class Combine { kSet, kAdd, kMultiply, kMax, kMin };
// "sum" or "add", "prod" or "multiply", "amax", "amin", "mean" (whose first half is an addition).
Combine CombineNamed(std::string_view reduce);
stablehlo::Region CombineRegion(Combine combine, DType dtype);
// The dtype to scatter in: additions and products of narrow floats accumulate in float32.
DType CombineType(Combine combine, DType dtype);

// self with source's slices along `dim` combined into it at the 1-d `index`.
Value ScatterSlices(Value self, int64_t dim, Value index, Value source, Combine combine);
// self[..., index[p], ...] combined with src[p] for each position p of `index`.
Value ScatterElements(Value self, int64_t dim, Value index, Value src, Combine combine);
// self[..., index[p], ...] for each position p of `index`.
Value GatherElements(Value self, int64_t dim, Value index);

// index_reduce and scatter_reduce over either of the scatters above.
using ScatterFunction = std::function<Value(Value base, Value updates, Combine combine)>;
Value ScatterReduce(Value self, Value src, std::string_view reduce, bool include_self,
                    const ScatterFunction& scatter);

}  // namespace torch_tpu::lowering
