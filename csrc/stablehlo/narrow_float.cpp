#include "stablehlo/narrow_float.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace torch_tpu::stablehlo {
namespace {

struct FloatFormat {
  int exponent_bits, mantissa_bits, bias;
  bool has_infinity;   // else overflow gives NaN, or the largest number
  bool unsigned_zero;  // the "UZ" formats: 0x80 is NaN and there is no negative zero
  bool saturates = false;
};

// Rounds to nearest even by scaling to an integer number of the target's units in the last place.
uint32_t EncodeFloat(double value, const FloatFormat& format) {
  const int total = 1 + format.exponent_bits + format.mantissa_bits;
  const uint32_t sign = std::signbit(value) ? 1u << (total - 1) : 0u;
  const uint32_t max_exponent = (1u << format.exponent_bits) - 1;
  const uint32_t infinity = max_exponent << format.mantissa_bits;
  const uint32_t nan = format.unsigned_zero  ? 1u << (total - 1)
                       : format.has_infinity ? infinity | (1u << (format.mantissa_bits - 1))
                                             : sign | infinity | ((1u << format.mantissa_bits) - 1);
  if (std::isnan(value)) return nan;
  // What is beyond the largest number gives this.
  const uint32_t overflow = format.has_infinity ? sign | infinity
                            : format.saturates  ? nan - 1
                                                : nan;
  const double magnitude = std::fabs(value);
  if (std::isinf(value)) return overflow;
  if (magnitude == 0) return format.unsigned_zero ? 0 : sign;
  int exponent = std::max(std::ilogb(magnitude), 1 - format.bias);
  double units = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  if (units >= std::ldexp(1.0, format.mantissa_bits + 1)) {
    units /= 2;
    ++exponent;
  }
  uint32_t bits = static_cast<uint32_t>(units);
  if (bits >= 1u << format.mantissa_bits) {
    bits = (bits - (1u << format.mantissa_bits)) |
           (static_cast<uint32_t>(exponent + format.bias) << format.mantissa_bits);
  }
  // Formats with infinities keep the top exponent for them; e4m3fn keeps one pattern for NaN.
  const uint32_t limit = format.has_infinity    ? infinity
                         : format.unsigned_zero ? 1u << (total - 1)
                                                : infinity | ((1u << format.mantissa_bits) - 1);
  if (exponent + format.bias > static_cast<int>(max_exponent) || bits >= limit) {
    return overflow;
  }
  if (bits == 0 && format.unsigned_zero) return 0;
  return sign | bits;
}

template <class T>
void Store(T value, unsigned char* bytes) {
  std::memcpy(bytes, &value, sizeof value);
}

}  // namespace

void EncodeNumber(DType dtype, double real, double imag, int64_t integer, unsigned char* bytes) {
  switch (dtype) {
    case DType::kPred:
      return Store<uint8_t>(integer != 0, bytes);
    case DType::kS8:
    case DType::kU8:
      return Store(static_cast<uint8_t>(integer), bytes);
    case DType::kS16:
    case DType::kU16:
      return Store(static_cast<uint16_t>(integer), bytes);
    case DType::kS32:
    case DType::kU32:
      return Store(static_cast<uint32_t>(integer), bytes);
    case DType::kS64:
    case DType::kU64:
      return Store(integer, bytes);
    case DType::kF16:
      return Store<uint16_t>(EncodeFloat(real, {5, 10, 15, true, false}), bytes);
    case DType::kBF16:
      return Store<uint16_t>(EncodeFloat(real, {8, 7, 127, true, false}), bytes);
    case DType::kF32:
      return Store(static_cast<float>(real), bytes);
    case DType::kF64:
      return Store(real, bytes);
    case DType::kC64:
      Store(static_cast<float>(real), bytes);
      return Store(static_cast<float>(imag), bytes + 4);
    case DType::kC128:
      Store(real, bytes);
      return Store(imag, bytes + 8);
    case DType::kF8E4M3FN:
      return Store<uint8_t>(EncodeFloat(real, {4, 3, 7, false, false, true}), bytes);
    case DType::kF8E5M2:
      return Store<uint8_t>(EncodeFloat(real, {5, 2, 15, true, false}), bytes);
    case DType::kF8E4M3FNUZ:
      return Store<uint8_t>(EncodeFloat(real, {4, 3, 8, false, true}), bytes);
    case DType::kF8E5M2FNUZ:
      return Store<uint8_t>(EncodeFloat(real, {5, 2, 16, false, true}), bytes);
  }
}

}  // namespace torch_tpu::stablehlo
