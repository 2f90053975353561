// Arithmetic of two operands.

#include <c10/util/Exception.h>

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lowering/elementwise.h"
#include "lowering/rounding.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: rules read like the mathematics

constexpr double kLn2 = 0.69314718055994530942;

bool IsBool(DType dtype) { return dtype == DType::kPred; }
bool IsExact(DType dtype) { return IsInteger(dtype) || IsBool(dtype); }

struct Operands {
  Value a, b;
};

Operands Both(const Call& c, DType dtype, std::string_view a = "self",
              std::string_view b = "other") {
  return {Operand(c, a, dtype), Operand(c, b, dtype)};
}

Operands Both(const Call& c) { return Both(c, ResultComputeType(c)); }

// --- sums

// A number as the result's dtype holds it: where the CPU multiplies by it unrounded, it
// rounds it before it takes remainders.
Value RoundedNumber(const Call& c, std::string_view name, DType dtype) {
  const Value number = RawOperand(c, name, dtype);
  return number.rank() > 0 ? number : RoundedTo(number, c.result().dtype);
}

// The terms of a sum or a difference.
Operands Summands(const Call& c) {
  const DType dtype = ResultComputeType(c);
  return {Operand(c, "self", dtype),
          BroadcastTo(RoundedNumber(c, "other", dtype), c.result().dims)};
}

Value Scaled(const Call& c, Value x) {
  if (c.is("alpha", 1)) return x;
  const Value alpha = Operand(c, "alpha", x.dtype());
  return IsBool(x.dtype()) ? And(alpha, x) : Multiply(alpha, x);
}

Values LowerAdd(Call& c) {
  const auto [a, b] = Summands(c);
  const Value scaled = Scaled(c, b);
  return Result(c, IsBool(a.dtype()) ? Or(a, scaled) : Add(a, scaled));
}

Values LowerSubtract(Call& c) {
  const auto [a, b] = Summands(c);
  return Result(c, Subtract(a, Scaled(c, b)));
}

Values LowerReverseSubtract(Call& c) {
  const auto [a, b] = Summands(c);
  return Result(c, Subtract(b, Scaled(c, a)));
}

// What is multiplied or divided by. The CPU does not round a number, which it does to all other
// operands of float16 and bfloat16 results.
Value Factor(const Call& c, DType dtype) {
  const bool number = c.spec().argument("other").kind == ArgumentSpec::Kind::kTensor &&
                      c.tensor("other").rank() == 0;
  if (!number) return Operand(c, "other", dtype);
  return BroadcastTo(Convert(c.tensor("other"), dtype), c.result().dims);
}

Values LowerMultiply(Call& c) {
  const DType dtype = ResultComputeType(c);
  const Value a = Operand(c, "self", dtype), b = Factor(c, dtype);
  return Result(c, IsBool(a.dtype()) ? And(a, b) : Multiply(a, b));
}

void CheckAlpha(const ShapeCall& s, c10::ScalarType dtype) {
  const c10::IValue& alpha = s.argument("alpha");
  TORCH_CHECK(!alpha.isBool() || dtype == c10::ScalarType::Bool,
              "Boolean alpha only supported for Boolean results.");
  TORCH_CHECK(
      c10::isFloatingType(dtype) || c10::isComplexType(dtype) || alpha.isInt() || alpha.isBool(),
      "For integral input tensors, argument alpha must not be a floating point number.");
  TORCH_CHECK(c10::isComplexType(dtype) || !alpha.isComplexDouble(),
              "For non-complex input tensors, argument alpha must not be a complex number.");
}

std::vector<ResultSpec> SumShape(const ShapeCall& s) {
  std::vector<ResultSpec> results = BinaryShape(s);
  CheckAlpha(s, results[0].dtype);
  return results;
}

bool IsBoolArgument(const ShapeCall& s, std::string_view name) {
  const std::vector<ShapeTensor>& tensors = s.tensors(name);
  if (!tensors.empty() && tensors.front().defined) {
    return tensors.front().dtype == c10::ScalarType::Bool;
  }
  return s.argument(name).isBool();
}

void CheckDifference(const ShapeCall& s) {
  const bool self = IsBoolArgument(s, "self"), other = IsBoolArgument(s, "other");
  TORCH_CHECK(!self || !other,
              "Subtraction, the `-` operator, with two bool tensors is not supported. "
              "Use the `^` or `logical_xor()` operator instead.");
  TORCH_CHECK(!self && !other,
              "Subtraction, the `-` operator, with a bool tensor is not supported. "
              "If you are trying to invert a mask, use the `~` or `logical_not()` operator "
              "instead.");
}

