// Eigenvalues and eigenvectors of Hermitian matrices.
#include <c10/util/Exception.h>

#include "lowering/jacobi.h"
#include "lowering/matrices.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT: rules read like the mathematics

// The Hermitian matrices of which x holds one triangle; diagonals count as real.
Value HermitianFrom(Value x, bool lower) {
  Value strict = lower ? LowerTriangle(x, -1) : UpperTriangle(x, 1);
  Value diagonal = Multiply(x, Identity(x.builder(), x.type()));
  if (IsComplex(x.dtype())) diagonal = Convert(Real(diagonal), x.dtype());
  return Add(Add(strict, Adjoint(strict)), diagonal);
}

// At least the largest absolute value of an eigenvalue, [..., 1, 1], and seldom twice as much: the
// eighth root of the sum of the eigenvalues' eighth powers.
Value SpectralBound(Value x) {
  const std::vector<int64_t> matrix = {x.rank() - 2, x.rank() - 1};
  Dims dims = x.dims();
  dims[x.rank() - 2] = dims[x.rank() - 1] = 1;
  const auto norm = [&](Value y) {
    Value size = Abs(y);
    return Reshape(Sqrt(Reduce(Multiply(size, size), Reduction::kSum, matrix)), dims);
  };
  Value first = norm(x);
  Value inverse = Divide(ConstantLike(first, 1),
                         Select(Gt(first, ConstantLike(first, 0)), first, ConstantLike(first, 1)));
  Value y = TimesScale(x, inverse);
  y = MatrixMultiply(y, y);
  y = MatrixMultiply(y, y);
  return Multiply(first, Sqrt(Sqrt(norm(y))));
}

// XLA's own Eigh leaves 1e-9 of float64 matrices undiagonalized and is several times slower.
// Here A + mu is made positive definite and well-conditioned, and its Cholesky factor's rows
// orthogonal: L^H = J^H S V^H, so A + mu = L L^H = V S^2 V^H (Veselic and Hari 1989). The
// eigenvalues are Rayleigh quotients, which do not suffer from the shift.
Values EighRule(Call& c) {
  Builder& b = c.builder();
  Value a = c.tensor("A");
  RequireLapackDType(a.dtype(), "linalg_eigh_cpu");
  const Type &values_type = c.result(0), &vectors_type = c.result(1);
  if (a.numel() == 0) return {ZeroConstant(b, values_type), ZeroConstant(b, vectors_type)};
  const bool lower = c.string("UPLO") == "L" || c.string("UPLO") == "l";
  const auto [matrices, scale] = ScaledToSafeRange(HermitianFrom(a, lower));
  c.Check(IsFinite(Reduce(Abs(matrices), Reduction::kMax, {a.rank() - 2, a.rank() - 1})),
          "linalg.eigh: The algorithm failed to converge because the input matrix contained "
          "non-finite values.",
          Call::ErrorKind::kRuntime);
  Value bound = SpectralBound(matrices);
  // Any shift will do for a matrix of zeros.
  Value shift = Select(Gt(bound, ConstantLike(bound, 0)), Multiply(bound, ConstantLike(bound, 1.5)),
                       ConstantLike(bound, 1));
  Value identity = Identity(b, a.type());
  Value factor = Cholesky(Add(matrices, TimesScale(identity, shift)), /*lower=*/true);
  const OrthogonalRows w = OrthogonalizeRows(Adjoint(factor), /*want_rotations=*/false);
  Value rows = ScaleRows(w.rows, Divide(ConstantLike(w.norms, 1), w.norms));

  // Of each row v^H: v^H A v.
  Value quotients = Multiply(MatrixMultiply(rows, matrices), Conj(rows));
  Value values = Reduce(Convert(quotients, values_type.dtype), Reduction::kSum, {a.rank() - 1});
  Dims to_vector = scale.dims();
  to_vector.pop_back();
  Value order = DescendingOrder(Negate(values));
  values = Multiply(InOrder(values, order, /*rows=*/false),
                    BroadcastTo(Reshape(scale, to_vector), values.dims()));
  Value vectors = c.boolean("compute_v") ? Adjoint(InOrder(rows, order, /*rows=*/true))
                                         : ZeroConstant(b, vectors_type);
  return {values, vectors};
}
TPU_RULE({.op = "_linalg_eigh", .lower = &EighRule});

}  // namespace
}  // namespace torch_tpu::lowering
