// Special functions: error, gamma, zeta and normal-distribution functions.

#include <c10/util/Exception.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "lowering/elementwise.h"
#include "lowering/series.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: rules read like the mathematics

constexpr double kPi = 3.14159265358979323846;
constexpr double kSqrtHalf = 0.70710678118654752440;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// --- Chebyshev series, computed with forty digits by sampling the function at Chebyshev nodes; the
// coefficient of T0 first.

// (1 + 2x) exp(x^2) erfc(x) for x >= 0, in (x - 3.75) / (x + 3.75).
constexpr double kErfcx[] = {
    1.1775789345674017,      -0.004590054580646478,   -0.08424913336651792,
    0.05920993999819189,     -0.026658668435305753,   0.009074997670705265,
    -0.002413163540417608,   0.0004907758365258086,   -6.916973302501207e-05,
    4.13902798607301e-06,    7.74038306619849e-07,    -2.1886401049234397e-07,
    1.076499946567091e-08,   4.521959811218287e-09,   -7.754400208831351e-10,
    -6.318088340886683e-11,  2.868795010930672e-11,   1.945586854578067e-13,
    -9.654696748433017e-13,  3.252548148153809e-14,   3.3478119482926526e-14,
    -1.8645628803538344e-15, -1.2507950529972538e-15, 7.418235264302923e-17,
    5.0681489128904525e-17,  -2.2370565754165577e-18, -2.187342858327101e-18};

// -z ndtri(exp(-1 / (2 z^2))) for 1/8 <= z <= 1/2, z mapped to [-1, 1].
constexpr double kQuantileMiddle[] = {
    0.7687028034853628,      -0.2021824077380024,     -0.01691895695140026,
    0.0012803284271976428,   -0.00013819710096373057, 1.8872501873612064e-05,
    -3.121582431441319e-06,  5.954078515812705e-07,   -1.247743486438262e-07,
    2.7787432771613413e-08,  -6.4602481999178785e-09, 1.5545320496615192e-09,
    -3.8534186074301767e-10, 9.804000825097185e-11,   -2.5513546716460813e-11,
    6.76914674955325e-12,    -1.825788310098047e-12,  4.994567392194635e-13,
    -1.3831351293885759e-13, 3.871769693189055e-14,   -1.0942503304770965e-14,
    3.11931169177768e-15,    -8.961325873595234e-16,  2.5926415598590646e-16,
    -7.549088027147675e-17,  2.2109924567692728e-17};

// The same for 1/64 <= z <= 1/8.
constexpr double kQuantileFar[] = {
    0.9789637985073517,      -0.02331728471341135,    -0.0032967077684396178,
    0.00019527589461031605,  -2.3638224355416938e-05, 4.322756300356993e-06,
    -9.922511189320502e-07,  2.623678937573442e-07,   -7.641123202559587e-08,
    2.3859236350913218e-08,  -7.851128395384474e-09,  2.6913738160292572e-09,
    -9.533823468144203e-10,  3.4693465190503024e-10,  -1.2911821848394588e-10,
    4.8977821725174397e-11,  -1.8884791644012733e-11, 7.385614860658699e-12,
    -2.9245455600385027e-12, 1.1708379349793273e-12,  -4.733425393444117e-13,
    1.930415775931492e-13,   -7.934966380371684e-14,  3.284991066701539e-14,
    -1.368793874273754e-14,  5.737370539648091e-15,   -2.4179386446559204e-15,
    1.024111454915173e-15,   -4.357650270046944e-16,  1.8621418564279757e-16};

// lgamma(x) / ((x - 1)(x - 2)) for 0.5 <= x <= 3, x mapped to [-1, 1].
constexpr double kLgammaNearZeros[] = {
    0.49691964962412824,   -0.18983770295364126,   0.051642363278249137,   -0.01620888582719529,
    0.0054808687569011956, -0.0019373470781938533, 0.00070489100820355804, -0.00026169697337740817,
    9.8611305655192485e-5, -3.7584856908988405e-5, 1.4455839828556131e-5,  -5.6014342781194402e-6,
    2.1839963102639328e-6, -8.560510993494189e-7,  3.3707703487176756e-7,  -1.3325698991082196e-7,
    5.2866234217598787e-8, -2.1039026610571943e-8, 8.3963461159944584e-9,  -3.3593279703588834e-9,
    1.347128417758247e-9,  -5.4134135850816614e-10};

