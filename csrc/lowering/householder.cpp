#include "lowering/householder.h"

#include <algorithm>

#include "lowering/indices.h"
#include "lowering/matrices.h"
#include "stablehlo/decompositions.h"

namespace torch_tpu::lowering {
using namespace stablehlo;  // NOLINT

Reflections FactorQr(Value x) {
  if (x.numel() == 0) {
    Type taus = x.type();
    taus.dims.pop_back();
    taus.dims.back() = std::min(x.dim(-1), x.dim(-2));
    return {x, Zeros(x.builder(), taus)};
  }
  const auto [matrices, scale] = ScaledToSafeRange(x);
  const auto [packed, taus] = Qr(matrices);
  Value r = TimesScale(UpperTriangle(packed), scale);
  return {Add(r, LowerTriangle(packed, -1)), taus};
}

// With V the matrix of all v, S the strict upper triangle of V^H V and D the diagonal matrix of the
// taus, Q = I - V T V^H, T = D (I + S D)^-1. This is the compact WY form of Schreiber and Van Loan
// (1989) with its triangular factor as Puglisi gives it (1992), written so that a tau may be 0.
Value ApplyReflections(const Reflections& q, Value x, bool adjoint) {
  const int64_t k = q.taus.dim(-1);
  if (k == 0 || x.numel() == 0) return x;
  Builder& b = x.builder();
  Value leading = FirstColumns(q.packed, k);
  Value v = Add(LowerTriangle(leading, -1), Identity(b, leading.type()));
  Value sd = ScaleColumns(UpperTriangle(MatrixMultiply(Adjoint(v), v), 1), q.taus);
  Value identity = Identity(b, sd.type());
  Value inverse = TriangularSolve(Add(sd, identity), identity, /*left_side=*/true, /*lower=*/false,
                                  /*unit_diagonal=*/true, TransposeA::kNoTranspose);
  Value t = ScaleRows(inverse, q.taus);
  if (adjoint) t = Adjoint(t);
  return Subtract(x, MatrixMultiply(v, MatrixMultiply(t, MatrixMultiply(Adjoint(v), x))));
}

Value UnitaryColumns(const Reflections& q, int64_t columns) {
  Type type = q.packed.type();
  type.dims.back() = columns;
  return ApplyReflections(q, Identity(q.packed.builder(), type));
}

}  // namespace torch_tpu::lowering
