// Special functions: the CHLO dialect, which every plugin expands while it compiles. Not all of the
// expansions know the 8-bit floats, so these go through f32.

#include "stablehlo/builder.h"
#include "stablehlo/internal.h"

namespace torch_tpu::stablehlo {
namespace {

bool IsFloat8(DType dtype) { return IsFloat(dtype) && ByteSize(dtype) == 1; }

Value Unary(std::string_view name, Value x, bool complex = false) {
  CheckDefined(name, {x});
  if (!IsFloat(x.dtype()) && !(complex && IsComplex(x.dtype()))) {
    FailDType(name, "not defined for this dtype", {x});
  }
  if (IsFloat8(x.dtype())) return Convert(Unary(name, Convert(x, DType::kF32)), x.dtype());
  return EmitOne(name, {x}, "", x.type());
}

Value Binary(std::string_view name, Value a, Value b) {
  CheckDefined(name, {a, b});
  if (a.type() != b.type()) Fail(name, "operand types differ", {a, b});
  if (!IsFloat(a.dtype())) FailDType(name, "not defined for this dtype", {a, b});
  if (IsFloat8(a.dtype())) {
    return Convert(Binary(name, Convert(a, DType::kF32), Convert(b, DType::kF32)), a.dtype());
  }
  return EmitOne(name, {a, b}, "", a.type());
}

}  // namespace

Value Acos(Value x) { return Unary("chlo.acos", x, true); }
Value Acosh(Value x) { return Unary("chlo.acosh", x, true); }
Value Asin(Value x) { return Unary("chlo.asin", x, true); }
Value Asinh(Value x) { return Unary("chlo.asinh", x, true); }
Value Atan(Value x) { return Unary("chlo.atan", x, true); }
Value Atanh(Value x) { return Unary("chlo.atanh", x, true); }
Value BesselI1e(Value x) { return Unary("chlo.bessel_i1e", x); }
Value Cosh(Value x) { return Unary("chlo.cosh", x, true); }
Value Digamma(Value x) { return Unary("chlo.digamma", x); }
Value Erf(Value x) { return Unary("chlo.erf", x); }
Value Erfc(Value x) { return Unary("chlo.erfc", x); }
Value ErfInv(Value x) { return Unary("chlo.erf_inv", x); }
Value Lgamma(Value x) { return Unary("chlo.lgamma", x); }
Value Sinh(Value x) { return Unary("chlo.sinh", x, true); }
Value Tan(Value x) { return Unary("chlo.tan", x, true); }

Value NextAfter(Value a, Value b) { return Binary("chlo.next_after", a, b); }
Value Polygamma(Value n, Value x) { return Binary("chlo.polygamma", n, x); }
Value Zeta(Value x, Value q) { return Binary("chlo.zeta", x, q); }

}  // namespace torch_tpu::stablehlo