std::vector<ResultSpec> DifferenceShape(const ShapeCall& s) {
  CheckDifference(s);
  return SumShape(s);
}

// rsub is sub with its operands exchanged, in the layout of the result too.
std::vector<ResultSpec> ReverseDifferenceShape(const ShapeCall& s) {
  CheckDifference(s);
  ResultSpec result =
      ElementwiseResult(s, {"other", "self"}, PromoteArguments(s, {"self", "other"}));
  CheckAlpha(s, result.dtype);
  return {result};
}

TPU_RULE({.op = "add.Tensor",
          .lower = &LowerAdd,
          .specialize = {{"alpha", {1}}},
          .scalars_fit = Rule::Fits::kResult});
TPU_RULE({.op = "add.Scalar",
          .lower = &LowerAdd,
          .shape = &SumShape,
          .specialize = {{"alpha", {1}}},
          .scalars_fit = Rule::Fits::kResult});
TPU_RULE({.op = "sub.Tensor",
          .lower = &LowerSubtract,
          .specialize = {{"alpha", {1}}},
          .scalars_fit = Rule::Fits::kResult});
TPU_RULE({.op = "sub.Scalar",
          .lower = &LowerSubtract,
          .shape = &DifferenceShape,
          .specialize = {{"alpha", {1}}},
          .scalars_fit = Rule::Fits::kResult});
TPU_RULE({.op = "rsub.Tensor",
          .lower = &LowerReverseSubtract,
          .shape = &ReverseDifferenceShape,
          .specialize = {{"alpha", {1}}},
          .scalars_fit = Rule::Fits::kResult});
TPU_RULE({.op = "rsub.Scalar",
          .lower = &LowerReverseSubtract,
          .shape = &ReverseDifferenceShape,
          .specialize = {{"alpha", {1}}},
          .scalars_fit = Rule::Fits::kResult});
TPU_RULE({.op = "mul.Tensor", .lower = &LowerMultiply});
TPU_RULE({.op = "mul.Scalar", .lower = &LowerMultiply, .shape = &BinaryShape});

// --- quotients and remainders

// The divisor in its own shape, so that a number is checked once and not once an element.
Value Divisor(Call& c, DType dtype) {
  const Value b = RoundedNumber(c, "other", dtype);
  if (IsInteger(dtype)) {
    c.Check(Ne(b, ConstantLike(b, 0)), "ZeroDivisionError", Call::ErrorKind::kRuntime);
  }
  return BroadcastTo(b, c.result().dims);
}

Value Dividend(Call& c, DType dtype) {
  return BroadcastTo(RoundedNumber(c, "self", dtype), c.result().dims);
}

// Bool has no quotient; as a small integer it has.
DType DivisionType(const Call& c) {
  const DType dtype = ResultComputeType(c);
  return IsBool(dtype) ? DType::kU8 : dtype;
}

Value FloorQuotient(const Call& c, Value a, Value b) {
  const Value zero = ConstantLike(a, 0), one = ConstantLike(a, 1);
  const Value quotient = Divide(a, b);
  const Value remainder = Remainder(a, b);
  if (IsUnsigned(a.dtype())) return quotient;
  const Value below = And(Ne(remainder, zero), Xor(Lt(remainder, zero), Lt(b, zero)));
  if (IsInteger(a.dtype())) return Select(below, Subtract(quotient, one), quotient);
  // Floor of the rounded quotient would be one too high where it rounds up to an integer: divide
  // what is left without the remainder, which is an integer up to rounding.
  Value exact = Divide(Subtract(a, remainder), b);
  exact = Select(below, Subtract(exact, one), exact);
  Value floor = Floor(exact);
  const Value rounded_down = Gt(Subtract(exact, floor), ConstantLike(a, 0.5));
  floor = Select(rounded_down, Add(floor, one), floor);
  floor = Select(Eq(exact, zero), CopySign(c, zero, quotient), floor);
  return Select(Eq(b, zero), quotient, floor);
}

Values LowerDivide(Call& c) {
  const DType dtype = ResultComputeType(c);
  return Result(c, Divide(Operand(c, "self", dtype), Factor(c, dtype)));
}

