// Functions of one operand. Special functions are in special.cpp, activations in activation.cpp.

#include <c10/util/Exception.h>

#include <cmath>
#include <limits>

#include "lowering/elementwise.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: rules read like the mathematics

constexpr double kPi = 3.14159265358979323846;
constexpr double kLn2 = 0.69314718055994530942;
constexpr double kLn10 = 2.30258509299404568402;

Value Self(const Call& c) { return Convert(c.tensor("self"), c.result().dtype); }

// --- the real and complex functions: computed in the result's compute type

Value Exp2(Value x) {
  if (IsComplex(x.dtype())) return Exp(Multiply(x, ConstantLike(x, kLn2)));
  return Power(ConstantLike(x, 2), x);
}

// Parts of a complex logarithm are scaled one by one, for an infinite one times 0 is NaN.
Value LogInBase(Value x, double ln) {
  const Value log = Log(x);
  const auto scaled = [&](Value part) { return Divide(part, ConstantLike(part, ln)); };
  return IsComplex(x.dtype()) ? Complex(scaled(Real(log)), scaled(Imag(log))) : scaled(log);
}

Value Log2(Value x) { return LogInBase(x, kLn2); }
Value Log10(Value x) { return LogInBase(x, kLn10); }

// exp(|x|) as a square: half of it would be exp(|x| - ln 2) otherwise, whose rounded argument costs
// as many units in the last place as |x| has leading bits.
struct HalvesOfExp {
  Value rising, falling;  // exp(|x|) / 2 and exp(-|x|) / 2
};

HalvesOfExp HalveExp(Value x) {
  const Value half = ConstantLike(x, 0.5);
  const Value root = Exp(Multiply(Abs(x), half));
  const Value halved = Multiply(root, half);
  return {Multiply(halved, root), Divide(Divide(half, root), root)};
}

Value HyperbolicCosine(Value x) {
  if (IsComplex(x.dtype())) return Cosh(x);
  const auto [rising, falling] = HalveExp(x);
  return Add(rising, falling);
}

// Near 0, where the halves cancel, by XLA's own expansion.
Value HyperbolicSine(Value x) {
  if (IsComplex(x.dtype())) return Sinh(x);
  const auto [rising, falling] = HalveExp(x);
  const Value magnitude = Subtract(rising, falling);
  const Value signed_one =
      Select(Lt(x, ConstantLike(x, 0)), ConstantLike(x, -1), ConstantLike(x, 1));
  const Value near = Lt(Abs(x), ConstantLike(x, 1));
  return Select(near, Sinh(x), Multiply(magnitude, signed_one));
}

// XLA's expansion is off by a hundred units in the last place of float64 near sqrt(1/2) - 1. The
// rounding error of u = 1 + x is made good to first order (Goldberg, What Every Computer Scientist
// Should Know About Floating-Point Arithmetic, theorem 4).
Value AccurateLog1p(Value x) {
  if (x.dtype() != DType::kF64) return Log1p(x);
  const Value one = ConstantLike(x, 1);
  // The barrier keeps XLA from taking (x + 1) - 1 for x.
  const Value u = OptimizationBarrier({Add(x, one)}).front(), rest = Subtract(u, one);
  const Value inside = And(Ne(rest, ConstantLike(x, 0)), IsFinite(u));
  return Select(inside, Divide(Multiply(Log(u), x), rest), Log1p(x));
}

template <Value (*F)(Value)>
Values LowerFunction(Call& c) {
  return Result(c, F(Operand(c, "self", ResultComputeType(c))));
}

TPU_RULE({.op = "exp", .lower = &LowerFunction<&Exp>});
TPU_RULE({.op = "exp2", .lower = &LowerFunction<&Exp2>});
TPU_RULE({.op = "expm1", .lower = &LowerFunction<&Expm1>});
TPU_RULE({.op = "log", .lower = &LowerFunction<&Log>});
TPU_RULE({.op = "log2", .lower = &LowerFunction<&Log2>});
TPU_RULE({.op = "log10", .lower = &LowerFunction<&Log10>});
TPU_RULE({.op = "log1p", .lower = &LowerFunction<&AccurateLog1p>});
TPU_RULE({.op = "sqrt", .lower = &LowerFunction<&Sqrt>});
TPU_RULE({.op = "rsqrt", .lower = &LowerFunction<&Rsqrt>});
TPU_RULE({.op = "reciprocal", .lower = &LowerFunction<&Reciprocal>});
TPU_RULE({.op = "sin", .lower = &LowerFunction<&Sine>});
TPU_RULE({.op = "cos", .lower = &LowerFunction<&Cosine>});
TPU_RULE({.op = "tan", .lower = &LowerFunction<&Tan>});
TPU_RULE({.op = "asin", .lower = &LowerFunction<&Asin>});
TPU_RULE({.op = "acos", .lower = &LowerFunction<&Acos>});
TPU_RULE({.op = "atan", .lower = &LowerFunction<&Atan>});
TPU_RULE({.op = "sinh", .lower = &LowerFunction<&HyperbolicSine>});
TPU_RULE({.op = "cosh", .lower = &LowerFunction<&HyperbolicCosine>});
TPU_RULE({.op = "tanh", .lower = &LowerFunction<&Tanh>});
TPU_RULE({.op = "asinh", .lower = &LowerFunction<&Asinh>});
TPU_RULE({.op = "acosh", .lower = &LowerFunction<&Acosh>});
TPU_RULE({.op = "atanh", .lower = &LowerFunction<&Atanh>});
TPU_RULE({.op = "sigmoid", .lower = &LowerFunction<&Sigmoid>});

