#include "lowering/lu.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace torch_tpu::lowering {

using namespace stablehlo;  // NOLINT: rules read like the mathematics

namespace {

// Columns factorized one by one before the rest of the matrix is brought up to date with a product.
constexpr int64_t kPanel = 128;

Value Index(Builder& builder, int64_t i) { return ScalarInt(builder, DType::kS32, i); }

// Elements `k` (0-d) and `p` ([batch]) of rows [batch, count] exchanged.
Value Exchange(Value x, Value k, Value p) {
  const int64_t batch = x.dim(0);
  Value positions = x.builder().Iota({DType::kS32, x.dims()}, 1);
  Value is_k = Eq(positions, BroadcastTo(k, x.dims()));
  Value is_p = Eq(positions, BroadcastInDim(p, x.dims(), {0}));
  Value at_k = DynamicSlice(x, {Index(x.builder(), 0), k}, {batch, 1});
  Value at_p = Reduce(Select(is_p, x, ConstantLike(x, 0)), Reduction::kSum, {1});
  Value swapped = Select(is_p, BroadcastTo(at_k, x.dims()), x);
  return Select(is_k, BroadcastInDim(at_p, x.dims(), {0}), swapped);
}

// 0, 1, 2, ... in each row.
Value Ascending(Builder& builder, int64_t batch, int64_t count) {
  return builder.Iota({DType::kS32, {batch, count}}, 1);
}

// [batch]: where in a column [batch, m], at row k or below, the largest element stands. Complex
// numbers are measured by |re| + |im| as LAPACK's i?amax does.
Value PivotRow(Value column, Value k) {
  Builder& builder = column.builder();
  Value size = IsComplex(column.dtype()) ? Add(Abs(Real(column)), Abs(Imag(column))) : Abs(column);
  Value rows = builder.Iota({DType::kS32, size.dims()}, 1);
  Value here = BroadcastTo(k, rows.dims());
  // No number is larger than a NaN that comes first, and no other NaN is larger than a number.
  Value nan = Select(Eq(rows, here), BroadcastTo(MaxValue(builder, size.dtype()), size.dims()),
                     ConstantLike(size, -1));
  size = Select(IsNan(size), nan, size);
  size = Select(Ge(rows, here), size, ConstantLike(size, -2));
  const Values inits = {Scalar(builder, size.dtype(), -3), Index(builder, 0)};
  return ReduceGeneric({size, rows}, inits, {1}, [](const Values& v) {
    Value second = Or(Gt(v[2], v[0]), And(Eq(v[2], v[0]), Lt(v[3], v[1])));
    return Values{Select(second, v[2], v[0]), Select(second, v[3], v[1])};
  })[1];
}

// Each step divides a column by its pivot and subtracts a product of a column and a row from what
// is right of it: Golub and Van Loan, Matrix Computations, algorithms 3.2.1 and 3.4.1.
LuFactors FactorByColumns(Value a, bool pivot) {
  Builder& builder = a.builder();
  const int64_t batch = a.dim(0), m = a.dim(1), n = a.dim(2), steps = std::min(m, n);
  const auto condition = [&](const Values& v) { return Values{Lt(v[0], Index(builder, steps))}; };
  const auto step = [&](const Values& v) {
    Value k = v[0], a = v[1], pivots = v[2], order = v[3], info = v[4], zero = Index(builder, 0);
    const Type matrix{DType::kS32, a.dims()};
    Value rows = builder.Iota(matrix, 1), columns = builder.Iota(matrix, 2);
    Value here = BroadcastTo(k, matrix.dims);
    Value column = DynamicSlice(a, {zero, zero, k}, {batch, m, 1});
    Value row = DynamicSlice(a, {zero, k, zero}, {batch, 1, n});
    if (pivot) {
      Value p = PivotRow(Reshape(column, {batch, m}), k);
      Value upper = row;
      row = TakeRows(a, Reshape(p, {batch, 1}));
      Value is_p = Eq(rows, BroadcastInDim(p, matrix.dims, {0}));
      a = Select(is_p, BroadcastTo(upper, a.dims()), a);
      a = Select(Eq(rows, here), BroadcastTo(row, a.dims()), a);
      column = Reshape(Exchange(Reshape(column, {batch, m}), k, p), column.dims());
      order = Exchange(order, k, p);
      Value is_k = Eq(Ascending(builder, batch, steps), BroadcastTo(k, {batch, steps}));
      Value one_based = Add(p, ConstantLike(p, 1));
      pivots = Select(is_k, BroadcastInDim(one_based, {batch, steps}, {0}), pivots);
    }
    Value diagonal = DynamicSlice(row, {zero, zero, k}, {batch, 1, 1});
    Value is_zero = Eq(diagonal, ConstantLike(diagonal, 0));
    Value first = And(Reshape(is_zero, {batch}), Eq(info, ConstantLike(info, 0)));
    info = Select(first, BroadcastTo(Add(k, Index(builder, 1)), {batch}), info);

    // A column of zeros stays as it is.
    Value divisor = Select(is_zero, ConstantLike(diagonal, 1), diagonal);
    Value multipliers = Divide(column, BroadcastTo(divisor, column.dims()));
    multipliers = BroadcastTo(multipliers, a.dims());
    Value rest = Subtract(a, Multiply(multipliers, BroadcastTo(row, a.dims())));
    Value below = Gt(rows, here);
    a = Select(And(below, Eq(columns, here)), multipliers,
               Select(And(below, Gt(columns, here)), rest, a));
    return Values{Add(k, Index(builder, 1)), a, pivots, order, info};
  };
  Value pivots = Ascending(builder, batch, steps);
  pivots = Add(pivots, ConstantLike(pivots, 1));
  const Values inits = {Index(builder, 0), a, pivots, Ascending(builder, batch, m),
                        ZeroConstant(builder, {DType::kS32, {batch}})};
  const Values end = While(inits, condition, step);
  return {end[1], end[2], end[3], end[4]};
}

// The part of [batch, rows, columns] from a row and a column on.
Value From(Value x, int64_t row, int64_t column) {
  return Slice(x, {0, row, column}, {x.dim(0), x.dim(1), x.dim(2)});
}
Value UpTo(Value x, int64_t row, int64_t column) {
  return Slice(x, {0, 0, 0}, {x.dim(0), row, column});
}

// order[i], reordered from element `start` on.
Value Reorder(Value order, Value part, int64_t start) {
  const int64_t batch = order.dim(0), m = order.dim(1);
  Value rest = Reshape(SliceDim(order, 1, start, m), {batch, m - start, 1});
  rest = Reshape(TakeRows(rest, part), {batch, m - start});
  return Concatenate({SliceDim(order, 1, 0, start), rest}, 1);
}

// Where each row went: the inverse of a permutation.
Value InverseOrder(Value order) {
  Value positions = Ascending(order.builder(), order.dim(0), order.dim(1));
  return Sort({order, positions}, 1, false,
              [](const Values& v) { return Values{Lt(v[0], v[1])}; })[1];
}

}  // namespace