Values LowerFloorDivide(Call& c) {
  const DType dtype = DivisionType(c);
  return Result(c, FloorQuotient(c, Dividend(c, dtype), Divisor(c, dtype)));
}

Values LowerDivideMode(Call& c) {
  const std::string mode = c.string("rounding_mode");
  if (mode.empty()) return LowerDivide(c);
  if (mode == "floor") return LowerFloorDivide(c);
  const DType dtype = DivisionType(c);
  // The quotient is rounded to the result's type before it is cut.
  const Value quotient = Divide(Operand(c, "self", dtype), Divisor(c, dtype));
  return Result(c, Trunc(Convert(quotient, c.result().dtype)));
}

Values LowerRemainder(Call& c) {
  const DType dtype = DivisionType(c);
  return Result(c, PythonRemainder(Dividend(c, dtype), Divisor(c, dtype)));
}

Values LowerFmod(Call& c) {
  const DType dtype = DivisionType(c);
  return Result(c, Remainder(Dividend(c, dtype), Divisor(c, dtype)));
}

std::vector<ResultSpec> DivideModeShape(const ShapeCall& s) {
  const c10::IValue& mode = s.argument("rounding_mode");
  if (mode.isNone()) return BinaryFloatShape(s);
  const std::string& name = mode.toStringRef();
  TORCH_CHECK(name == "trunc" || name == "floor",
              "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '", name,
              "'");
  return BinaryShape(s);
}

TPU_RULE({.op = "div.Tensor", .lower = &LowerDivide});
TPU_RULE({.op = "div.Scalar", .lower = &LowerDivide, .shape = &BinaryFloatShape});
TPU_RULE({.op = "div.Tensor_mode", .lower = &LowerDivideMode, .kinds = kFloat | kInteger});
TPU_RULE({.op = "div.Scalar_mode",
          .lower = &LowerDivideMode,
          .shape = &DivideModeShape,
          .kinds = kFloat | kInteger});
TPU_RULE({.op = "floor_divide",
          .lower = &LowerFloorDivide,
          .shape = &BinaryShape,
          .kinds = kFloat | kInteger});
TPU_RULE({.op = "floor_divide.Scalar",
          .lower = &LowerFloorDivide,
          .shape = &BinaryShape,
          .kinds = kFloat | kInteger});
TPU_RULE({.op = "remainder.Tensor", .lower = &LowerRemainder, .kinds = kFloat | kInteger});
TPU_RULE({.op = "remainder.Scalar",
          .lower = &LowerRemainder,
          .shape = &BinaryShape,
          .kinds = kFloat | kInteger});
TPU_RULE({.op = "remainder.Scalar_Tensor",
          .lower = &LowerRemainder,
          .shape = &BinaryShape,
          .kinds = kFloat | kInteger});
TPU_RULE({.op = "fmod.Tensor", .lower = &LowerFmod, .kinds = kFloat | kInteger});
TPU_RULE(
    {.op = "fmod.Scalar", .lower = &LowerFmod, .shape = &BinaryShape, .kinds = kFloat | kInteger});

// --- powers

Value AnyOf(Value x) {
  std::vector<int64_t> all(x.rank());
  for (int i = 0; i < x.rank(); ++i) all[i] = i;
  return Reduce(x, Reduction::kOr, all);
}

// By squaring, wrapping around: XLA's own power looks at the lowest bits of an exponent only.
Value IntegerPower(Value base, Value exponent) {
  const Value one = ConstantLike(base, 1);
  const Values end = While(
      {one, base, exponent},
      [](const Values& v) -> Values { return {AnyOf(Ne(v[2], ConstantLike(v[2], 0)))}; },
      [](const Values& v) -> Values {
        const Value one = ConstantLike(v[2], 1);
        const Value odd = Eq(And(v[2], one), one);
        return {Select(odd, Multiply(v[0], v[1]), v[0]), Multiply(v[1], v[1]),
                ShiftRightLogical(v[2], one)};
      });
  return end[0];
}

