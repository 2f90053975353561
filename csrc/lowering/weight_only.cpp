// Products with weights kept in 8 or 4 bits beside activations in floating point.
#include <c10/util/Exception.h>

#include "lowering/dot.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: Add, Multiply, Reduce, ... read like the mathematics

// x [m, k] times the transpose of weights [n, k], both in x's dtype.
Value TimesTransposed(Call& c, Value x, Value weights) {
  return AccumulatingDot(c, x, weights, {.lhs_contract = {1}, .rhs_contract = {1}});
}

Values Int8Mm(Call& c) {
  Value x = c.tensor("self");
  Value product = TimesTransposed(c, x, Convert(c.tensor("mat2"), x.dtype()));
  Value scales = Convert(c.tensor("scales"), product.dtype());
  return {Convert(Multiply(product, BroadcastInDim(scales, product.dims(), {1})), x.dtype())};
}

std::vector<ResultSpec> Int8MmShape(const ShapeCall& s) {
  const ShapeTensor &a = s.tensor("self"), &b = s.tensor("mat2"), &scales = s.tensor("scales");
  TORCH_CHECK(c10::isFloatingType(a.dtype) && a.sizes.size() == 2,
              "_weight_int8pack_mm: expected self to be a floating point matrix, got ", a.dtype,
              " ", c10::IntArrayRef(a.sizes));
  TORCH_CHECK(b.dtype == c10::ScalarType::Char && b.sizes.size() == 2 && b.sizes[1] == a.sizes[1],
              "_weight_int8pack_mm: expected mat2 to be an int8 matrix [n, ", a.sizes[1], "], got ",
              b.dtype, " ", c10::IntArrayRef(b.sizes));
  TORCH_CHECK(scales.sizes == std::vector<int64_t>{b.sizes[0]},
              "_weight_int8pack_mm: expected scales of shape [", b.sizes[0], "], got ",
              c10::IntArrayRef(scales.sizes));
  return {{.dtype = a.dtype, .sizes = {a.sizes[0], b.sizes[0]}}};
}
TPU_RULE({.op = "_weight_int8pack_mm", .lower = &Int8Mm, .shape = &Int8MmShape});

// Packed 4-bit weights are opaque to users, and only these two operators know the order: here the
// bytes as they came, two weights each, four bytes an int32.
Values PackInt4(Call& c) {
  Value bytes = Reshape(c.tensor("self"), {c.tensor("self").numel() / 4, 4});
  return {Reshape(BitcastConvert(bytes, DType::kS32), c.result().dims)};
}

std::vector<ResultSpec> PackInt4Shape(const ShapeCall& s) {
  const ShapeTensor& w = s.tensor("self");
  const int64_t tiles = s.argument("innerKTiles").toInt();
  TORCH_CHECK(w.dtype == c10::ScalarType::Byte && w.sizes.size() == 2,
              "_convert_weight_to_int4pack: expected a uint8 matrix [n, k / 2], got ", w.dtype, " ",
              c10::IntArrayRef(w.sizes));
  TORCH_CHECK(tiles == 2 || tiles == 4 || tiles == 8,
              "_convert_weight_to_int4pack: innerKTiles must be 2, 4 or 8, got ", tiles);
  const int64_t n = w.sizes[0], k = 2 * w.sizes[1];
  TORCH_CHECK(n % 8 == 0 && k % (16 * tiles) == 0,
              "_convert_weight_to_int4pack: n must be divisible by 8 and k by ", 16 * tiles,
              ", got n = ", n, ", k = ", k);
  return {{.dtype = c10::ScalarType::Int, .sizes = {n / 8, k / (16 * tiles), 32, tiles / 2}}};
}
TPU_RULE({.op = "_convert_weight_to_int4pack", .lower = &PackInt4, .shape = &PackInt4Shape});

// The weights [n, k] as integers from 0 to 15. The first of a byte's two is its upper half.
Value UnpackInt4(Value packed, int64_t n, int64_t k) {
  Value words = Reshape(packed, {n * k / 8});
  Value bytes = BitcastConvert(words, DType::kU8);
  Value upper = ShiftRightLogical(bytes, ConstantLike(bytes, 4));
  Value lower = And(bytes, ConstantLike(bytes, 15));
  const Dims column = {n, k / 2, 1};
  return Reshape(Concatenate({Reshape(upper, column), Reshape(lower, column)}, 2), {n, k});
}

Values Int4Mm(Call& c) {
  Value x = c.tensor("self");
  const int64_t n = c.result().dims[1], k = x.dim(1), group = c.integer("qGroupSize");
  const DType compute = ComputeType(x.dtype());
  // Scale and zero point of [k / group, n].
  Value parameters = Convert(c.tensor("qScaleAndZeros"), compute);
  auto of_group = [&](int64_t which) {
    Value p = Reshape(SliceDim(parameters, 2, which, which + 1), {k / group, n});
    return BroadcastInDim(p, {k / group, group, n}, {0, 2});
  };
  Value q = Convert(UnpackInt4(c.tensor("mat2"), n, k), compute);
  q = Reshape(Transpose(Subtract(q, ConstantLike(q, 8)), {1, 0}), {k / group, group, n});
  Value weights = Reshape(Add(Multiply(q, of_group(0)), of_group(1)), {k, n});
  Value product = AccumulatingDot(c, x, Convert(weights, x.dtype()),
                                  {.lhs_contract = {1}, .rhs_contract = {0}});
  return {Convert(product, x.dtype())};
}

std::vector<ResultSpec> Int4MmShape(const ShapeCall& s) {
  const ShapeTensor &x = s.tensor("self"), &w = s.tensor("mat2"), &q = s.tensor("qScaleAndZeros");
  const int64_t group = s.argument("qGroupSize").toInt();
  TORCH_CHECK(c10::isFloatingType(x.dtype) && x.sizes.size() == 2,
              "_weight_int4pack_mm: expected self to be a floating point matrix, got ", x.dtype,
              " ", c10::IntArrayRef(x.sizes));
  TORCH_CHECK(w.dtype == c10::ScalarType::Int && w.sizes.size() == 4 && w.sizes[2] == 32,
              "_weight_int4pack_mm: expected mat2 from _convert_weight_to_int4pack, got ", w.dtype,
              " ", c10::IntArrayRef(w.sizes));
  const int64_t n = 8 * w.sizes[0], k = w.sizes[1] * 32 * w.sizes[3];
  TORCH_CHECK(x.sizes[1] == k, "_weight_int4pack_mm: self has ", x.sizes[1],
              " columns, but the weights ", k);
  TORCH_CHECK(group > 0 && k % group == 0, "_weight_int4pack_mm: qGroupSize ", group,
              " does not divide ", k);
  const std::vector<int64_t> expected = {k / group, n, 2};
  TORCH_CHECK(q.sizes == expected, "_weight_int4pack_mm: expected qScaleAndZeros of shape ",
              c10::IntArrayRef(expected), ", got ", c10::IntArrayRef(q.sizes));
  return {{.dtype = x.dtype, .sizes = {x.sizes[0], n}}};
}
TPU_RULE({.op = "_weight_int4pack_mm", .lower = &Int4Mm, .shape = &Int4MmShape});

}  // namespace
}  // namespace torch_tpu::lowering
