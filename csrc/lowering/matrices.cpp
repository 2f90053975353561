#include "lowering/matrices.h"

#include <c10/util/Exception.h>

#include <numeric>

#include "lowering/indices.h"

namespace torch_tpu::lowering {
using namespace stablehlo;  // NOLINT

namespace {

// Whether an element's column minus its row compares with `diagonal` as asked.
Value WhereOffset(Builder& builder, const Dims& dims, Direction direction, int64_t diagonal) {
  const int rank = static_cast<int>(dims.size());
  const Type type{DType::kS32, dims};
  Value offset = Subtract(builder.Iota(type, rank - 1), builder.Iota(type, rank - 2));
  return Compare(offset, builder.ConstantInt(type, diagonal), direction);
}

// [..., n] as [..., m, n] or [..., n, m], as the dimension left out says.
Value SpreadOver(Value v, const Dims& dims, int missing) {
  std::vector<int64_t> kept;
  for (int d = 0; d < static_cast<int>(dims.size()); ++d) {
    if (d != missing) kept.push_back(d);
  }
  return BroadcastInDim(v, dims, kept);
}

Value Scale(Value x, Value v, int missing) {
  return Multiply(x, SpreadOver(Convert(v, x.dtype()), x.dims(), missing));
}

}  // namespace

Value MatrixMultiply(Value a, Value b) {
  DotDims dims;
  for (int i = 0; i + 2 < a.rank(); ++i) {
    dims.lhs_batch.push_back(i);
    dims.rhs_batch.push_back(i);
  }
  dims.lhs_contract = {a.rank() - 1};
  dims.rhs_contract = {b.rank() - 2};
  return DotGeneral(a, b, dims, Precision::kHighest);
}

Value Adjoint(Value x) {
  std::vector<int64_t> swap(x.rank());
  std::iota(swap.begin(), swap.end(), 0);
  std::swap(swap[x.rank() - 1], swap[x.rank() - 2]);
  return Conj(Transpose(x, swap));
}

Value Identity(Builder& builder, const Type& type) {
  return Convert(WhereOffset(builder, type.dims, Direction::kEq, 0), type.dtype);
}

Value UpperTriangle(Value x, int64_t diagonal) {
  return Select(WhereOffset(x.builder(), x.dims(), Direction::kGe, diagonal), x,
                Zeros(x.builder(), x.type()));
}

Value LowerTriangle(Value x, int64_t diagonal) {
  return Select(WhereOffset(x.builder(), x.dims(), Direction::kLe, diagonal), x,
                Zeros(x.builder(), x.type()));
}

Value ScaleColumns(Value x, Value v) { return Scale(x, v, x.rank() - 2); }
Value ScaleRows(Value x, Value v) { return Scale(x, v, x.rank() - 1); }

Value FirstColumns(Value x, int64_t count) {
  return count == x.dim(-1) ? x : SliceDim(x, x.rank() - 1, 0, count);
}

Value FirstRows(Value x, int64_t count) {
  return count == x.dim(-2) ? x : SliceDim(x, x.rank() - 2, 0, count);
}

Value PadTo(Value x, int64_t rows, int64_t columns) {
  Dims high(x.rank(), 0);
  high[x.rank() - 2] = rows - x.dim(-2);
  high[x.rank() - 1] = columns - x.dim(-1);
  return Pad(x, Zeros(x.builder(), {x.dtype(), {}}), Dims(x.rank(), 0), high);
}

ScaledMatrices ScaledToSafeRange(Value x) {
  const bool wide = RealOf(x.dtype()) == DType::kF64;
  const double smallest = wide ? 1e-100 : 1e-4, largest = wide ? 1e100 : 1e12;
  Value maximum = Reduce(Abs(x), Reduction::kMax, {x.rank() - 2, x.rank() - 1});
  Value safe = And(Ge(maximum, ConstantLike(maximum, smallest)),
                   Le(maximum, ConstantLike(maximum, largest)));
  Value divide = And(Not(safe), And(Gt(maximum, ConstantLike(maximum, 0)), IsFinite(maximum)));
  Value scale = Select(divide, maximum, ConstantLike(maximum, 1));
  Dims dims = x.dims();
  dims[x.rank() - 1] = dims[x.rank() - 2] = 1;
  scale = Reshape(scale, dims);
  return {Divide(x, BroadcastTo(Convert(scale, x.dtype()), x.dims())), scale};
}

Value TimesScale(Value x, Value scale) {
  return Multiply(x, BroadcastTo(Convert(scale, x.dtype()), x.dims()));
}

void RequireLapackDType(DType dtype, std::string_view kernel) {
  const bool known = dtype == DType::kF32 || dtype == DType::kF64 || IsComplex(dtype);
  TORCH_CHECK_NOT_IMPLEMENTED(known, '"', kernel, "\" not implemented for '", ToScalarType(dtype),
                              "'");
}

}  // namespace torch_tpu::lowering