LuFactors FactorLu(Value a, bool pivot) {
  Builder& builder = a.builder();
  const int64_t batch = a.dim(0), m = a.dim(1), n = a.dim(2), steps = std::min(m, n);
  LuFactors factors{a, ZeroConstant(builder, {DType::kS32, {batch, steps}}),
                    Ascending(builder, batch, m), ZeroConstant(builder, {DType::kS32, {batch}})};
  if (a.numel() == 0) return factors;
  if (steps <= kPanel) return FactorByColumns(a, pivot);

  // Right-looking by panels (Golub and Van Loan, section 3.4.4), so that most of the work is
  // products of matrices.
  Values pivots;
  for (int64_t start = 0; start < steps; start += kPanel) {
    const int64_t width = std::min(kPanel, steps - start), end = start + width;
    Value active = From(factors.lu, start, 0);
    const LuFactors panel = FactorByColumns(SliceDim(active, 2, start, end), pivot);
    if (pivot) {
      active = TakeRows(active, panel.order);
      factors.order = Reorder(factors.order, panel.order, start);
    }
    Values blocks = {SliceDim(active, 2, 0, start), panel.lu};
    if (end < n) {
      Value right = From(active, 0, end);
      Value upper = SolveTriangle(UpTo(panel.lu, width, width), UpTo(right, width, n - end), true,
                                  true, /*unit=*/true);
      Value update = MultiplyMatrices(From(panel.lu, width, 0), upper);
      blocks.push_back(Concatenate({upper, Subtract(From(right, width, 0), update)}, 1));
    }
    factors.lu = Concatenate({UpTo(factors.lu, start, n), Concatenate(blocks, 2)}, 1);
    pivots.push_back(Add(panel.pivots, ConstantLike(panel.pivots, static_cast<double>(start))));
    Value none = ConstantLike(panel.info, 0);
    Value shifted = Add(panel.info, ConstantLike(panel.info, static_cast<double>(start)));
    factors.info = Select(And(Eq(factors.info, none), Ne(panel.info, none)), shifted, factors.info);
  }
  factors.pivots = Concatenate(pivots, 1);
  return factors;
}