// erfinv(x) / x in w = -log(1 - x^2): in w - 2.5 for w < 5, in sqrt(w) - 3 beyond. M. Giles,
// Approximating the erfinv function, GPU Computing Gems Jade Edition, 2011: single precision.
constexpr double kErfInvMiddle[] = {1.50140941,     0.246640727,    -0.00417768164,
                                    -0.00125372503, 0.00021858087,  -4.39150654e-06,
                                    -3.5233877e-06, 3.43273939e-07, 2.81022636e-08};
constexpr double kErfInvTail[] = {2.83297682,    1.00167406,     0.00943887047,
                                  -0.0076224613, 0.00573950773,  -0.00367342844,
                                  0.00134934322, 0.000100950558, -0.000200214257};

template <Value (*F)(Value)>
Values LowerSpecial(Call& c) {
  return Result(c, F(Operand(c, "self", ResultComputeType(c))));
}

// --- error functions

// exp(x^2) erfc(x) for x >= 0.
Value ErfcxRight(Value x) {
  const Value one = ConstantLike(x, 1), pole = ConstantLike(x, 3.75);
  // (x - 3.75) / (x + 3.75) in a form that survives infinity.
  const Value y = Subtract(one, Divide(ConstantLike(x, 7.5), Add(x, pole)));
  return Divide(Chebyshev(y, kErfcx), Add(one, Add(x, x)));
}

// Left of 0 by reflection.
Value Erfcx(Value x) {
  const Value right = ErfcxRight(Abs(x));
  const Value square = Exp(Square(x));
  const Value left = Subtract(Add(square, square), right);
  return Select(Lt(x, ConstantLike(x, 0)), left, right);
}

// float32's tail is exp(-x^2) erfcx(x). The square's rounding error would become x^2 units of the
// result, so x is split into high, whose square is exact, and the rest: x^2 = high^2 + (x - high)
// (x + high), as in W. J. Cody, Rational Chebyshev Approximations for the Error Function, 1969.
Value AccurateErfc(Value x) {
  const Value middle = Erfc(x);
  if (x.dtype() != DType::kF32) return middle;
  // Beyond, the result is 0.
  const Value far = Minimum(x, ConstantLike(x, 12));
  const Value high = x.builder()
                         .Emit("stablehlo.reduce_precision", {far},
                               "exponent_bits = 8 : i32, mantissa_bits = 11 : i32", {far.type()})
                         .front();
  const Value rest = Multiply(Subtract(far, high), Add(far, high));
  // In this order: XLA adds the exponents of neighbouring exponentials, and nothing on the way is
  // smaller than the result.
  const Value tail =
      Multiply(Exp(Negate(Square(high))), Multiply(Exp(Negate(rest)), ErfcxRight(far)));
  return Select(Gt(x, ConstantLike(x, 1)), tail, middle);
}

// 1 - x^2 as a product, whose factors near 1 are exact: x^2 would be rounded where little is left.
Value AccurateErfInv(Value x) {
  if (x.dtype() != DType::kF32) return ErfInv(x);
  const Value one = ConstantLike(x, 1);
  const Value w = Negate(Log(Multiply(Subtract(one, x), Add(one, x))));
  const Value middle = Polynomial(Subtract(w, ConstantLike(x, 2.5)), kErfInvMiddle);
  const Value tail = Polynomial(Subtract(Sqrt(w), ConstantLike(x, 3)), kErfInvTail);
  const Value ratio = Select(Lt(w, ConstantLike(x, 5)), middle, tail);
  const Value end = Eq(Abs(x), one);
  return Multiply(Select(end, ConstantLike(x, kInfinity), ratio), x);
}

// log of the normal distribution function; far left of 0, where that vanishes, through erfcx.
Value LogNdtr(Value x) {
  const Value half = ConstantLike(x, 0.5);
  const Value t = Multiply(x, ConstantLike(x, kSqrtHalf));
  const Value left = Subtract(Log(Multiply(Erfcx(Negate(t)), half)), Square(t));
  const Value right = Log1p(Negate(Multiply(Erfc(t), half)));
  return Select(Lt(x, ConstantLike(x, -1)), left, right);
}

