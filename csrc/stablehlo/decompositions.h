#pragma once

#include "stablehlo/builder.h"

// Matrix decompositions that StableHLO has no operation for: custom calls which XLA's compilers,
// those of CPU and TPU alike, replace by programs of their own. They work on the last two
// dimensions, the others are batch dimensions.
namespace torch_tpu::stablehlo {

// A QR decomposition by Householder reflections H = I - tau v v^H, as LAPACK packs it.
struct QrFactors {
  Value packed;  // [..., m, n]: R on and above the diagonal, below it the v without their leading 1
  Value taus;    // [..., min(m, n)]
};
// x: [..., m, n], not empty, float32, float64 or complex; throws TypeError for anything else.
QrFactors Qr(Value x);

}  // namespace torch_tpu::stablehlo
