#include "lowering/indices.h"

#include <c10/util/Exception.h>

#include <limits>
#include <utility>

#include "lowering/reduction.h"
#include "lowering/scan.h"

namespace torch_tpu::lowering {
using namespace stablehlo;  // NOLINT

namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

std::vector<int64_t> AllBut(int64_t rank, int64_t dim) {
  std::vector<int64_t> dims;
  for (int64_t d = 0; d < rank; ++d) {
    if (d != dim) dims.push_back(d);
  }
  return dims;
}

// `x` with a trailing dimension of one element: the index vector.
Value AsIndexVectors(Value x) {
  Dims dims = x.dims();
  dims.push_back(1);
  return Reshape(x, dims);
}

Value Leading(Value x, const Dims& limits) {
  return x.dims() == limits ? x : Slice(x, Dims(limits.size(), 0), limits);
}

}  // namespace

Value CheckedIndices(Call& c, Value indices, int64_t size, Negative negative, std::string message,
                     Call::ErrorKind kind) {
  Builder& b = c.builder();
  if (size > kInt32Max) indices = Convert(indices, DType::kS64);
  if (ByteSize(indices.dtype()) < 4) indices = Convert(indices, DType::kS32);
  const Type& type = indices.type();
  const int64_t low = negative == Negative::kWraps ? -size : 0;
  c.Check(And(Ge(indices, b.ConstantInt(type, low)), Lt(indices, b.ConstantInt(type, size))),
          std::move(message), kind);
  indices = NarrowIndices(indices, size);
  return negative == Negative::kWraps ? WrapIndices(indices, size) : indices;
}

Value Zeros(Builder& builder, const Type& type) { return builder.Constant(type, 0); }

Value Positions(Builder& builder, const Dims& dims, int dimension) {
  const DType dtype = dims[dimension] <= kInt32Max ? DType::kS32 : DType::kS64;
  return builder.Iota({dtype, dims}, dimension);
}

Value RankAmongTrue(Call& c, Value flat_mask) {
  const DType dtype = flat_mask.numel() <= kInt32Max ? DType::kS32 : DType::kS64;
  Value counts = InclusiveScan(c, Convert(flat_mask, dtype), Reduction::kSum, 0);
  return Subtract(counts, ConstantLike(counts, 1));
}

Value PackTrue(Value flat_x, Value flat_mask, Value rank, int64_t size, Value fill) {
  Value base = BroadcastTo(fill, {size});
  if (flat_x.numel() == 0 || size == 0) return base;
  // Out of bounds: not written.
  Value nowhere = rank.builder().ConstantInt(rank.type(), size);
  ScatterDims dims;
  dims.inserted_window_dims = {0};
  dims.scatter_dims_to_operand_dims = {0};
  dims.index_vector_dim = 1;
  Value places = Reshape(Select(flat_mask, rank, nowhere), {flat_x.numel(), 1});
  return Scatter(base, places, flat_x, dims, CombineRegion(Combine::kSet, flat_x.dtype()));
}

Value CoordinateOf(Value flat_positions, const Dims& dims, int dim) {
  int64_t stride = 1;
  for (size_t d = dim + 1; d < dims.size(); ++d) stride *= dims[d];
  const auto constant = [&](int64_t value) {
    return flat_positions.builder().ConstantInt(flat_positions.type(), value);
  };
  return Remainder(Divide(flat_positions, constant(stride)), constant(dims[dim]));
}

Combine CombineNamed(std::string_view reduce) {
  if (reduce == "sum" || reduce == "add" || reduce == "mean") return Combine::kAdd;
  if (reduce == "prod" || reduce == "multiply") return Combine::kMultiply;
  if (reduce == "amax") return Combine::kMax;
  if (reduce == "amin") return Combine::kMin;
  TORCH_CHECK(false, "reduce argument must be either sum, prod, mean, amax or amin, got ",
              std::string(reduce), ".");
}

Region CombineRegion(Combine combine, DType dtype) {
  const bool boolean = dtype == DType::kPred;
  return [combine, boolean](const Values& v) -> Values {
    switch (combine) {
      case Combine::kSet:
        return {v[1]};
      case Combine::kAdd:
        return {boolean ? Or(v[0], v[1]) : Add(v[0], v[1])};
      case Combine::kMultiply:
        return {boolean ? And(v[0], v[1]) : Multiply(v[0], v[1])};
      case Combine::kMax:
        return {boolean ? Or(v[0], v[1]) : Maximum(v[0], v[1])};
      case Combine::kMin:
        return {boolean ? And(v[0], v[1]) : Minimum(v[0], v[1])};
    }
    return {v[1]};
  };
}

DType CombineType(Combine combine, DType dtype) {
  const bool accumulates = combine == Combine::kAdd || combine == Combine::kMultiply;
  return accumulates ? ComputeType(dtype) : dtype;
}