// Quantile of the normal distribution: through erfinv in the middle, in each tail a series in
// z = 1 / sqrt(-2 log p) of the tail's probability.
Value Ndtri(Value p) {
  const Value zero = ConstantLike(p, 0), one = ConstantLike(p, 1), half = ConstantLike(p, 0.5);
  const Value centred = Subtract(p, half);
  const Value middle =
      Multiply(AccurateErfInv(Add(centred, centred)), ConstantLike(p, 1 / kSqrtHalf));
  const Value upper = Gt(p, half);
  const Value tail = Select(upper, Subtract(one, p), p);
  const Value x = Sqrt(Multiply(ConstantLike(p, -2), Log(tail)));
  const Value z = Reciprocal(x);
  const auto series = [&](std::span<const double> coefficients, double low, double high) {
    const Value y =
        Divide(Subtract(Add(z, z), ConstantLike(z, low + high)), ConstantLike(z, high - low));
    return Chebyshev(y, coefficients);
  };
  const Value ratio = Select(Lt(x, ConstantLike(x, 8)), series(kQuantileMiddle, 0.125, 0.5),
                             series(kQuantileFar, 0.015625, 0.125));
  const Value distance = Multiply(x, ratio);
  const Value outer = Select(upper, distance, Negate(distance));
  const Value near = Lt(Abs(centred), ConstantLike(p, 0.36));
  Value quantile = Select(near, middle, outer);
  quantile = Select(Eq(p, zero), ConstantLike(p, -kInfinity), quantile);
  quantile = Select(Eq(p, one), ConstantLike(p, kInfinity), quantile);
  const Value outside = Or(Lt(p, zero), Gt(p, one));
  return Select(outside, ConstantLike(p, kNan), quantile);
}

TPU_RULE({.op = "erf", .lower = &LowerSpecial<&Erf>, .kinds = kFloat});
TPU_RULE({.op = "erfc", .lower = &LowerSpecial<&AccurateErfc>, .kinds = kFloat});
TPU_RULE({.op = "erfinv", .lower = &LowerSpecial<&AccurateErfInv>, .kinds = kFloat});
TPU_RULE({.op = "special_erfcx", .lower = &LowerSpecial<&Erfcx>, .kinds = kFloat});
TPU_RULE({.op = "special_log_ndtr", .lower = &LowerSpecial<&LogNdtr>, .kinds = kFloat});
TPU_RULE({.op = "special_ndtri", .lower = &LowerSpecial<&Ndtri>, .kinds = kFloat});

// --- gamma and zeta functions

// In float32 right of 0 better than XLA's. Next to the zeros at 1 and 2 a product, whose factors x
// - 1 and x - 2 are exact; below 1/2 by lgamma(x + 1) - log x; from 3 on Stirling's series, DLMF
// 5.11.1, with its large terms gathered.
Value AccurateLgamma(Value x) {
  const Value left = Lgamma(x);
  if (x.dtype() != DType::kF32) return left;
  const auto constant = [&](double value) { return ConstantLike(x, value); };
  const Value log = Log(x), small = Lt(x, constant(0.5));
  const Value z = Select(small, Add(x, constant(1)), x);
  const Value y = Multiply(Subtract(z, constant(1.75)), constant(0.8));
  const Value zeros = Multiply(Subtract(z, constant(1)), Subtract(z, constant(2)));
  const Value product = Multiply(zeros, Chebyshev(y, kLgammaNearZeros));
  const Value near = Select(small, Subtract(product, log), product);

  const Value inverse = Reciprocal(x), square = Square(inverse);
  Value series = Subtract(constant(1.0 / 1260), Multiply(square, constant(1.0 / 1680)));
  series = Subtract(constant(1.0 / 360), Multiply(square, series));
  series = Multiply(inverse, Subtract(constant(1.0 / 12), Multiply(square, series)));
  const Value large = Multiply(Subtract(x, constant(0.5)), Subtract(log, constant(1)));
  const Value far = Add(large, Add(constant(0.41893853320467274), series));
  const Value right = Select(Lt(x, constant(3)), near, far);
  return Select(Gt(x, constant(0)), right, left);
}

// At 0 the pole's sign is that opposite to the zero's.
Values LowerDigamma(Call& c) {
  const Value x = Operand(c, "self", ResultComputeType(c));
  const Value pole = CopySign(c, ConstantLike(x, kInfinity), Negate(x));
  return Result(c, Select(Eq(x, ConstantLike(x, 0)), pole, Digamma(x)));
}

