#include <c10/util/Exception.h>

#include "lowering/matrix.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT: rules read like the mathematics

struct CholeskyFactor {
  Value lower;  // [batch, n, n], zeros above the diagonal
  Value info;   // [batch]: order of the first leading minor that is not positive, or 0
};

// 1 where the pivots, real numbers, make a factor; NaN does not.
Value IsPositive(Value x) { return Gt(x, ConstantLike(x, 0)); }

// Column after column, until each matrix is factorized or has shown a pivot that is not positive;
// such a matrix keeps the columns before it. Reads the lower triangle. The outer product form of
// Golub and Van Loan, Matrix Computations, section 4.2. Does not run at all unless `needed`, 0-d.
CholeskyFactor FactorByColumns(Value x, Value needed) {
  Builder& builder = x.builder();
  const int64_t batch = x.dim(0), n = x.dim(1);
  const DType dtype = x.dtype();
  const auto index = [&](int64_t i) { return ScalarInt(builder, DType::kS32, i); };
  const auto condition = [&](const Values& v) { return Values{And(Lt(v[0], index(n)), v[1])}; };
  const auto step = [&](const Values& v) {
    Value k = v[0], a = v[2], info = v[3], zero = index(0);
    const Type square{DType::kS32, a.dims()};
    Value rows = builder.Iota(square, 1), columns = builder.Iota(square, 2);
    Value here = BroadcastTo(k, square.dims);

    Value column = DynamicSlice(a, {zero, zero, k}, {batch, n, 1});
    Value pivot = Real(DynamicSlice(column, {zero, k, zero}, {batch, 1, 1}));
    Value flat = Reshape(pivot, {batch});
    Value sound = And(IsPositive(flat), Eq(info, ConstantLike(info, 0)));
    Value failed = BroadcastTo(Add(k, index(1)), {batch});
    info = Select(Or(sound, Ne(info, ConstantLike(info, 0))), info, failed);

    Value root = Convert(Sqrt(pivot), dtype);
    Value scaled = Divide(column, BroadcastTo(root, column.dims()));
    Value across = BroadcastTo(AdjointOf(scaled), a.dims());
    scaled = BroadcastTo(scaled, a.dims());
    Value rest = Subtract(a, Multiply(scaled, across));
    Value below = Gt(rows, here);
    Value updated = Select(And(below, Gt(columns, here)), rest, a);
    updated = Select(And(below, Eq(columns, here)), scaled, updated);
    updated = Select(And(Eq(rows, here), Eq(columns, here)), BroadcastTo(root, a.dims()), updated);
    updated = Select(BroadcastInDim(sound, a.dims(), {0}), updated, a);
    return Values{Add(k, index(1)), v[1], updated, info};
  };
  Value info = ZeroConstant(builder, {DType::kS32, {batch}});
  const Values end = While({index(0), needed, x, info}, condition, step);
  return {TriangleOf(end[2], /*lower=*/true), end[3]};
}

// The plugin's own factorization fills the whole of a matrix that has none with NaN, or leaves a
// zero on the diagonal; which minor failed is then found column by column.
CholeskyFactor Factor(Value x) {
  Builder& builder = x.builder();
  const int64_t batch = x.dim(0);
  if (x.numel() == 0) return {x, ZeroConstant(builder, {DType::kS32, {batch}})};
  Value lower = TriangleOf(Cholesky(x, /*lower=*/true), /*lower=*/true);
  Value sound = Reduce(IsPositive(Real(DiagonalOf(lower))), Reduction::kAnd, {1});
  Value failed = Not(Reduce(sound, Reduction::kAnd, {0}));
  const CholeskyFactor exact = FactorByColumns(x, failed);
  Value fast = BroadcastInDim(sound, lower.dims(), {0});
  return {Select(fast, lower, exact.lower), Select(sound, ConstantLike(exact.info, 0), exact.info)};
}

Values LinalgCholeskyEx(Call& c) {
  const Type& out = c.result();
  CheckFullPrecision(out.dtype, "cholesky_cpu");
  const bool upper = c.boolean("upper");
  Value x = AsBatch(c.tensor("self"));
  const CholeskyFactor factor = Factor(upper ? AdjointOf(x) : x);
  Value result = upper ? AdjointOf(factor.lower) : factor.lower;
  return {Reshape(result, out.dims), Reshape(factor.info, c.result(1).dims)};
}
TPU_RULE({.op = "linalg_cholesky_ex", .lower = &LinalgCholeskyEx});

// The solution of L L^H X = B, or U^H U X = B.
Value SolveFactored(Value factor, Value b, bool upper) {
  const TransposeA first = upper ? TransposeA::kAdjoint : TransposeA::kNoTranspose;
  const TransposeA second = upper ? TransposeA::kNoTranspose : TransposeA::kAdjoint;
  Value y = SolveTriangle(factor, b, true, !upper, false, first);
  return SolveTriangle(factor, y, true, !upper, false, second);
}

Values CholeskySolveHelper(Call& c) {
  const Type& out = c.result();
  CheckFullPrecision(out.dtype, "cholesky_solve_cpu");
  Value b = AsBatch(c.tensor("self")), factor = AsBatch(c.tensor("A"));
  return {Reshape(SolveFactored(factor, b, c.boolean("upper")), out.dims)};
}

// cholesky_solve has checked and broadcast the arguments.
std::vector<ResultSpec> CholeskySolveHelperShape(const ShapeCall& s) {
  const ShapeTensor& b = s.tensor("self");
  return {{.dtype = b.dtype, .sizes = b.sizes, .strides = ColumnMajorStrides(b.sizes)}};
}
TPU_RULE({.op = "_cholesky_solve_helper",
          .lower = &CholeskySolveHelper,
          .shape = &CholeskySolveHelperShape});

Values CholeskyInverse(Call& c) {
  const Type& out = c.result();
  CheckFullPrecision(out.dtype, "cholesky_inverse_out_cpu");
  Value factor = AsBatch(c.tensor("self"));
  Value identity = IdentityMatrices(c.builder(), out.dtype, factor.dim(0), factor.dim(1));
  return {Reshape(SolveFactored(factor, identity, c.boolean("upper")), out.dims)};
}

std::vector<ResultSpec> CholeskyInverseShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  CheckSquare(self, "cholesky_inverse");
  return {{.dtype = self.dtype, .sizes = self.sizes, .strides = ColumnMajorStrides(self.sizes)}};
}
TPU_RULE({.op = "cholesky_inverse", .lower = &CholeskyInverse, .shape = &CholeskyInverseShape});

}  // namespace
}  // namespace torch_tpu::lowering
