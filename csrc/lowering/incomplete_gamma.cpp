// Regularized incomplete gamma functions.

#include <cmath>
#include <limits>
#include <numbers>

#include "lowering/elementwise.h"
#include "lowering/series.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: rules read like the mathematics

constexpr double kPi = std::numbers::pi;

// --- Coefficients, computed with forty digits: Chebyshev series by sampling
// the function at Chebyshev nodes.

// log(Gamma(1 + a)) / a for 0 <= a <= 5/4, in 8/5 a - 1.
constexpr double kLgamma1p[] = {
    -0.2060249505146303,    0.3342035894651765,     -0.03197254036093561,    0.004245215596515251,
    -0.000643381725809808,  0.00010452783366293018, -1.770791476978562e-05,  3.0835296380098298e-06,
    -5.474017033393513e-07, 9.856993398555524e-08,  -1.7944534745550668e-08, 3.2952869120859102e-09,
    -6.094452573373941e-10, 1.1338288338382363e-10, -2.1200495878636307e-11, 3.981350343204534e-12,
    -7.505195795335003e-13, 1.419538896389957e-13,  -2.692938476972861e-14,  5.122307874636385e-15,
    -9.766786422220764e-16, 1.8663255692381498e-16, -3.573460197646343e-17,  6.854618219772651e-18};

// Gamma of Stirling's formula over Gamma: sqrt(2 pi / a) (a/e)^a / Gamma(a) for
// a >= 1, in 2/a - 1.
constexpr double kInvGammaStar[] = {
    0.9602917381274741,      -0.03896823762489201,    0.0007830980245595887,
    3.650747909394719e-05,   -6.39955236325099e-06,   2.5086764441246126e-07,
    6.642908871454746e-08,   -1.6472719668006103e-08, 1.5226540329235268e-09,
    1.7829476780205687e-10,  -1.0223973513757191e-10, 2.1131548802841964e-11,
    -1.579766301957264e-12,  -5.892290053182131e-13,  2.9426575023920877e-13,
    -7.14483750686733e-14,   8.040214030678724e-15,   1.79571803381945e-15,
    -1.3509439033250368e-15, 4.453104004162125e-16,   -8.839215022480227e-17};

// Taylor series of eta / (lambda - 1), where eta^2 / 2 = lambda - 1 -
// log(lambda).
constexpr double kTemme[] = {1.0,
                             -0.3333333333333333,
                             0.08333333333333333,
                             -0.014814814814814815,
                             0.0011574074074074073,
                             0.0003527336860670194,
                             -0.0001787551440329218,
                             3.919263178522438e-05,
                             -2.185448510679992e-06,
                             -1.85406221071516e-06,
                             8.296711340953087e-07,
                             -1.7665952736826078e-07,
                             6.707853543401498e-09,
                             1.0261809784240309e-08,
                             -4.382036018453353e-09,
                             9.14769958223679e-10,
                             -2.5514193994946248e-11,
                             -5.830772132550426e-11,
                             2.4361948020667415e-11,
                             -5.0276692801141755e-12,
                             1.1004392031956135e-13,
                             3.371763262400985e-13,
                             -1.392388722418162e-13,
                             2.8534893807047445e-14,
                             -5.139111834242572e-16,
                             -1.9752288294349442e-15,
                             8.099521156704561e-16,
                             -1.6522531216398162e-16,
                             2.5305430097478883e-18,
                             1.1686939738559576e-17,
                             -4.770037049820485e-18,
                             9.699126059056237e-19,
                             -1.2932565538038175e-20,
                             -6.969230253185693e-20};

// lambda - 1 - log(lambda) of mu = lambda - 1 > -1, to full relative accuracy
// near 0: with r = mu / (2 + mu) it is mu r - 2 (r^3/3 + r^5/5 + ...).
Value LogDistance(Value mu, Value lambda) {
  constexpr int kTerms = 16;
  const Value half = ConstantLike(mu, 0.5);
  const Value near = Clamp(Negate(half), mu, half);
  const Value r = Divide(near, Add(near, ConstantLike(mu, 2)));
  const Value square = Square(r);
  double odd[kTerms];
  for (int i = 0; i < kTerms; ++i) odd[i] = 2.0 / (2 * i + 3);
  const Value cubes = Multiply(Multiply(r, square), Polynomial(square, odd));
  const Value series = Subtract(Multiply(near, r), cubes);
  return Select(Gt(Abs(mu), half), Subtract(mu, Log(lambda)), series);
}

