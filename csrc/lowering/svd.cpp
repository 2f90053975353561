// Singular value decompositions.
#include "lowering/svd.h"

#include <algorithm>

#include "lowering/householder.h"
#include "lowering/indices.h"
#include "lowering/jacobi.h"
#include "lowering/matrices.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
using namespace stablehlo;  // NOLINT: rules read like the mathematics

namespace {

Type Resized(Value x, int64_t rows, int64_t columns) {
  Type type = x.type();
  type.dims[x.rank() - 2] = rows;
  type.dims[x.rank() - 1] = columns;
  return type;
}

// The diagonals [..., n] of [..., n, n].
Value Diagonal(Value x) {
  Value kept = Multiply(x, Identity(x.builder(), x.type()));
  return Reduce(kept, Reduction::kSum, {x.rank() - 1});
}

// Orthonormal columns from columns that are orthonormal but for the last ones, which may be zeros
// in place of whatever completes the basis. QR changes the others by their phases only.
Value CompleteBasis(Value columns) {
  const Reflections q = FactorQr(columns);
  Value r = Diagonal(q.packed), size = Abs(r);
  Value known = Gt(size, ConstantLike(size, 0.5));
  Value phase = Divide(r, Convert(Select(known, size, ConstantLike(size, 1)), r.dtype()));
  return ScaleColumns(UnitaryColumns(q, columns.dim(-1)),
                      Select(known, phase, ConstantLike(phase, 1)));
}

// Of matrices with at least as many rows as columns, neither of them 0. Jacobi's method on the
// rows of R (J R = S V^H, so R = J^H S V^H) costs n^3 however tall the matrix is, and converges
// faster than on the matrix itself (Drmac and Veselic 2008).
SvdFactors TallSvd(Value x, bool full, bool want_vectors) {
  const int64_t m = x.dim(-2), n = x.dim(-1);
  const auto [matrices, scale] = ScaledToSafeRange(x);
  const Reflections q = FactorQr(matrices);
  const OrthogonalRows w =
      OrthogonalizeRows(FirstRows(UpperTriangle(q.packed), n), /*want_rotations=*/want_vectors);
  Value order = DescendingOrder(w.norms);
  Value norms = InOrder(w.norms, order, /*rows=*/false);
  Dims to_vector = scale.dims();
  to_vector.pop_back();
  SvdFactors result;
  result.s = Multiply(norms, BroadcastTo(Reshape(scale, to_vector), norms.dims()));
  if (!want_vectors) return result;

  Value negligible = Le(norms, ConstantLike(norms, NegligibleNorm(norms.dtype())));
  Value one = ConstantLike(norms, 1), zero = ConstantLike(norms, 0);
  Value inverse = Select(negligible, zero, Divide(one, Select(negligible, one, norms)));
  Value rows = InOrder(w.rows, order, /*rows=*/true);
  result.v = CompleteBasis(Adjoint(ScaleRows(rows, inverse)));

  const int64_t columns = full ? m : n;
  Value u = PadTo(Adjoint(InOrder(w.rotations, order, /*rows=*/true)), m, columns);
  if (columns > n) {
    Value rest = Identity(x.builder(), Resized(x, m, columns));
    Value outside = Zeros(x.builder(), Resized(x, n, n));
    u = Add(u, UpdateSlice(rest, outside, Dims(x.rank(), 0)));
  }
  result.u = ApplyReflections(q, u);
  return result;
}

Values SvdRule(Call& c) {
  Value a = c.tensor("A");
  RequireLapackDType(a.dtype(), "linalg_svd_cpu");
  const bool want_vectors = c.boolean("compute_uv");
  Value finite = IsComplex(a.dtype()) ? And(IsFinite(Real(a)), IsFinite(Imag(a))) : IsFinite(a);
  c.Check(finite,
          "linalg.svd: The algorithm failed to converge because the input matrix contained "
          "non-finite values.",
          Call::ErrorKind::kRuntime);
  const SvdFactors svd = Svd(a, c.boolean("full_matrices"), want_vectors);
  if (!want_vectors) {
    const auto none = [&](int i) { return ZeroConstant(c.builder(), c.result(i)); };
    return {none(0), svd.s, none(2)};
  }
  return {svd.u, svd.s, Adjoint(svd.v)};
}
TPU_RULE({.op = "_linalg_svd", .lower = &SvdRule});

}  // namespace

SvdFactors Svd(Value x, bool full, bool want_vectors) {
  const int64_t m = x.dim(-2), n = x.dim(-1), k = std::min(m, n);
  if (x.numel() == 0) {
    Type s{RealOf(x.dtype()), x.dims()};
    s.dims.pop_back();
    s.dims.back() = k;
    const auto columns = [&](int64_t rows) {
      return Identity(x.builder(), Resized(x, rows, full ? rows : k));
    };
    return {columns(m), Zeros(x.builder(), s), columns(n)};
  }
  if (m >= n) return TallSvd(x, full, want_vectors);
  const SvdFactors adjoint = TallSvd(Adjoint(x), full, want_vectors);
  return {adjoint.v, adjoint.s, adjoint.u};
}

}  // namespace torch_tpu::lowering
