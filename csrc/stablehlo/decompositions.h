#pragma once

#include "stablehlo/builder.h"

// Matrix decompositions that StableHLO has no operation for. They are custom calls which XLA's
// compilers, those of CPU and TPU alike, replace by programs of their own. All work on the last two
// dimensions, the others are batch dimensions, for float32, float64 and the complex dtypes over
// them. Everything throws TypeError for operands that do not fit.
namespace torch_tpu::stablehlo {

// A QR decomposition by Householder reflections H = I - tau v v^H, as LAPACK packs it.
struct QrFactors {
  Value packed;  // [..., m, n]: R on and above the diagonal, below it the v without their leading 1
  Value taus;    // [..., min(m, n)]
};
// x: [..., m, n], neither of them 0.
QrFactors Qr(Value x);

// Eigenvalues of Hermitian matrices, in ascending order, and their orthonormal eigenvectors.
struct EighFactors {
  Value values;   // [..., n], real
  Value vectors;  // [..., n, n], a column each
};
// Jacobi's method: until what is off the diagonal has less than `tolerance` times the matrix's norm
// or `max_sweeps` times all of it has been rotated. Only the lower triangle of x counts.
EighFactors Eigh(Value x, int max_sweeps, double tolerance);

}  // namespace torch_tpu::stablehlo