// Shifted up by six, where the asymptotic series holds; reflected left of 1/2.
Value Trigamma(Value x) {
  const auto constant = [&](double value) { return ConstantLike(x, value); };
  const Value reflect = Lt(x, constant(0.5));
  const Value one = constant(1);
  Value z = Select(reflect, Subtract(one, x), x);
  Value sum = constant(0);
  for (int i = 0; i < 6; ++i) {
    sum = Add(sum, Reciprocal(Square(z)));
    z = Add(z, one);
  }
  const Value inverse = Reciprocal(z), square = Square(inverse);
  Value series = Subtract(constant(1.0 / 30), Multiply(square, constant(1.0 / 42)));
  series = Subtract(constant(1.0 / 6), Multiply(square, series));
  series = Add(one, Add(Multiply(inverse, constant(0.5)), Multiply(square, series)));
  const Value direct = Add(sum, Multiply(series, inverse));
  const Value sine = Sine(Multiply(x, constant(kPi)));
  const Value reflected = Subtract(Divide(constant(kPi * kPi), Square(sine)), direct);
  return Select(reflect, reflected, direct);
}

// A running sum and what its roundings have lost (Knuth's two-sum).
struct Sum {
  Value high, low;

  Sum Plus(Value term) const {
    const Value total = Add(high, term), added = Subtract(total, high);
    const Value lost = Add(Subtract(high, Subtract(total, added)), Subtract(term, added));
    return {total, Add(low, lost)};
  }
  Value Total() const { return Select(IsFinite(high), Add(high, low), high); }
};

// What the terms from w on add to Hurwitz zeta, w >= 9: the Euler-Maclaurin formula, DLMF 25.11.5.
Value ZetaTail(Value x, Value w) {
  constexpr double kBernoulli[] = {
      1.0 / 6, -1.0 / 30,     1.0 / 42,      -1.0 / 30,       5.0 / 66,       -691.0 / 2730,
      7.0 / 6, -3617.0 / 510, 43867.0 / 798, -174611.0 / 330, 854513.0 / 138, -236364091.0 / 2730};
  const bool wide = x.dtype() == DType::kF64;
  const auto constant = [&](double value) { return ConstantLike(x, value); };
  const Value power = Power(w, Negate(x));
  // Beyond, the power is 0; the factors must not overflow.
  const Value exponent = Minimum(x, constant(wide ? 400 : 60));
  const Value inverse = Reciprocal(w), square = Square(inverse);
  Value sum = Add(Divide(w, Subtract(exponent, constant(1))), constant(0.5));
  Value rising = Multiply(exponent, inverse);
  double factorial = 2;
  for (int k = 1; k <= (wide ? 12 : 6); ++k) {
    sum = Add(sum, Multiply(rising, constant(kBernoulli[k - 1] / factorial)));
    const Value next = Add(exponent, constant(2 * k - 1));
    rising = Multiply(Multiply(rising, square), Multiply(next, Add(next, constant(1))));
    factorial *= (2 * k + 1) * (2 * k + 2);
  }
  return Multiply(power, sum);
}

// Hurwitz zeta, with the poles at q = 0, -1, -2, ... for real exponents above 1.
Value HurwitzZeta(Value x, Value q) {
  const Value zero = ConstantLike(x, 0), one = ConstantLike(x, 1);
  const Value infinity = ConstantLike(x, kInfinity);
  const Value pole = Or(Eq(x, one), And(Le(q, zero), Eq(q, Floor(q))));
  const auto term = [&](Value at) { return Power(at, Negate(x)); };
  // Terms left of zero are added one by one: those of odd exponents nearly cancel those to the
  // right.
  const auto left = [](Value at) {
    const Value near = Gt(at, ConstantLike(at, -0x1p24));
    return And(And(Lt(at, ConstantLike(at, 0)), near), Ne(at, Floor(at)));
  };
  const Values shifted = While(
      {q, zero, zero},
      [&](const Values& v) {
        std::vector<int64_t> all(v[0].rank());
        std::iota(all.begin(), all.end(), 0);
        return Values{Reduce(left(v[0]), Reduction::kOr, all)};
      },
      [&](const Values& v) {
        const Value go = left(v[0]);
        const Sum more = Sum{v[1], v[2]}.Plus(term(v[0]));
        return Values{Select(go, Add(v[0], one), v[0]), Select(go, more.high, v[1]),
                      Select(go, more.low, v[2])};
      });
  Sum sum{shifted[1], shifted[2]};
  Value at = shifted[0];
  for (int i = 0; i < 9; ++i) {
    sum = sum.Plus(term(at));
    at = Add(at, one);
  }
  const Value value = Select(pole, infinity, sum.Plus(ZetaTail(x, at)).Total());
  return Select(Lt(x, one), ConstantLike(x, kNan), value);
}