Value OrderOfPivots(Value pivots, int64_t rows) {
  Builder& builder = pivots.builder();
  const int64_t batch = pivots.dim(0), steps = pivots.dim(1);
  Value order = Ascending(builder, batch, rows);
  if (pivots.numel() == 0) return order;
  const auto condition = [&](const Values& v) { return Values{Lt(v[0], Index(builder, steps))}; };
  const auto step = [&](const Values& v) {
    Value p = Reshape(DynamicSlice(v[1], {Index(builder, 0), v[0]}, {batch, 1}), {batch});
    p = Subtract(p, ConstantLike(p, 1));
    return Values{Add(v[0], Index(builder, 1)), v[1], Exchange(v[2], v[0], p)};
  };
  return While({Index(builder, 0), pivots, order}, condition, step)[2];
}

Value SolveLu(Value lu, Value order, Value b, bool left, bool adjoint) {
  const auto permuted = [&](Value x, Value rows) {
    if (left) return TakeRows(x, rows);
    return TransposeMatrices(TakeRows(TransposeMatrices(x), rows));
  };
  const TransposeA transpose = adjoint ? TransposeA::kAdjoint : TransposeA::kNoTranspose;
  const auto by_lower = [&](Value x) {
    return SolveTriangle(lu, x, left, true, /*unit=*/true, transpose);
  };
  const auto by_upper = [&](Value x) {
    return SolveTriangle(lu, x, left, false, /*unit=*/false, transpose);
  };
  // P comes first in A and in the adjoint's mirror image.
  if (left != adjoint) return by_upper(by_lower(permuted(b, order)));
  return permuted(by_lower(by_upper(b)), InverseOrder(order));
}

