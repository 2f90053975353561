#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "stablehlo/builder.h"
#include "stablehlo/internal.h"

namespace torch_tpu::stablehlo {
namespace {

// Bit patterns of the values a decimal literal cannot spell. Dtypes without infinity use NaN, as
// PyTorch's conversions do.
struct Special {
  uint64_t infinity, negative_infinity, nan;
  int digits;
};

Special SpecialOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return {0x7C00, 0xFC00, 0x7E00, 4};
    case DType::kBF16:
      return {0x7F80, 0xFF80, 0x7FC0, 4};
    case DType::kF64:
      return {0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 16};
    case DType::kF8E4M3FN:
      return {0x7F, 0xFF, 0x7F, 2};
    case DType::kF8E5M2:
      return {0x7C, 0xFC, 0x7F, 2};
    case DType::kF8E4M3FNUZ:
    case DType::kF8E5M2FNUZ:
      return {0x80, 0x80, 0x80, 2};
    default:
      return {0x7F800000, 0xFF800000, 0x7FC00000, 8};
  }
}

void AppendHex(std::string& text, uint64_t bits, int digits) {
  constexpr char kHex[] = "0123456789ABCDEF";
  text.append("0x");
  for (int i = digits - 1; i >= 0; --i) text.push_back(kHex[(bits >> (4 * i)) & 15]);
}

void AppendFloat(std::string& text, DType dtype, double value) {
  if (!std::isfinite(value)) {
    const Special special = SpecialOf(dtype);
    const uint64_t bits = std::isnan(value) ? special.nan
                          : value > 0       ? special.infinity
                                            : special.negative_infinity;
    AppendHex(text, bits, special.digits);
    return;
  }
  if (value != 0 && std::abs(value) < std::numeric_limits<double>::min()) {
    // MLIR's reader refuses decimal literals below the normal range of a double.
    if (dtype == DType::kF64) {
      uint64_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      AppendHex(text, bits, 16);
      return;
    }
    value = std::copysign(0.0, value);
  }
  // The shortest text that reads back as the same double; MLIR wants a point before an exponent.
  char digits[32];
  const auto [end, error] = std::to_chars(digits, digits + sizeof digits, value);
  const std::string_view literal(digits, end - digits);
  const size_t exponent = literal.find('e');
  text.append(literal.substr(0, exponent));
  if (literal.find('.') == std::string_view::npos) text.append(".0");
  if (exponent != std::string_view::npos) text.append(literal.substr(exponent));
}

// Wraps around like a C++ conversion.
void AppendInt(std::string& text, DType dtype, int64_t value) {
  switch (dtype) {
    case DType::kPred:
      text.append(Bool(value != 0));
      return;
    case DType::kS8:
      value = static_cast<int8_t>(value);
      break;
    case DType::kS16:
      value = static_cast<int16_t>(value);
      break;
    case DType::kS32:
      value = static_cast<int32_t>(value);
      break;
    case DType::kU8:
      value = static_cast<uint8_t>(value);
      break;
    case DType::kU16:
      value = static_cast<uint16_t>(value);
      break;
    case DType::kU32:
      value = static_cast<uint32_t>(value);
      break;
    case DType::kU64:
      text.append(std::to_string(static_cast<uint64_t>(value)));
      return;
    default:
      break;
  }
  text.append(std::to_string(value));
}

// The nearest integer of the dtype towards zero, as the bits of an int64.
int64_t ToInteger(DType dtype, double value) {
  if (std::isnan(value)) return 0;
  const int bits = static_cast<int>(ByteSize(dtype)) * 8;
  const bool is_unsigned = IsUnsigned(dtype);
  const double low = is_unsigned ? 0 : -std::ldexp(1.0, bits - 1);
  const double limit = std::ldexp(1.0, is_unsigned ? bits : bits - 1);
  if (value <= low) return is_unsigned ? 0 : std::numeric_limits<int64_t>::min() >> (64 - bits);
  if (value >= limit) {
    if (!is_unsigned) return std::numeric_limits<int64_t>::max() >> (64 - bits);
    return static_cast<int64_t>(~uint64_t{0} >> (64 - bits));
  }
  if (is_unsigned) return static_cast<int64_t>(static_cast<uint64_t>(value));
  return static_cast<int64_t>(value);
}

void AppendElement(std::string& text, DType dtype, double real, double imag) {
  if (IsComplex(dtype)) {
    text.push_back('(');
    AppendFloat(text, RealOf(dtype), real);
    text.append(", ");
    AppendFloat(text, RealOf(dtype), imag);
    text.push_back(')');
  } else if (IsFloat(dtype)) {
    AppendFloat(text, dtype, real);
  } else if (dtype == DType::kPred) {
    text.append(Bool(real != 0));
  } else {
    AppendInt(text, dtype, ToInteger(dtype, real));
  }
}