// P(a, x) and Q(a, x) = 1 - P(a, x), whichever is small to full relative
// accuracy.
struct Regularized {
  Value lower, upper;
};

// For finite a, x > 0. The regions are divided as by DiDonato and Morris (ACM
// TOMS 12, 1986); for large a the uniform expansion is that of Gil, Segura and
// Temme (SIAM J. Sci. Comput. 34, 2012).
Regularized IncompleteGamma(Value a, Value x) {
  const auto constant = [&](double value) { return ConstantLike(x, value); };
  const bool wide = x.dtype() == DType::kF64;
  const Value zero = constant(0), one = constant(1);

  const Value large_a = Maximum(a, one);
  const Value mu = Divide(Subtract(x, large_a), large_a);
  const Value distance = LogDistance(mu, Divide(x, large_a));
  const Value exponent = Multiply(large_a, distance);
  const Value decay = Multiply(Exp(Negate(exponent)), Rsqrt(Multiply(large_a, constant(2 * kPi))));

  // x^a exp(-x) / Gamma(a + 1)
  const Value inverse_star = Chebyshev(Subtract(Divide(constant(2), large_a), one), kInvGammaStar);
  const Value small_a = Minimum(a, constant(1.25));
  const Value lgamma =
      Multiply(small_a, Chebyshev(Subtract(Multiply(small_a, constant(1.6)), one), kLgamma1p));
  const Value log_power = Subtract(Multiply(small_a, Log(x)), lgamma);
  const Value factor =
      Select(Lt(a, one), Exp(Subtract(log_power, x)), Multiply(decay, inverse_star));

  const Value near = And(Ge(a, constant(20)), Le(distance, constant(0.5)));
  const Value far_right = And(Not(near), And(Gt(x, constant(1.1)), Ge(x, a)));
  // Below the bound P is at least about a half.
  const Value bound = Select(Gt(x, constant(0.5)), Multiply(x, constant(1.1)),
                             Divide(constant(-0.4), Log(Minimum(x, constant(0.5)))));
  const Value corner = And(Le(x, constant(1.1)), Lt(a, bound));

  // Uniform expansion, |eta| <= 1: Q = erfc(eta sqrt(a/2)) / 2 + decay S(eta).
  // Differentiated, it gives S = sum of b_n eta^n / (1 + b_1/a) with b_(n-1) =
  // f_n + (n+1) b_(n+1) / a, f_n being the coefficients of eta / (lambda - 1).
  const Value below = Lt(mu, zero);
  const Value root = Sqrt(exponent);
  const Value eta_size = Sqrt(Add(distance, distance));
  const Value eta = Select(below, Negate(eta_size), eta_size);
  const Value inverse_a = Reciprocal(large_a);
  Value sum = zero, b_next = zero, b_after = zero;  // b_(n+1) and b_(n+2)
  const int terms = wide ? 33 : 16;
  for (int n = terms - 1; n >= 0; --n) {
    const Value carried = Multiply(Multiply(constant(n + 2), inverse_a), b_after);
    const Value b = Add(carried, constant(kTemme[n + 1]));
    sum = Add(Multiply(sum, eta), b);
    b_after = b_next;
    b_next = b;
  }
  const Value rest = Divide(Multiply(decay, sum), Add(one, Multiply(b_after, inverse_a)));  // b_1
  const Value tail = Multiply(constant(0.5), Erfc(Select(below, Negate(root), root)));
  const Value opposite = Multiply(constant(0.5), Erfc(Select(below, root, Negate(root))));
  const Value near_upper = Add(tail, rest), near_lower = Subtract(opposite, rest);

  // DLMF 8.7.1 for P, wherever nothing else holds: there x < 20 or x < a/3.
  const auto counter = [&](double first) { return Scalar(x.builder(), DType::kS32, first); };
  const auto below_limit = [&](int limit) {
    return [&, limit](const Values &v) -> Values { return {Lt(v[0], counter(limit))}; };
  };
  const Value series =
      While({counter(1), one, one}, below_limit(wide ? 53 : 33), [&](const Values &v) -> Values {
        const Value k = BroadcastTo(Convert(v[0], x.dtype()), x.dims());
        const Value term = Multiply(v[1], Divide(x, Add(a, k)));
        return {Add(v[0], counter(1)), term, Add(v[2], term)};
      })[2];
  const Value series_lower = Multiply(factor, series);

  // DLMF 8.9.2 for Q, evaluated from its end.
  const int length = wide ? 96 : 24;
  const Value safe_x = Select(far_right, x, constant(2)), safe_a = Select(far_right, a, one);
  const Value base = Subtract(safe_x, safe_a);
  const Value fraction =
      While({counter(1 - length), Add(base, constant(2 * length + 1))}, below_limit(1),
            [&](const Values &v) -> Values {
              const Value i = BroadcastTo(Convert(Negate(v[0]), x.dtype()), x.dims());
              const Value i_next = Add(i, one);
              const Value numerator = Multiply(i_next, Subtract(i_next, safe_a));
              const Value value = Subtract(Add(base, Add(i, i_next)), Divide(numerator, v[1]));
              return {Add(v[0], counter(1)), value};
            })[1];
  const Value fraction_upper = Divide(Multiply(factor, a), fraction);

  // P is x^a / Gamma(1 + a) (1 + a sum of (-x)^n / (n! (a + n)) from n = 1),
  // DLMF 8.7.1; for x and a of about 1 or less its difference from 1.
  const int corner_terms = wide ? 20 : 12;
  double coefficients[20] = {-1};
  for (int n = 1; n < corner_terms; ++n) coefficients[n] = -coefficients[n - 1] / (n + 1);
  Value alternating = zero;
  for (int n = corner_terms; n > 0; --n) {
    const Value term = Divide(constant(coefficients[n - 1]), Add(a, constant(n)));
    alternating = Multiply(x, Add(alternating, term));
  }
  const Value corner_rest = Multiply(Exp(log_power), Multiply(a, alternating));
  const Value corner_upper = Negate(Add(Expm1(log_power), corner_rest));

  const Value is_upper = Or(far_right, corner);
  const Value single =
      Select(far_right, fraction_upper, Select(corner, corner_upper, series_lower));
  const Value complement = Subtract(one, single);
  return {Select(near, near_lower, Select(is_upper, complement, single)),
          Select(near, near_upper, Select(is_upper, single, complement))};
}

