#include "lowering/lu.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT: rules read like the mathematics

// The factors of A, or of its transpose if A is real and row-major, because LAPACK then reads it
// without a copy. PyTorch's autograd formulas of determinants know from the strides which factors
// they are given, so these have to be the same ones.
LuFactors FactorForDeterminant(const Call& c) {
  Value a = AsBatch(c.tensor("A"));
  const bool transpose = c.contiguous("A") && !IsComplex(a.dtype());
  return FactorLu(transpose ? TransposeMatrices(a) : a, /*pivot=*/true);
}

// [batch]: 1, or -1 after an odd number of exchanges.
Value SignOfExchanges(Value pivots, DType dtype) {
  Value own = Add(pivots.builder().Iota(pivots.type(), 1), ConstantLike(pivots, 1));
  Value count = Reduce(Convert(Ne(pivots, own), DType::kS32), Reduction::kSum, {1});
  Value odd = Convert(And(count, ConstantLike(count, 1)), dtype);
  return Subtract(ConstantLike(odd, 1), Multiply(odd, ConstantLike(odd, 2)));
}

// LU and pivots as results `first` and `first + 1`.
void AppendFactors(Call& c, const LuFactors& factors, int first, Values& results) {
  results.push_back(Reshape(factors.lu, c.result(first).dims));
  results.push_back(Reshape(factors.pivots, c.result(first + 1).dims));
}

Values LinalgDet(Call& c) {
  const Type& out = c.result();
  CheckFullPrecision(out.dtype, "lu_cpu");
  const LuFactors factors = FactorForDeterminant(c);
  Value product = Reduce(DiagonalOf(factors.lu), Reduction::kProduct, {1});
  Value det = Multiply(product, SignOfExchanges(factors.pivots, out.dtype));
  Values results{Reshape(det, out.dims)};
  AppendFactors(c, factors, 1, results);
  return results;
}
TPU_RULE({.op = "_linalg_det", .lower = &LinalgDet});

Values LinalgSlogdet(Call& c) {
  const Type& out = c.result();
  CheckFullPrecision(out.dtype, "lu_cpu");
  const LuFactors factors = FactorForDeterminant(c);
  Value diagonal = DiagonalOf(factors.lu);
  Value sign = Reduce(Sign(diagonal), Reduction::kProduct, {1});
  sign = Multiply(sign, SignOfExchanges(factors.pivots, out.dtype));
  Value logabsdet = Reduce(Log(Abs(diagonal)), Reduction::kSum, {1});
  Values results{Reshape(sign, out.dims), Reshape(logabsdet, c.result(1).dims)};
  AppendFactors(c, factors, 2, results);
  return results;
}
TPU_RULE({.op = "_linalg_slogdet", .lower = &LinalgSlogdet});

// The dimensions `b` has as a batch of matrices: PyTorch takes a single vector, and one vector for
// each matrix, for columns.
Dims AsColumns(const Dims& b, const Dims& a) {
  const bool vectors =
      b.size() == 1 || (b.size() + 1 == a.size() && std::equal(b.begin(), b.end(), a.begin()));
  Dims dims = b;
  if (vectors) dims.push_back(1);
  return dims;
}

Values LinalgSolveEx(Call& c) {
  const Type& out = c.result();
  CheckFullPrecision(out.dtype, "lu_cpu");
  Value a = c.tensor("A"), b = c.tensor("B");
  const Dims columns = AsColumns(b.dims(), a.dims());
  Dims solution = out.dims;
  if (columns.size() != b.dims().size()) solution.push_back(1);
  const LuFactors factors = FactorLu(AsBatch(a), /*pivot=*/true);

  const int64_t n = a.dim(-1);
  const Dims batch(solution.begin(), solution.end() - 2);
  const auto broadcast = [&](Value x, Dims own) {
    Dims each(a.dims().begin(), a.dims().end() - 2), all = batch;
    each.insert(each.end(), own.begin(), own.end());
    all.insert(all.end(), own.begin(), own.end());
    return BroadcastTo(Reshape(x, each), all);
  };
  Value lu = AsBatch(broadcast(factors.lu, {n, n}));
  Value order = Reshape(broadcast(factors.order, {n}), {lu.dim(0), n});
  Value rhs = BroadcastBatch(Reshape(b, columns), solution);
  Value x = SolveLu(lu, order, rhs, c.boolean("left"), /*adjoint=*/false);
  Values results{Reshape(x, out.dims)};
  AppendFactors(c, factors, 1, results);
  results.push_back(Reshape(factors.info, c.result(3).dims));
  return results;
}
TPU_RULE({.op = "_linalg_solve_ex", .lower = &LinalgSolveEx});

Values LinalgInvEx(Call& c) {
  const Type& out = c.result();
  CheckFullPrecision(out.dtype, "lu_cpu");
  Value a = AsBatch(c.tensor("A"));
  const LuFactors factors = FactorLu(a, /*pivot=*/true);
  Value identity = IdentityMatrices(c.builder(), out.dtype, a.dim(0), a.dim(1));
  Value inverse = SolveLu(factors.lu, factors.order, identity, /*left=*/true, /*adjoint=*/false);
  return {Reshape(inverse, out.dims), Reshape(factors.info, c.result(1).dims)};
}
TPU_RULE({.op = "linalg_inv_ex", .lower = &LinalgInvEx});

}  // namespace
}  // namespace torch_tpu::lowering