void AppendIntElement(std::string& text, DType dtype, int64_t value) {
  if (IsFloat(dtype) || IsComplex(dtype)) {
    AppendElement(text, dtype, static_cast<double>(value), 0);
  } else {
    AppendInt(text, dtype, value);
  }
}

// Lists nested like the shape, in row-major order.
template <typename AppendOne>
void AppendNested(std::string& text, const Dims& dims, size_t dimension, size_t& next,
                  const AppendOne& append) {
  if (dimension == dims.size()) {
    append(text, next++);
    return;
  }
  text.push_back('[');
  for (int64_t i = 0; i < dims[dimension]; ++i) {
    if (i > 0) text.append(", ");
    AppendNested(text, dims, dimension + 1, next, append);
  }
  text.push_back(']');
}

template <typename AppendOne>
std::string Dense(const Type& type, size_t count, const AppendOne& append) {
  if (static_cast<int64_t>(count) != type.numel()) {
    Fail("stablehlo.constant", std::to_string(count) + " elements for " + type.str());
  }
  std::string text;
  if (count == 0) return text;
  size_t next = 0;
  AppendNested(text, type.dims, 0, next, append);
  return text;
}

}  // namespace

Value Builder::EmitConstant(const Type& type, std::string_view elements) {
  std::string attributes = "value = dense<";
  if (type.numel() != 0) attributes.append(elements);
  attributes.append("> : ").append(type.str());
  return Emit("stablehlo.constant", {}, attributes, {type}).front();
}

Value Builder::Constant(const Type& type, double value) {
  std::string element;
  AppendElement(element, type.dtype, value, 0);
  return EmitConstant(type, element);
}

Value Builder::ConstantInt(const Type& type, int64_t value) {
  std::string element;
  AppendIntElement(element, type.dtype, value);
  return EmitConstant(type, element);
}

Value Builder::ConstantComplex(const Type& type, double real, double imag) {
  if (!IsComplex(type.dtype)) Fail("stablehlo.constant", "complex value for " + type.str());
  std::string element;
  AppendElement(element, type.dtype, real, imag);
  return EmitConstant(type, element);
}

Value Builder::ConstantInts(const Type& type, const std::vector<int64_t>& values) {
  return EmitConstant(type, Dense(type, values.size(), [&](std::string& text, size_t i) {
                        AppendIntElement(text, type.dtype, values[i]);
                      }));
}

Value Builder::ConstantFloats(const Type& type, const std::vector<double>& values) {
  return EmitConstant(type, Dense(type, values.size(), [&](std::string& text, size_t i) {
                        AppendElement(text, type.dtype, values[i], 0);
                      }));
}

Value Builder::Iota(const Type& type, int dimension) {
  if (dimension < 0 || dimension >= type.rank()) {
    Fail("stablehlo.iota", "dimension " + std::to_string(dimension) + " of " + type.str());
  }
  if (type.dtype == DType::kPred) Fail("stablehlo.iota", "no iota of i1");
  return Emit("stablehlo.iota", {}, "iota_dimension = " + Int(dimension), {type}).front();
}

Value ZeroConstant(Builder& builder, const Type& type) {
  return IsComplex(type.dtype) ? builder.ConstantComplex(type, 0, 0) : builder.ConstantInt(type, 0);
}

Value ConstantLike(Value like, double value) { return like.builder().Constant(like.type(), value); }

Value Scalar(Builder& builder, DType dtype, double value) {
  return builder.Constant({dtype, {}}, value);
}

Value ScalarInt(Builder& builder, DType dtype, int64_t value) {
  return builder.ConstantInt({dtype, {}}, value);
}

namespace {

double LargestFloat(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3FN:
      return 448;
    case DType::kF8E4M3FNUZ:
      return 240;
    case DType::kF8E5M2FNUZ:
      return 57344;
    default:
      return std::numeric_limits<double>::infinity();
  }
}

Value Extreme(Builder& builder, DType dtype, double sign) {
  if (IsComplex(dtype)) {
    throw UnsupportedDType("stablehlo.constant: complex numbers have no order", dtype);
  }
  if (dtype == DType::kPred) return builder.ConstantInt({dtype, {}}, sign > 0);
  if (IsFloat(dtype)) return builder.Constant({dtype, {}}, sign * LargestFloat(dtype));
  return builder.ConstantInt({dtype, {}},
                             ToInteger(dtype, sign * std::numeric_limits<double>::infinity()));
}

}  // namespace

Value MaxValue(Builder& builder, DType dtype) { return Extreme(builder, dtype, 1); }

Value MinValue(Builder& builder, DType dtype) { return Extreme(builder, dtype, -1); }

}  // namespace torch_tpu::stablehlo
