#include "stablehlo/type.h"

#include <array>

namespace torch_tpu::stablehlo {
namespace {

struct Info {
  std::string_view name;
  size_t bytes;
};

// In the order of DType.
constexpr std::array<Info, 19> kInfo = {{
    {"i1", 1},       {"i8", 1},     {"i16", 2},        {"i32", 4},          {"i64", 8},
    {"ui8", 1},      {"ui16", 2},   {"ui32", 4},       {"ui64", 8},         {"f16", 2},
    {"bf16", 2},     {"f32", 4},    {"f64", 8},        {"complex<f32>", 8}, {"complex<f64>", 16},
    {"f8E4M3FN", 1}, {"f8E5M2", 1}, {"f8E4M3FNUZ", 1}, {"f8E5M2FNUZ", 1},
}};

}  // namespace

std::string_view Name(DType dtype) { return kInfo[static_cast<size_t>(dtype)].name; }

size_t ByteSize(DType dtype) { return kInfo[static_cast<size_t>(dtype)].bytes; }

bool IsFloat(DType dtype) {
  return (dtype >= DType::kF16 && dtype <= DType::kF64) || dtype >= DType::kF8E4M3FN;
}

bool IsComplex(DType dtype) { return dtype == DType::kC64 || dtype == DType::kC128; }

bool IsSigned(DType dtype) { return dtype >= DType::kS8 && dtype <= DType::kS64; }

bool IsUnsigned(DType dtype) { return dtype >= DType::kU8 && dtype <= DType::kU64; }

bool IsInteger(DType dtype) { return dtype >= DType::kS8 && dtype <= DType::kU64; }

DType RealOf(DType dtype) {
  if (dtype == DType::kC64) return DType::kF32;
  if (dtype == DType::kC128) return DType::kF64;
  return dtype;
}

DType ComplexOf(DType dtype) {
  if (IsComplex(dtype)) return dtype;
  if (dtype == DType::kF32) return DType::kC64;
  if (dtype == DType::kF64) return DType::kC128;
  throw TypeError("no complex dtype over " + std::string(Name(dtype)));
}

int64_t Type::numel() const {
  int64_t count = 1;
  for (int64_t dim : dims) count *= dim;
  return count;
}

std::string Type::str() const {
  std::string text = "tensor<";
  for (int64_t dim : dims) text.append(std::to_string(dim)).push_back('x');
  text.append(Name(dtype)).push_back('>');
  return text;
}

}  // namespace torch_tpu::stablehlo