// --- sign and magnitude

Value Magnitude(Value x) {
  const bool has_sign = IsSigned(x.dtype()) || IsFloat(x.dtype()) || IsComplex(x.dtype());
  return has_sign ? Abs(x) : x;
}

Values LowerAbs(Call& c) { return Result(c, Magnitude(c.tensor("self"))); }

std::vector<ResultSpec> AbsShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  if (c10::isComplexType(self.dtype)) return {LikeSelf(s, c10::toRealValueType(self.dtype))};
  return SelfShape(s);
}

Values LowerNegate(Call& c) {
  const Value x = Self(c);
  return Result(c, IsUnsigned(x.dtype()) ? Subtract(ConstantLike(x, 0), x) : Negate(x));
}

// 0 for zeros of either sign and for NaN, as comparisons have it.
Value SignOf(Value x) {
  if (x.dtype() == DType::kPred) return x;
  const Value zero = ConstantLike(x, 0);
  const Value positive = Convert(Gt(x, zero), x.dtype());
  if (IsUnsigned(x.dtype())) return positive;
  return Select(Lt(x, zero), ConstantLike(x, -1), positive);
}

Values LowerSign(Call& c) { return Result(c, SignOf(Self(c))); }

Values LowerSgn(Call& c) {
  const Value x = Self(c);
  if (!IsComplex(x.dtype())) return Result(c, SignOf(x));
  const Value length = Abs(x);
  const Value zero = ConstantLike(length, 0);
  const Value direction = Divide(x, Convert(length, x.dtype()));
  return Result(c, Select(Eq(length, zero), ConstantLike(x, 0), direction));
}

Values LowerSignBit(Call& c) { return Result(c, SignBit(c, c.tensor("self"))); }

Values LowerConjugate(Call& c) { return Result(c, Conj(c.tensor("self"))); }

// The angle of a real number is 0 or pi.
Values LowerAngle(Call& c) {
  const Value self = c.tensor("self");
  if (IsComplex(self.dtype())) return Result(c, Atan2(Imag(self), Real(self)));
  const Value x = Convert(self, ResultComputeType(c));
  const Value zero = ConstantLike(x, 0);
  const Value angle = Select(Lt(x, zero), ConstantLike(x, kPi), zero);
  return Result(c, Select(IsNan(x), x, angle));
}

std::vector<ResultSpec> AngleShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  if (!c10::isComplexType(self.dtype)) return SelfFloatShape(s);
  // CPU writes those of complex numbers into a new tensor without regard to self's layout.
  return {{.dtype = c10::toRealValueType(self.dtype), .sizes = self.sizes}};
}

TPU_RULE(
    {.op = "abs", .lower = &LowerAbs, .shape = &AbsShape, .kinds = kFloat | kComplex | kInteger});
TPU_RULE({.op = "neg", .lower = &LowerNegate});
TPU_RULE({.op = "sign", .lower = &LowerSign});
TPU_RULE({.op = "sgn", .lower = &LowerSgn});
TPU_RULE({.op = "signbit", .lower = &LowerSignBit});
TPU_RULE({.op = "_conj_physical", .lower = &LowerConjugate, .shape = &SelfShape});
// For the in-place and out= forms; the functional one is composed of others.
TPU_RULE({.op = "conj_physical", .lower = &LowerConjugate, .shape = &SelfShape});
TPU_RULE({.op = "angle", .lower = &LowerAngle, .shape = &AngleShape});

// --- rounding: exact in every type, and the identity for integers

template <Value (*F)(Value)>
Values LowerRounding(Call& c) {
  const Value x = Self(c);
  return Result(c, IsFloat(x.dtype()) ? F(x) : x);
}

Value Fraction(Value x) { return Subtract(x, Trunc(x)); }

Values LowerRoundDecimals(Call& c) {
  const int64_t decimals = c.integer("decimals");
  if (decimals == 0 || !IsFloat(c.result().dtype)) return LowerRounding<&RoundNearestEven>(c);
  const Value x = Operand(c, "self", ResultComputeType(c));
  const Value scale = ConstantLike(x, std::pow(10.0, std::abs(static_cast<double>(decimals))));
  if (decimals > 0) return Result(c, Divide(RoundNearestEven(Multiply(x, scale)), scale));
  return Result(c, Multiply(RoundNearestEven(Divide(x, scale)), scale));
}