template <bool kLower>
Values LowerIncompleteGamma(Call &c) {
  const DType dtype = ResultComputeType(c);
  const Value a = Operand(c, "self", dtype), x = Operand(c, "other", dtype);
  const auto constant = [&](double value) { return ConstantLike(x, value); };
  const Value zero = constant(0), nan = constant(std::numeric_limits<double>::quiet_NaN());
  const Value infinity = constant(std::numeric_limits<double>::infinity());
  const Value none = constant(kLower ? 0 : 1), all = constant(kLower ? 1 : 0);
  const Value positive = And(Gt(a, zero), Gt(x, zero));
  const Value regular = And(positive, And(Lt(a, infinity), Lt(x, infinity)));
  const Regularized values =
      IncompleteGamma(Select(regular, a, constant(1)), Select(regular, x, constant(1)));

  // The boundary cases in falling precedence from the last; with NaN, too, as
  // on CPU.
  Value result = Select(regular, kLower ? values.lower : values.upper, nan);
  result = Select(Eq(x, infinity), all, result);
  result = Select(Eq(a, infinity), Select(Eq(x, infinity), nan, none), result);
  result = Select(Eq(x, zero), none, result);
  result = Select(Eq(a, zero), Select(Gt(x, zero), all, nan), result);
  return Result(c, Select(Or(Lt(x, zero), Lt(a, zero)), nan, result));
}

TPU_RULE({.op = "igamma", .lower = &LowerIncompleteGamma<true>, .kinds = kFloat});
TPU_RULE({.op = "igammac", .lower = &LowerIncompleteGamma<false>, .kinds = kFloat});

}  // namespace
}  // namespace torch_tpu::lowering
