#pragma once

#include <span>

#include "lowering/call.h"

// Series with constant coefficients over y in [-1, 1], the constant term first. Where y is not
// float64 the last coefficients are left out as far as float32 cannot see them.
namespace torch_tpu::lowering {

// sum of c_k T_k(y), T_k the Chebyshev polynomials, by Clenshaw's recurrence.
Value Chebyshev(Value y, std::span<const double> coefficients);
// sum of c_k y^k, by Horner's scheme.
Value Polynomial(Value y, std::span<const double> coefficients);

}  // namespace torch_tpu::lowering