TPU_RULE({.op = "ceil", .lower = &LowerRounding<&Ceil>, .kinds = kFloat | kInteger});
TPU_RULE({.op = "floor", .lower = &LowerRounding<&Floor>, .kinds = kFloat | kInteger});
TPU_RULE({.op = "round", .lower = &LowerRounding<&RoundNearestEven>, .kinds = kFloat | kInteger});
TPU_RULE({.op = "round.decimals", .lower = &LowerRoundDecimals, .kinds = kFloat});
TPU_RULE({.op = "trunc", .lower = &LowerRounding<&Trunc>, .kinds = kFloat | kInteger});
TPU_RULE({.op = "frac", .lower = &LowerRounding<&Fraction>, .kinds = kFloat});

// --- tests for values that are not finite

Values LowerIsNan(Call& c) {
  const Value x = c.tensor("self");
  if (IsComplex(x.dtype())) return Result(c, Or(IsNan(Real(x)), IsNan(Imag(x))));
  return Result(c, IsNan(x));
}

Values LowerIsInf(Call& c) {
  const Value x = c.tensor("self");
  if (IsComplex(x.dtype())) return Result(c, Or(IsInf(Real(x)), IsInf(Imag(x))));
  return Result(c, IsInf(x));
}

template <bool kNegative>
Values LowerIsSignedInf(Call& c) {
  const Value x = c.tensor("self");
  if (!IsFloat(x.dtype())) return Result(c, IsInf(x));
  const double infinity = std::numeric_limits<double>::infinity();
  return Result(c, Eq(x, ConstantLike(x, kNegative ? -infinity : infinity)));
}

double LargestFinite(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return 65504;
    case DType::kBF16:
      return 0x1.fep127;
    case DType::kF32:
      return std::numeric_limits<float>::max();
    case DType::kF8E4M3FN:
      return 448;
    case DType::kF8E4M3FNUZ:
      return 240;
    case DType::kF8E5M2:
    case DType::kF8E5M2FNUZ:
      return 57344;
    default:
      return std::numeric_limits<double>::max();
  }
}

Value Finite(const Call& c, Value x) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double largest = LargestFinite(x.dtype());
  const auto replacement = [&](std::string_view name, double otherwise) {
    return c.has(name) ? BroadcastTo(c.scalar(name, x.dtype()), x.dims())
                       : ConstantLike(x, otherwise);
  };
  const Value nan = replacement("nan", 0);
  const Value above = replacement("posinf", largest), below = replacement("neginf", -largest);
  return Select(IsNan(x), nan,
                Select(Eq(x, ConstantLike(x, infinity)), above,
                       Select(Eq(x, ConstantLike(x, -infinity)), below, x)));
}

Values LowerNanToNum(Call& c) {
  const Value x = Self(c);
  if (IsComplex(x.dtype())) return Result(c, Complex(Finite(c, Real(x)), Finite(c, Imag(x))));
  return Result(c, IsFloat(x.dtype()) ? Finite(c, x) : x);
}

TPU_RULE({.op = "isnan", .lower = &LowerIsNan, .shape = &SelfBoolShape, .any_out_dtype = true});
TPU_RULE({.op = "isinf", .lower = &LowerIsInf, .shape = &SelfBoolShape, .any_out_dtype = true});
TPU_RULE({.op = "isposinf", .lower = &LowerIsSignedInf<false>, .any_out_dtype = true});
TPU_RULE({.op = "isneginf", .lower = &LowerIsSignedInf<true>, .any_out_dtype = true});
TPU_RULE({.op = "nan_to_num", .lower = &LowerNanToNum, .shape = &SelfShape});

// --- angles

Value ToDegrees(Value x) { return Multiply(x, ConstantLike(x, 180 / kPi)); }
Value ToRadians(Value x) { return Multiply(x, ConstantLike(x, kPi / 180)); }

std::vector<ResultSpec> DegreesShape(const ShapeCall& s) {
  TORCH_CHECK(!c10::isComplexType(s.tensor("self").dtype),
              "rad2deg is not supported for complex tensors.");
  return SelfFloatShape(s);
}

std::vector<ResultSpec> RadiansShape(const ShapeCall& s) {
  TORCH_CHECK(!c10::isComplexType(s.tensor("self").dtype),
              "deg2rad is not supported for complex tensors.");
  return SelfFloatShape(s);
}

TPU_RULE({.op = "rad2deg", .lower = &LowerFunction<&ToDegrees>, .shape = &DegreesShape});
TPU_RULE({.op = "deg2rad", .lower = &LowerFunction<&ToRadians>, .shape = &RadiansShape});

// sin(pi x) / (pi x), which is 1 at 0.
Value Sinc(Value x) {
  const Value angle = Multiply(x, ConstantLike(x, kPi));
  return Select(Eq(x, ConstantLike(x, 0)), ConstantLike(x, 1), Divide(Sine(angle), angle));
}

TPU_RULE({.op = "sinc", .lower = &LowerFunction<&Sinc>});

}  // namespace
}  // namespace torch_tpu::lowering