// Integer powers have no fractions: of negative exponents only those of 1 and -1 are not 0.
Value PowerOf(Value a, Value b) {
  if (IsBool(a.dtype())) return Or(a, Not(b));
  if (IsComplex(a.dtype())) {
    const Value zero = ConstantLike(a, 0);
    const Value vanishes = And(Eq(a, zero), Gt(Real(b), ConstantLike(Real(b), 0)));
    return Select(vanishes, zero, Power(a, b));
  }
  if (!IsInteger(a.dtype())) return Power(a, b);
  if (IsUnsigned(a.dtype())) return IntegerPower(a, b);
  const Value zero = ConstantLike(a, 0), one = ConstantLike(a, 1), minus_one = ConstantLike(a, -1);
  const Value odd = Eq(And(b, one), one);
  const Value inverse =
      Select(Eq(a, one), one, Select(Eq(a, minus_one), Select(odd, minus_one, one), zero));
  return Select(Lt(b, zero), inverse, IntegerPower(a, Maximum(b, zero)));
}

Values LowerPower(Call& c) {
  const auto [a, b] = Both(c, ResultComputeType(c), "self", "exponent");
  return Result(c, PowerOf(a, b));
}

Values LowerPowerNumber(Call& c) {
  const Value a = Operand(c, "self", ResultComputeType(c));
  const std::optional<double> exponent = c.known("exponent");
  if (!exponent || IsBool(a.dtype())) return LowerPower(c);
  if (*exponent == 0) return Result(c, ConstantLike(a, 1));
  if (*exponent == 1) return Result(c, a);
  if (*exponent == 2) return Result(c, Square(a));
  if (*exponent == 3) return Result(c, Multiply(Square(a), a));
  if (IsExact(a.dtype())) return LowerPower(c);
  if (*exponent == 0.5) return Result(c, Sqrt(a));
  if (*exponent == -0.5) return Result(c, Reciprocal(Sqrt(a)));
  if (*exponent == -1) return Result(c, Reciprocal(a));
  if (*exponent == -2) return Result(c, Reciprocal(Square(a)));
  return LowerPower(c);
}

TPU_RULE({.op = "pow.Tensor_Tensor", .lower = &LowerPower, .kinds = kFloat | kComplex | kInteger});
TPU_RULE({.op = "pow.Scalar", .lower = &LowerPower});
TPU_RULE({.op = "pow.Tensor_Scalar",
          .lower = &LowerPowerNumber,
          .specialize = {{"exponent", {0, 1, 2, 3, 0.5, -0.5, -1, -2}}}});

// --- extrema

Value Larger(Value a, Value b) { return IsBool(a.dtype()) ? Or(a, b) : Maximum(a, b); }
Value Smaller(Value a, Value b) { return IsBool(a.dtype()) ? And(a, b) : Minimum(a, b); }

template <Value (*Extremum)(Value, Value)>
Values LowerExtremum(Call& c) {
  const auto [a, b] = Both(c, c.result().dtype);
  return Result(c, Extremum(a, b));
}

// A NaN loses against any number.
template <Value (*Extremum)(Value, Value)>
Values LowerNumericExtremum(Call& c) {
  const auto [a, b] = Both(c, c.result().dtype);
  if (!IsFloat(a.dtype())) return Result(c, Extremum(a, b));
  return Result(c, Select(IsNan(a), b, Select(IsNan(b), a, Extremum(a, b))));
}

TPU_RULE({.op = "maximum", .lower = &LowerExtremum<&Larger>});
TPU_RULE({.op = "minimum", .lower = &LowerExtremum<&Smaller>});
TPU_RULE({.op = "fmax", .lower = &LowerNumericExtremum<&Larger>});
TPU_RULE({.op = "fmin", .lower = &LowerNumericExtremum<&Smaller>});

// --- geometry and floating-point representation

Values LowerAtan2(Call& c) {
  const auto [a, b] = Both(c);
  return Result(c, Atan2(a, b));
}

// Scaled by the larger side, so that squares neither overflow nor vanish.
Values LowerHypot(Call& c) {
  const auto [a, b] = Both(c);
  const Value x = Abs(a), y = Abs(b);
  const Value large = Maximum(x, y), small = Minimum(x, y);
  const Value zero = ConstantLike(x, 0);
  const Value ratio = Select(Eq(large, zero), zero, Divide(small, large));
  const Value length = Multiply(large, Sqrt(Add(ConstantLike(x, 1), Square(ratio))));
  const Value infinity = ConstantLike(x, std::numeric_limits<double>::infinity());
  const Value infinite = Or(Eq(x, infinity), Eq(y, infinity));
  return Result(c, Select(infinite, infinity, length));
}