Values LowerPolygamma(Call& c) {
  const int64_t n = c.integer("n");
  if (n == 0) return LowerDigamma(c);
  const Value x = Operand(c, "self", ResultComputeType(c));
  if (n == 1) return Result(c, Trigamma(x));
  const double order = static_cast<double>(n);
  const double factor = (n % 2 != 0 ? 1 : -1) * std::tgamma(order + 1);
  return Result(c, Multiply(ConstantLike(x, factor), HurwitzZeta(ConstantLike(x, order + 1), x)));
}

Values LowerZeta(Call& c) {
  const DType dtype = ResultComputeType(c);
  return Result(c, HurwitzZeta(Operand(c, "self", dtype), Operand(c, "other", dtype)));
}

TPU_RULE({.op = "lgamma", .lower = &LowerSpecial<&AccurateLgamma>, .kinds = kFloat});
TPU_RULE({.op = "digamma", .lower = &LowerDigamma, .kinds = kFloat});
TPU_RULE({.op = "polygamma", .lower = &LowerPolygamma, .kinds = kFloat});
TPU_RULE({.op = "special_zeta", .lower = &LowerZeta, .kinds = kFloat});
TPU_RULE({.op = "special_zeta.self_scalar",
          .lower = &LowerZeta,
          .shape = &BinaryFloatShape,
          .kinds = kFloat});
TPU_RULE({.op = "special_zeta.other_scalar",
          .lower = &LowerZeta,
          .shape = &BinaryFloatShape,
          .kinds = kFloat});

// --- entropy and logit

// -x log(x), 0 at 0.
Value Entropy(Value x) {
  const Value zero = ConstantLike(x, 0);
  const Value positive = Negate(Multiply(x, Log(x)));
  const Value value =
      Select(Gt(x, zero), positive, Select(Eq(x, zero), zero, ConstantLike(x, -kInfinity)));
  return Select(IsNan(x), x, value);
}

// With eps, x is kept in [eps, 1 - eps]; a negative eps keeps nothing.
Values LowerLogit(Call& c) {
  Value x = Operand(c, "self", ResultComputeType(c));
  const Value one = ConstantLike(x, 1);
  if (c.has("eps")) {
    const Value low = Operand(c, "eps", x.dtype());
    const Value kept = Minimum(Maximum(x, low), Subtract(one, low));
    x = Select(Lt(low, ConstantLike(x, 0)), x, kept);
  }
  return Result(c, Log(Divide(x, Subtract(one, x))));
}

// NaN outside of the domain, or 0 where the forward pass was clamped.
Values LowerLogitBackward(Call& c) {
  const DType dtype = ResultComputeType(c);
  const Value grad = Operand(c, "grad_output", dtype), x = Operand(c, "self", dtype);
  const Value zero = ConstantLike(x, 0), one = ConstantLike(x, 1);
  const Value inside = Divide(grad, Multiply(x, Subtract(one, x)));
  const Value invalid = Or(Lt(x, zero), Gt(x, one));
  const Value unclamped = Select(invalid, ConstantLike(x, kNan), inside);
  if (!c.has("eps")) return Result(c, unclamped);
  const Value low = Operand(c, "eps", dtype);
  const Value kept = And(Ge(x, low), Le(x, Subtract(one, low)));
  return Result(c, Select(Lt(low, zero), unclamped, Select(kept, inside, zero)));
}

TPU_RULE({.op = "special_entr", .lower = &LowerSpecial<&Entropy>, .kinds = kFloat});
TPU_RULE({.op = "logit", .lower = &LowerLogit, .shape = &SelfFloatShape, .kinds = kFloat});
TPU_RULE({.op = "logit_backward", .lower = &LowerLogitBackward, .kinds = kFloat});

}  // namespace
}  // namespace torch_tpu::lowering
