#include "lowering/series.h"

#include <algorithm>
#include <cmath>

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: rules read like the mathematics

std::span<const double> Visible(DType dtype, std::span<const double> coefficients) {
  if (dtype == DType::kF64) return coefficients;
  double largest = 0;
  for (double coefficient : coefficients) largest = std::max(largest, std::abs(coefficient));
  size_t count = coefficients.size();
  while (count > 1 && std::abs(coefficients[count - 1]) < 1e-9 * largest) --count;
  return coefficients.first(count);
}

}  // namespace

Value Chebyshev(Value y, std::span<const double> coefficients) {
  coefficients = Visible(y.dtype(), coefficients);
  const Value twice = Add(y, y);
  Value next = ConstantLike(y, 0), after = next;
  for (size_t i = coefficients.size() - 1; i > 0; --i) {
    const Value current =
        Add(Subtract(Multiply(twice, next), after), ConstantLike(y, coefficients[i]));
    after = next;
    next = current;
  }
  return Add(Subtract(Multiply(y, next), after), ConstantLike(y, coefficients[0]));
}

Value Polynomial(Value y, std::span<const double> coefficients) {
  coefficients = Visible(y.dtype(), coefficients);
  Value sum = ConstantLike(y, coefficients.back());
  for (size_t i = coefficients.size() - 1; i > 0; --i) {
    sum = Add(Multiply(sum, y), ConstantLike(y, coefficients[i - 1]));
  }
  return sum;
}

}  // namespace torch_tpu::lowering