Values LowerCopySign(Call& c) {
  const auto [a, b] = Both(c, c.result().dtype);
  return Result(c, CopySign(c, a, b));
}

Values LowerNextAfter(Call& c) {
  const auto [a, b] = Both(c, c.result().dtype);
  return Result(c, NextAfter(a, b));
}

// NaN counts as not positive.
Values LowerHeaviside(Call& c) {
  const auto [a, values] = Both(c, c.result().dtype, "self", "values");
  if (IsBool(a.dtype())) return Result(c, Or(a, values));
  const Value zero = ConstantLike(a, 0);
  const Value step = Convert(Gt(a, zero), a.dtype());
  return Result(c, Select(Eq(a, zero), values, step));
}

// mantissa * 2**exponent with the mantissa's magnitude in [0.5, 1).
Values LowerFrexp(Call& c) {
  const DType dtype = ResultComputeType(c);
  const bool wide = dtype == DType::kF64;
  const DType bits_type = wide ? DType::kS64 : DType::kS32;
  const int mantissa_bits = wide ? 52 : 23;
  const int64_t exponent_mask = wide ? 0x7ff : 0xff;
  const int64_t bias = wide ? 1022 : 126;
  const Value x = Convert(c.tensor("self"), dtype);

  const Value bits = BitcastConvert(x, bits_type);
  const auto integer = [&](int64_t value) { return x.builder().ConstantInt(bits.type(), value); };
  const auto exponent_of = [&](Value of) {
    return And(ShiftRightLogical(of, integer(mantissa_bits)), integer(exponent_mask));
  };
  // Subnormals have no leading one: scale them into the normal range first.
  const int lift = wide ? 54 : 25;
  const Value subnormal = Eq(exponent_of(bits), integer(0));
  const Value scaled =
      Select(subnormal, Multiply(x, ConstantLike(x, static_cast<double>(int64_t{1} << lift))), x);
  const Value scaled_bits = BitcastConvert(scaled, bits_type);
  const Value raw_exponent = exponent_of(scaled_bits);
  Value exponent = Subtract(raw_exponent, integer(bias));
  exponent = Select(subnormal, Subtract(exponent, integer(lift)), exponent);
  const Value mantissa =
      BitcastConvert(Or(And(scaled_bits, integer(~(exponent_mask << mantissa_bits))),
                        integer(bias << mantissa_bits)),
                     dtype);
  const Value unchanged = Or(Eq(x, ConstantLike(x, 0)), Not(IsFinite(x)));
  return {Convert(Select(unchanged, x, mantissa), c.result(0).dtype),
          Convert(Select(unchanged, integer(0), exponent), c.result(1).dtype)};
}

std::vector<ResultSpec> FrexpShape(const ShapeCall& s) {
  TORCH_CHECK(c10::isFloatingType(s.tensor("self").dtype),
              "torch.frexp() only supports floating-point dtypes");
  return {SelfShape(s)[0], ElementwiseResult(s, {"self"}, c10::ScalarType::Int)};
}

TPU_RULE({.op = "atan2", .lower = &LowerAtan2, .kinds = kFloat});
TPU_RULE({.op = "hypot", .lower = &LowerHypot, .kinds = kFloat});
TPU_RULE({.op = "copysign.Tensor", .lower = &LowerCopySign, .kinds = kFloat});
TPU_RULE({.op = "copysign.Scalar",
          .lower = &LowerCopySign,
          .shape = &BinaryFloatShape,
          .kinds = kFloat});
TPU_RULE({.op = "nextafter", .lower = &LowerNextAfter, .kinds = kFloat});
TPU_RULE({.op = "heaviside", .lower = &LowerHeaviside});
TPU_RULE({.op = "frexp.Tensor", .lower = &LowerFrexp, .shape = &FrexpShape});

// --- logarithms