namespace {

// P of A = P L U.
Value PermutationMatrices(Value order, DType dtype) {
  const int64_t batch = order.dim(0), rows = order.dim(1);
  const Dims dims{batch, rows, rows};
  Value row = order.builder().Iota({DType::kS32, dims}, 1);
  return Convert(Eq(row, BroadcastInDim(order, dims, {0, 2})), dtype);
}

// L and U in the results' shapes from result `first` on.
void AppendTriangles(Call& c, Value lu, int first, Values& results) {
  const int64_t m = lu.dim(1), n = lu.dim(2), k = std::min(m, n);
  Value lower = UnitLowerTriangleOf(UpTo(lu, m, k));
  Value upper = TriangleOf(UpTo(lu, k, n), /*lower=*/false);
  results.push_back(Reshape(lower, c.result(first).dims));
  results.push_back(Reshape(upper, c.result(first + 1).dims));
}

Values LinalgLuFactorEx(Call& c) {
  const Type& out = c.result();
  CheckFullPrecision(out.dtype, "lu_cpu");
  const LuFactors factors = FactorLu(AsBatch(c.tensor("A")), c.boolean("pivot"));
  return {Reshape(factors.lu, out.dims), Reshape(factors.pivots, c.result(1).dims),
          Reshape(factors.info, c.result(2).dims)};
}
TPU_RULE({.op = "linalg_lu_factor_ex", .lower = &LinalgLuFactorEx});

Values LinalgLu(Call& c) {
  const Type& permutation = c.result();
  const DType dtype = c.tensor("A").dtype();
  CheckFullPrecision(dtype, "lu_cpu");
  const bool pivot = c.boolean("pivot");
  const LuFactors factors = FactorLu(AsBatch(c.tensor("A")), pivot);
  Values results;
  if (pivot) {
    results.push_back(Reshape(PermutationMatrices(factors.order, dtype), permutation.dims));
  } else {
    results.push_back(ZeroConstant(c.builder(), permutation));
  }
  AppendTriangles(c, factors.lu, 1, results);
  return results;
}
TPU_RULE({.op = "linalg_lu", .lower = &LinalgLu});

Value Between(Value x, int64_t low, int64_t high) {
  return And(Ge(x, ConstantLike(x, static_cast<double>(low))),
             Le(x, ConstantLike(x, static_cast<double>(high))));
}

Values LuUnpack(Call& c) {
  Value lu = AsBatch(c.tensor("LU_data"));
  const int64_t batch = lu.dim(0), m = lu.dim(1), k = std::min(m, lu.dim(2));
  Values results;
  if (c.boolean("unpack_pivots")) {
    Value pivots = Reshape(c.tensor("LU_pivots"), {batch, k});
    c.Check(Between(pivots, 1, m),
            "pivots passed to lu_unpack must be between 1 and LU.size(-2) inclusive."
            "Did you properly pass the result of lu_factor?",
            Call::ErrorKind::kRuntime);
    Value permutation = PermutationMatrices(OrderOfPivots(pivots, m), lu.dtype());
    results.push_back(Reshape(permutation, c.result(0).dims));
  } else {
    results.push_back(ZeroConstant(c.builder(), c.result(0)));
  }
  if (c.boolean("unpack_data")) {
    AppendTriangles(c, lu, 1, results);
  } else {
    for (int i : {1, 2}) results.push_back(ZeroConstant(c.builder(), c.result(i)));
  }
  return results;
}
TPU_RULE({.op = "lu_unpack", .lower = &LuUnpack});

Values LinalgLuSolve(Call& c) {
  const Type& out = c.result();
  CheckFullPrecision(out.dtype, "linalg.lu_solve_cpu");
  const int64_t n = c.tensor("LU").dim(-1);
  Value pivots = c.tensor("pivots");
  c.Check(Ge(pivots, ConstantLike(pivots, 1)),
          "Pivots given to lu_solve must all be greater or equal to 1. "
          "Did you properly pass the result of lu_factor?",
          Call::ErrorKind::kRuntime);
  c.Check(Le(pivots, ConstantLike(pivots, static_cast<double>(n))),
          "Pivots given to lu_solve must all be smaller or equal to LU.size(-2). "
          "Did you properly pass the result of lu_factor?",
          Call::ErrorKind::kRuntime);
  Dims order_dims(out.dims.begin(), out.dims.end() - 2);
  order_dims.push_back(n);
  Value lu = BroadcastBatch(c.tensor("LU"), out.dims);
  Value order = OrderOfPivots(Reshape(BroadcastTo(pivots, order_dims), {lu.dim(0), n}), n);
  Value b = BroadcastBatch(c.tensor("B"), out.dims);
  Value x = SolveLu(lu, order, b, c.boolean("left"), c.boolean("adjoint"));
  return {Reshape(x, out.dims)};
}
TPU_RULE({.op = "linalg_lu_solve", .lower = &LinalgLuSolve});

}  // namespace
}  // namespace torch_tpu::lowering
