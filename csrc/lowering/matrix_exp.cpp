#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lowering/matrix.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT: rules read like the mathematics

// How far a Taylor polynomial of degree 4 * `blocks` is good: with a norm of `radius` at most, its
// value is the exponential of a matrix that differs by less than a rounding error (Al-Mohy and
// Higham, "Computing the action of the matrix exponential", 2011, section 3). Single precision
// could go further, but large terms of opposite signs would cancel.
struct Taylor {
  int blocks;
  double radius;
};
Taylor TaylorFor(DType dtype) {
  return ByteSize(RealOf(dtype)) == 8 ? Taylor{4, 0.78} : Taylor{3, 1.0};
}

// The polynomial by the method of Paterson and Stockmeyer: powers up to the fourth, then Horner's
// scheme in the fourth.
Value TaylorPolynomial(Value x, int blocks) {
  Value power0 = IdentityMatrices(x.builder(), x.dtype(), x.dim(0), x.dim(1));
  Value power2 = MultiplyMatrices(x, x);
  const Values powers = {power0, x, power2, MultiplyMatrices(power2, x),
                         MultiplyMatrices(power2, power2)};
  const auto term = [&](int power, int degree) {
    return Multiply(powers[power], ConstantLike(x, 1 / std::tgamma(degree + 1.0)));
  };
  Value sum = term(4, 4 * blocks);
  for (int block = blocks - 1; block >= 0; --block) {
    for (int power = 3; power >= 0; --power) sum = Add(sum, term(power, 4 * block + power));
    if (block > 0) sum = MultiplyMatrices(powers[4], sum);
  }
  return sum;
}

Value AnyOf(Value x) { return Reduce(x, Reduction::kOr, {0}); }

// Scaling and squaring: exp(A) = exp(A / 2^s)^(2^s) (Higham, Functions of Matrices, chapter 10),
// with an s for each matrix.
Value Exponential(Value x) {
  const Taylor taylor = TaylorFor(x.dtype());
  const auto large = [&](Value norm) { return Gt(norm, ConstantLike(norm, taylor.radius)); };
  const auto only = [](Value where, Value then, Value otherwise) {
    return Select(BroadcastInDim(where, then.dims(), {0}), then, otherwise);
  };
  Value norm = Reduce(Reduce(Abs(x), Reduction::kSum, {1}), Reduction::kMax, {1});
  // Nothing of a matrix with a number that is not finite is a number. Its norm would be halved for
  // ever.
  Value finite = IsFinite(norm);
  x = only(finite, x, ConstantLike(x, std::numeric_limits<double>::quiet_NaN()));
  norm = Select(finite, norm, ConstantLike(norm, 0));
  Value none = ZeroConstant(x.builder(), {DType::kS32, norm.dims()});
  const Values scaled = While(
      {x, norm, none}, [&](const Values& v) { return Values{AnyOf(large(v[1]))}; },
      [&](const Values& v) {
        Value go = large(v[1]);
        Value half = Multiply(v[0], ConstantLike(v[0], 0.5));
        return Values{only(go, half, v[0]),
                      Select(go, Multiply(v[1], ConstantLike(v[1], 0.5)), v[1]),
                      Add(v[2], Convert(go, DType::kS32))};
      });
  const auto left = [](Value count) { return Gt(count, ConstantLike(count, 0)); };
  return While(
      {TaylorPolynomial(scaled[0], taylor.blocks), scaled[2]},
      [&](const Values& v) { return Values{AnyOf(left(v[1]))}; },
      [&](const Values& v) {
        Value squared = only(left(v[1]), MultiplyMatrices(v[0], v[0]), v[0]);
        return Values{squared, Subtract(v[1], ConstantLike(v[1], 1))};
      })[0];
}

Values LinalgMatrixExp(Call& c) {
  const Type& out = c.result();
  Value x = AsBatch(Convert(c.tensor("self"), ComputeType(out.dtype)));
  return {Reshape(Convert(Exponential(x), out.dtype), out.dims)};
}

std::vector<ResultSpec> LinalgMatrixExpShape(const ShapeCall& s) {
  constexpr char kName[] = "linalg.matrix_exp";
  const ShapeTensor& self = s.tensor("self");
  CheckSquare(self, kName);
  TORCH_CHECK(c10::isFloatingType(self.dtype) || c10::isComplexType(self.dtype), kName,
              ": Expected a floating point or complex tensor as input. Got ", self.dtype);
  ResultSpec result{.dtype = self.dtype, .sizes = self.sizes};
  // An empty argument is cloned.
  if (std::count(self.sizes.begin(), self.sizes.end(), 0) > 0) result.strides = self.strides;
  return {result};
}
TPU_RULE({.op = "linalg_matrix_exp", .lower = &LinalgMatrixExp, .shape = &LinalgMatrixExpShape});

}  // namespace
}  // namespace torch_tpu::lowering