// log(exp(a) + exp(b)) in the base whose natural logarithm is `ln`.
Value LogSumOfPowers(Value a, Value b, double ln) {
  const bool natural = ln == 1;
  const Value base = ConstantLike(a, ln);
  const auto power = [&](Value x) { return Exp(natural ? x : Multiply(x, base)); };
  const auto log = [&](Value x) { return natural ? x : Divide(x, base); };
  if (IsComplex(a.dtype())) {
    const Value swap = Ge(Real(a), Real(b));
    const Value small = Select(swap, b, a), large = Select(swap, a, b);
    const Value sum = Add(large, log(Log1p(power(Subtract(small, large)))));
    const Value equal_infinities = And(Not(IsFinite(Real(small))), Eq(Real(small), Real(large)));
    const Value zero = ConstantLike(Real(a), 0);
    const Value infinite =
        Select(Lt(Real(small), zero), small, log(Log(Add(power(small), power(large)))));
    return Select(equal_infinities, infinite, sum);
  }
  const Value large = Maximum(a, b);
  const Value sum = Add(large, log(Log1p(power(Negate(Abs(Subtract(a, b)))))));
  return Select(And(IsInf(a), Eq(a, b)), a, sum);
}

template <bool kBaseTwo>
Values LowerLogAddExp(Call& c) {
  const auto [a, b] = Both(c);
  return Result(c, LogSumOfPowers(a, b, kBaseTwo ? kLn2 : 1));
}

// x * f(y), which is 0 for x = 0 whatever f(y) is, except that NaN stays NaN.
template <Value (*F)(Value)>
Values LowerTimesLog(Call& c) {
  const auto [x, y] = Both(c);
  const Value zero = ConstantLike(x, 0);
  const Value product = Select(Eq(x, zero), zero, Multiply(x, F(y)));
  return Result(c, Select(IsNan(y), y, product));
}

TPU_RULE({.op = "logaddexp", .lower = &LowerLogAddExp<false>, .kinds = kFloat | kComplex});
TPU_RULE({.op = "logaddexp2", .lower = &LowerLogAddExp<true>, .kinds = kFloat});
TPU_RULE({.op = "xlogy.Tensor", .lower = &LowerTimesLog<&Log>, .kinds = kFloat});
TPU_RULE({.op = "xlogy.Scalar_Self",
          .lower = &LowerTimesLog<&Log>,
          .shape = &BinaryFloatShape,
          .kinds = kFloat});
TPU_RULE({.op = "xlogy.Scalar_Other",
          .lower = &LowerTimesLog<&Log>,
          .shape = &BinaryFloatShape,
          .kinds = kFloat});
TPU_RULE({.op = "special_xlog1py", .lower = &LowerTimesLog<&Log1p>, .kinds = kFloat});
TPU_RULE({.op = "special_xlog1py.self_scalar",
          .lower = &LowerTimesLog<&Log1p>,
          .shape = &BinaryFloatShape,
          .kinds = kFloat});
TPU_RULE({.op = "special_xlog1py.other_scalar",
          .lower = &LowerTimesLog<&Log1p>,
          .shape = &BinaryFloatShape,
          .kinds = kFloat});

// --- number theory

Value Magnitude(Value x) { return IsSigned(x.dtype()) ? Abs(x) : x; }

Value GreatestCommonDivisor(Value a, Value b) {
  const Values end = While(
      {Magnitude(a), Magnitude(b)},
      [](const Values& v) -> Values { return {AnyOf(Ne(v[0], ConstantLike(v[0], 0)))}; },
      [](const Values& v) -> Values {
        const Value done = Eq(v[0], ConstantLike(v[0], 0));
        const Value divisor = Select(done, ConstantLike(v[0], 1), v[0]);
        return {Select(done, v[0], Remainder(v[1], divisor)), Select(done, v[1], v[0])};
      });
  return end[1];
}

Values LowerGcd(Call& c) {
  const auto [a, b] = Both(c);
  return Result(c, GreatestCommonDivisor(a, b));
}

Values LowerLcm(Call& c) {
  const auto [a, b] = Both(c);
  const Value gcd = GreatestCommonDivisor(a, b);
  const Value zero = ConstantLike(a, 0);
  const Value none = Eq(gcd, zero);
  const Value factor = Divide(a, Select(none, ConstantLike(a, 1), gcd));
  // Types narrower than int have their sign taken off before the product wraps around.
  const Value multiple = ByteSize(a.dtype()) < 4 ? Multiply(Magnitude(factor), Magnitude(b))
                                                 : Magnitude(Multiply(factor, b));
  return Result(c, Select(none, zero, multiple));
}

TPU_RULE({.op = "gcd", .lower = &LowerGcd, .kinds = kInteger});
TPU_RULE({.op = "lcm", .lower = &LowerLcm, .kinds = kInteger});

}  // namespace
}  // namespace torch_tpu::lowering