Value ScatterSlices(Value self, int64_t dim, Value index, Value source, Combine combine) {
  if (source.numel() == 0 || self.numel() == 0) return self;
  const DType result = self.dtype(), compute = CombineType(combine, result);
  const Dims result_dims = self.dims();
  self = AtLeast1d(Convert(self, compute));
  index = AtLeast1d(index);
  source = AtLeast1d(Convert(source, compute));
  if (combine == Combine::kSet && index.numel() == 1) {
    // One slice: XLA updates it in place, as a cache that grows by a token wants it.
    Values starts(self.rank(), ScalarInt(self.builder(), index.dtype(), 0));
    starts[dim] = Reshape(index, {});
    return Reshape(DynamicUpdateSlice(self, source, starts), result_dims);
  }
  ScatterDims dims;
  dims.update_window_dims = AllBut(self.rank(), dim);
  dims.inserted_window_dims = {dim};
  dims.scatter_dims_to_operand_dims = {dim};
  dims.index_vector_dim = 1;
  Value out = Scatter(self, AsIndexVectors(index), source, dims, CombineRegion(combine, compute));
  return Reshape(Convert(out, result), result_dims);
}

Value ScatterElements(Value self, int64_t dim, Value index, Value src, Combine combine) {
  if (index.numel() == 0 || self.numel() == 0) return self;
  const DType result = self.dtype(), compute = CombineType(combine, result);
  const Dims result_dims = self.dims();
  self = AtLeast1d(Convert(self, compute));
  index = AtLeast1d(index);
  src = Leading(AtLeast1d(Convert(src, compute)), index.dims());

  // The index may cover only the leading part of the other dimensions.
  Dims covered = index.dims();
  covered[dim] = self.dim(static_cast<int>(dim));
  ScatterDims dims;
  dims.inserted_window_dims = {dim};
  dims.input_batching_dims = AllBut(self.rank(), dim);
  dims.scatter_indices_batching_dims = dims.input_batching_dims;
  dims.scatter_dims_to_operand_dims = {dim};
  dims.index_vector_dim = index.rank();
  Value out = Scatter(Leading(self, covered), AsIndexVectors(index), src, dims,
                      CombineRegion(combine, compute));
  if (covered != self.dims()) out = UpdateSlice(self, out, Dims(self.rank(), 0));
  return Reshape(Convert(out, result), result_dims);
}

Value GatherElements(Value self, int64_t dim, Value index) {
  const Dims result_dims = index.dims();
  if (index.numel() == 0) return Zeros(self.builder(), {self.dtype(), result_dims});
  self = AtLeast1d(self);
  index = AtLeast1d(index);
  Dims covered = index.dims();
  covered[dim] = self.dim(static_cast<int>(dim));
  GatherDims dims;
  dims.collapsed_slice_dims = {dim};
  dims.operand_batching_dims = AllBut(self.rank(), dim);
  dims.start_indices_batching_dims = dims.operand_batching_dims;
  dims.start_index_map = {dim};
  dims.index_vector_dim = index.rank();
  Value out = Gather(Leading(self, covered), AsIndexVectors(index), dims,
                     std::vector<int64_t>(self.rank(), 1));
  return Reshape(out, result_dims);
}

Value ScatterReduce(Value self, Value src, std::string_view reduce, bool include_self,
                    const ScatterFunction& scatter) {
  Builder& b = self.builder();
  const Combine combine = CombineNamed(reduce);
  const DType result = self.dtype(), compute = CombineType(combine, result);
  Value base = Convert(self, compute);
  Value updates = Convert(src, compute);
  if (!include_self) {
    Value identity;
    switch (combine) {
      case Combine::kMax:
        identity = MinValue(b, compute);
        break;
      case Combine::kMin:
        identity = MaxValue(b, compute);
        break;
      default:
        identity = stablehlo::Scalar(b, compute, combine == Combine::kMultiply ? 1 : 0);
    }
    base = scatter(base, BroadcastTo(identity, updates.dims()), Combine::kSet);
  }
  Value out = scatter(base, updates, combine);
  if (reduce == "mean") {
    Value count = b.ConstantInt({DType::kS32, self.dims()}, include_self ? 1 : 0);
    count = scatter(count, b.ConstantInt({DType::kS32, updates.dims()}, 1), Combine::kAdd);
    count = Convert(Maximum(count, ConstantLike(count, 1)), compute);
    Value quotient = Divide(out, count);
    if (IsSigned(compute)) {  // integer means round down
      Value zero = ConstantLike(out, 0);
      Value inexact = Lt(Remainder(out, count), zero);
      quotient = Select(inexact, Subtract(quotient, ConstantLike(out, 1)), quotient);
    }
    out = quotient;
  }
  return Convert(out, result);
}

}  // namespace torch_tpu::lowering
