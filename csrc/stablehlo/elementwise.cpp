#include <limits>

#include "stablehlo/builder.h"
#include "stablehlo/internal.h"

namespace torch_tpu::stablehlo {
namespace {

// Element types an operation accepts.
enum Kinds : unsigned {
  kBool = 1,
  kSignedInt = 2,
  kUnsignedInt = 4,
  kReal = 8,
  kCplx = 16,
  kInt = kSignedInt | kUnsignedInt,
  kInexact = kReal | kCplx,
  kArithmetic = kInt | kInexact,
  kAny = kArithmetic | kBool,
};

unsigned KindOf(DType dtype) {
  if (dtype == DType::kPred) return kBool;
  if (IsSigned(dtype)) return kSignedInt;
  if (IsUnsigned(dtype)) return kUnsignedInt;
  return IsComplex(dtype) ? kCplx : kReal;
}

void CheckKind(std::string_view name, unsigned kinds, const Values& operands) {
  if ((KindOf(operands.front().dtype()) & kinds) == 0) {
    FailDType(name, "not defined for this dtype", operands);
  }
}

Value Unary(std::string_view name, unsigned kinds, Value x) {
  CheckDefined(name, {x});
  CheckKind(name, kinds, {x});
  return EmitOne(name, {x}, "", x.type());
}

Value Binary(std::string_view name, unsigned kinds, Value a, Value b) {
  CheckDefined(name, {a, b});
  if (a.type() != b.type()) Fail(name, "operand types differ", {a, b});
  CheckKind(name, kinds, {a, b});
  return EmitOne(name, {a, b}, "", a.type());
}

Type WithDType(const Type& type, DType dtype) { return {dtype, type.dims}; }

}  // namespace

Value Abs(Value x) {
  CheckDefined("stablehlo.abs", {x});
  if (x.dtype() == DType::kPred || IsUnsigned(x.dtype())) return x;
  return EmitOne("stablehlo.abs", {x}, "", WithDType(x.type(), RealOf(x.dtype())));
}

Value Cbrt(Value x) { return Unary("stablehlo.cbrt", kReal, x); }
Value Ceil(Value x) { return Unary("stablehlo.ceil", kReal, x); }
Value Cosine(Value x) { return Unary("stablehlo.cosine", kInexact, x); }
Value CountLeadingZeros(Value x) { return Unary("stablehlo.count_leading_zeros", kInt, x); }
Value Exp(Value x) { return Unary("stablehlo.exponential", kInexact, x); }
Value Expm1(Value x) { return Unary("stablehlo.exponential_minus_one", kInexact, x); }
Value Floor(Value x) { return Unary("stablehlo.floor", kReal, x); }
Value Log(Value x) { return Unary("stablehlo.log", kInexact, x); }
Value Log1p(Value x) { return Unary("stablehlo.log_plus_one", kInexact, x); }
Value Logistic(Value x) { return Unary("stablehlo.logistic", kInexact, x); }
Value Negate(Value x) { return Unary("stablehlo.negate", kArithmetic, x); }
Value Not(Value x) { return Unary("stablehlo.not", kInt | kBool, x); }
Value PopulationCount(Value x) { return Unary("stablehlo.popcnt", kInt, x); }
Value RoundNearestAfz(Value x) { return Unary("stablehlo.round_nearest_afz", kReal, x); }
Value RoundNearestEven(Value x) { return Unary("stablehlo.round_nearest_even", kReal, x); }
Value Rsqrt(Value x) { return Unary("stablehlo.rsqrt", kInexact, x); }
Value Sine(Value x) { return Unary("stablehlo.sine", kInexact, x); }
Value Sqrt(Value x) { return Unary("stablehlo.sqrt", kInexact, x); }
Value Tanh(Value x) { return Unary("stablehlo.tanh", kInexact, x); }

Value Sign(Value x) {
  CheckDefined("stablehlo.sign", {x});
  if (x.dtype() == DType::kPred) return x;
  if (IsUnsigned(x.dtype())) return Convert(Ne(x, ConstantLike(x, 0)), x.dtype());
  return Unary("stablehlo.sign", kSignedInt | kInexact, x);
}

Value Real(Value x) {
  CheckDefined("stablehlo.real", {x});
  if (!IsComplex(x.dtype())) return x;
  return EmitOne("stablehlo.real", {x}, "", WithDType(x.type(), RealOf(x.dtype())));
}

Value Imag(Value x) {
  CheckDefined("stablehlo.imag", {x});
  if (!IsComplex(x.dtype())) return ConstantLike(x, 0);
  return EmitOne("stablehlo.imag", {x}, "", WithDType(x.type(), RealOf(x.dtype())));
}

Value Conj(Value x) {
  CheckDefined("conj", {x});
  if (!IsComplex(x.dtype())) return x;
  return Complex(Real(x), Negate(Imag(x)));
}

Value Complex(Value real, Value imag) {
  constexpr std::string_view kName = "stablehlo.complex";
  CheckDefined(kName, {real, imag});
  if (real.type() != imag.type()) Fail(kName, "operand types differ", {real, imag});
  if (real.dtype() != DType::kF32 && real.dtype() != DType::kF64) {
    FailDType(kName, "not defined for this dtype", {real, imag});
  }
  return EmitOne(kName, {real, imag}, "", WithDType(real.type(), ComplexOf(real.dtype())));
}

Value Add(Value a, Value b) { return Binary("stablehlo.add", kAny, a, b); }
Value And(Value a, Value b) { return Binary("stablehlo.and", kInt | kBool, a, b); }
Value Atan2(Value a, Value b) { return Binary("stablehlo.atan2", kInexact, a, b); }
Value Divide(Value a, Value b) { return Binary("stablehlo.divide", kArithmetic, a, b); }
Value Maximum(Value a, Value b) { return Binary("stablehlo.maximum", kAny & ~kCplx, a, b); }
Value Minimum(Value a, Value b) { return Binary("stablehlo.minimum", kAny & ~kCplx, a, b); }
Value Multiply(Value a, Value b) { return Binary("stablehlo.multiply", kAny, a, b); }
Value Or(Value a, Value b) { return Binary("stablehlo.or", kInt | kBool, a, b); }
Value Power(Value a, Value b) { return Binary("stablehlo.power", kArithmetic, a, b); }
Value Remainder(Value a, Value b) {
  return Binary("stablehlo.remainder", kArithmetic & ~kCplx, a, b);
}
Value ShiftLeft(Value a, Value b) { return Binary("stablehlo.shift_left", kInt, a, b); }
Value ShiftRightArithmetic(Value a, Value b) {
  return Binary("stablehlo.shift_right_arithmetic", kInt, a, b);
}
Value ShiftRightLogical(Value a, Value b) {
  return Binary("stablehlo.shift_right_logical", kInt, a, b);
}
Value Subtract(Value a, Value b) { return Binary("stablehlo.subtract", kArithmetic, a, b); }
Value Xor(Value a, Value b) { return Binary("stablehlo.xor", kInt | kBool, a, b); }

Value Compare(Value a, Value b, Direction direction, bool total_order) {
  constexpr std::string_view kName = "stablehlo.compare";
  constexpr std::string_view kDirections[] = {"EQ", "NE", "GE", "GT", "LE", "LT"};
  CheckDefined(kName, {a, b});
  if (a.type() != b.type()) Fail(kName, "operand types differ", {a, b});
  const DType dtype = a.dtype();
  if (IsComplex(dtype) && direction != Direction::kEq && direction != Direction::kNe) {
    FailDType(kName, "complex numbers have no order", {a, b});
  }
  std::string attributes = "comparison_direction = #stablehlo<comparison_direction ";
  attributes.append(kDirections[static_cast<int>(direction)]);
  attributes.append(">, compare_type = #stablehlo<comparison_type ");
  if (IsFloat(dtype)) {
    attributes.append(total_order ? "TOTALORDER" : "FLOAT");
  } else if (IsComplex(dtype)) {
    attributes.append("FLOAT");
  } else {
    attributes.append(IsSigned(dtype) ? "SIGNED" : "UNSIGNED");
  }
  attributes.push_back('>');
  return EmitOne(kName, {a, b}, attributes, WithDType(a.type(), DType::kPred));
}

Value Eq(Value a, Value b) { return Compare(a, b, Direction::kEq); }
Value Ne(Value a, Value b) { return Compare(a, b, Direction::kNe); }
Value Ge(Value a, Value b) { return Compare(a, b, Direction::kGe); }
Value Gt(Value a, Value b) { return Compare(a, b, Direction::kGt); }
Value Le(Value a, Value b) { return Compare(a, b, Direction::kLe); }
Value Lt(Value a, Value b) { return Compare(a, b, Direction::kLt); }

Value IsNan(Value x) {
  CheckDefined("is_nan", {x});
  if (IsComplex(x.dtype())) return Or(IsNan(Real(x)), IsNan(Imag(x)));
  if (!IsFloat(x.dtype())) return x.builder().ConstantInt({DType::kPred, x.dims()}, 0);
  return Ne(x, x);
}

Value IsInf(Value x) {
  CheckDefined("is_inf", {x});
  if (IsComplex(x.dtype())) return Or(IsInf(Real(x)), IsInf(Imag(x)));
  const bool has_infinity = IsFloat(x.dtype()) && x.dtype() != DType::kF8E4M3FN &&
                            x.dtype() != DType::kF8E4M3FNUZ && x.dtype() != DType::kF8E5M2FNUZ;
  if (!has_infinity) return x.builder().ConstantInt({DType::kPred, x.dims()}, 0);
  return Eq(Abs(x), ConstantLike(x, std::numeric_limits<double>::infinity()));
}

Value IsFinite(Value x) {
  CheckDefined("stablehlo.is_finite", {x});
  if (IsComplex(x.dtype())) return And(IsFinite(Real(x)), IsFinite(Imag(x)));
  if (!IsFloat(x.dtype())) return x.builder().ConstantInt({DType::kPred, x.dims()}, 1);
  return EmitOne("stablehlo.is_finite", {x}, "", WithDType(x.type(), DType::kPred));
}

Value Select(Value predicate, Value on_true, Value on_false) {
  constexpr std::string_view kName = "stablehlo.select";
  const Values operands = {predicate, on_true, on_false};
  CheckDefined(kName, operands);
  if (predicate.dtype() != DType::kPred) Fail(kName, "the predicate is not i1", operands);
  if (predicate.rank() != 0 && predicate.dims() != on_true.dims()) {
    Fail(kName, "the predicate's shape differs from the operands'", operands);
  }
  if (on_true.type() != on_false.type()) Fail(kName, "operand types differ", operands);
  return EmitOne(kName, operands, "", on_true.type());
}

Value Clamp(Value low, Value x, Value high) {
  constexpr std::string_view kName = "stablehlo.clamp";
  const Values operands = {low, x, high};
  CheckDefined(kName, operands);
  if (IsComplex(x.dtype())) FailDType(kName, "complex numbers have no order", operands);
  for (Value bound : {low, high}) {
    if (bound.dtype() != x.dtype() || (bound.rank() != 0 && bound.dims() != x.dims())) {
      Fail(kName, "a bound has neither the operand's type nor is it 0-d of its dtype", operands);
    }
  }
  return EmitOne(kName, operands, "", x.type());
}

}  // namespace torch_tpu::stablehlo
