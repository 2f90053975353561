#pragma once

#include "lowering/call.h"

// QR decompositions as products of Householder reflections H = I - tau v v^H, packed as LAPACK does
// (stablehlo/decompositions.h). Matrices may be empty.
namespace torch_tpu::lowering {

struct Reflections {
  Value packed;  // [..., m, n]
  Value taus;    // [..., k], k <= min(m, n)
};

// x: float32, float64 or complex.
Reflections FactorQr(Value x);

// Q x, or Q^H x, where Q is the product H_1 H_2 ... H_k of the reflections; x: [..., m, p].
Value ApplyReflections(const Reflections& q, Value x, bool adjoint = false);
// The first `columns` columns of Q, which is m by m.
Value UnitaryColumns(const Reflections& q, int64_t columns);

}  // namespace torch_tpu::lowering
