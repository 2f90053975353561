#include "lowering/matrix.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace torch_tpu::lowering {

using namespace stablehlo;  // NOLINT: rules read like the mathematics

namespace {

// i1 of x's dimensions: whether column - row >= offset.
Value ColumnsFrom(Value x, int64_t offset) {
  Builder& b = x.builder();
  const Type type{DType::kS32, x.dims()};
  Value row = b.Iota(type, x.rank() - 2), column = b.Iota(type, x.rank() - 1);
  return Ge(Subtract(column, row), b.ConstantInt(type, offset));
}

}  // namespace

Value AsBatch(Value x) {
  int64_t batch = 1;
  for (int i = 0; i + 2 < x.rank(); ++i) batch *= x.dim(i);
  return Reshape(x, {batch, x.dim(-2), x.dim(-1)});
}

Value BroadcastBatch(Value x, const Dims& like) {
  Dims dims(like.begin(), like.end() - 2);
  dims.insert(dims.end(), {x.dim(-2), x.dim(-1)});
  return AsBatch(BroadcastTo(x, dims));
}

Value TransposeMatrices(Value x) {
  std::vector<int64_t> permutation(x.rank());
  for (int i = 0; i < x.rank(); ++i) permutation[i] = i;
  std::swap(permutation[x.rank() - 1], permutation[x.rank() - 2]);
  return Transpose(x, permutation);
}

Value AdjointOf(Value x) { return Conj(TransposeMatrices(x)); }

Value IdentityMatrices(Builder& builder, DType dtype, int64_t batch, int64_t rows) {
  const Type type{DType::kS32, {batch, rows, rows}};
  return Convert(Eq(builder.Iota(type, 1), builder.Iota(type, 2)), dtype);
}

Value DiagonalOf(Value x) {
  const int64_t batch = x.dim(0), rows = x.dim(1), columns = x.dim(2);
  const int64_t size = std::min(rows, columns);
  if (batch == 0 || size == 0) return ZeroConstant(x.builder(), {x.dtype(), {batch, size}});
  const int64_t step = columns + 1;
  return SliceDim(Reshape(x, {batch, rows * columns}), 1, 0, (size - 1) * step + 1, step);
}

Value TriangleOf(Value x, bool lower) {
  Value zeros = ZeroConstant(x.builder(), x.type());
  return lower ? Select(ColumnsFrom(x, 1), zeros, x) : Select(ColumnsFrom(x, 0), x, zeros);
}

Value UnitLowerTriangleOf(Value x) {
  Builder& b = x.builder();
  Value ones = ConstantLike(x, 1);
  Value upper = Select(ColumnsFrom(x, 1), ZeroConstant(b, x.type()), ones);
  return Select(ColumnsFrom(x, 0), upper, x);
}

Value TakeRows(Value x, Value rows) {
  const Type type{x.dtype(), {x.dim(0), rows.dim(1), x.dim(2)}};
  if (type.numel() == 0 || x.numel() == 0) return ZeroConstant(x.builder(), type);
  GatherDims dims;
  dims.offset_dims = {2};
  dims.collapsed_slice_dims = {1};
  dims.operand_batching_dims = {0};
  dims.start_indices_batching_dims = {0};
  dims.start_index_map = {1};
  dims.index_vector_dim = 2;
  return Gather(x, rows, dims, {1, 1, x.dim(2)});
}

Value MultiplyMatrices(Value a, Value b) {
  const Type type{a.dtype(), {a.dim(0), a.dim(1), b.dim(2)}};
  if (type.numel() == 0 || a.numel() == 0) return ZeroConstant(a.builder(), type);
  const DotDims dims{.lhs_batch = {0}, .rhs_batch = {0}, .lhs_contract = {2}, .rhs_contract = {1}};
  return DotGeneral(a, b, dims, Precision::kHighest);
}

Value SolveTriangle(Value a, Value b, bool left, bool lower, bool unit, TransposeA transpose) {
  if (b.numel() == 0) return b;
  return TriangularSolve(a, b, left, lower, unit, transpose);
}

std::vector<int64_t> ColumnMajorStrides(const std::vector<int64_t>& sizes) {
  const size_t rank = sizes.size();
  std::vector<int64_t> strides(rank);
  strides[rank - 2] = 1;
  strides[rank - 1] = std::max<int64_t>(sizes[rank - 2], 1);
  int64_t next = strides[rank - 1] * std::max<int64_t>(sizes[rank - 1], 1);
  for (size_t i = rank - 2; i-- > 0;) {
    strides[i] = next;
    next *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

std::vector<int64_t> BroadcastBatchSizes(const ShapeTensor& a, const ShapeTensor& b) {
  const size_t rank = std::max(a.sizes.size(), b.sizes.size()) - 2;
  std::vector<int64_t> sizes(rank);
  for (size_t i = 0; i < rank; ++i) {
    const auto size = [&](const ShapeTensor& t) {
      const size_t missing = rank + 2 - t.sizes.size();
      return i < missing ? 1 : t.sizes[i - missing];
    };
    const int64_t first = size(a), second = size(b);
    TORCH_CHECK(first == second || first == 1 || second == 1, "The size of tensor a (", first,
                ") must match the size of tensor b (", second, ") at non-singleton dimension ", i);
    sizes[i] = first == 1 ? second : first;
  }
  return sizes;
}

void CheckSquare(const ShapeTensor& a, const char* name) {
  const size_t rank = a.sizes.size();
  TORCH_CHECK(rank >= 2, name, ": The input tensor A must have at least 2 dimensions.");
  TORCH_CHECK(a.sizes[rank - 1] == a.sizes[rank - 2], name,
              ": A must be batches of square matrices, but they are ", a.sizes[rank - 2], " by ",
              a.sizes[rank - 1], " matrices");
}

void CheckFullPrecision(DType dtype, const char* kernel) {
  TORCH_CHECK_NOT_IMPLEMENTED(dtype == DType::kF32 || dtype == DType::kF64 || IsComplex(dtype),
                              "\"", kernel, "\" not implemented for '", ToScalarType(dtype), "'");
}

}  // namespace torch_tpu::lowering
