#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace torch_tpu::stablehlo {

enum class DType : uint8_t {
  kPred,
  kS8,
  kS16,
  kS32,
  kS64,
  kU8,
  kU16,
  kU32,
  kU64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kC64,
  kC128,
  kF8E4M3FN,
  kF8E5M2,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
};

using Dims = std::vector<int64_t>;

// "f32", "i1", "ui8", "complex<f32>", ... as StableHLO text spells them.
std::string_view Name(DType dtype);
// Bytes of one element (1 for i1).
size_t ByteSize(DType dtype);
bool IsFloat(DType dtype);  // real floating point, 8-bit kinds included
bool IsComplex(DType dtype);
bool IsSigned(DType dtype);    // signed integers only
bool IsUnsigned(DType dtype);  // unsigned integers only
bool IsInteger(DType dtype);   // signed or unsigned, not i1
// The real dtype of a complex one, else the dtype itself.
DType RealOf(DType dtype);
// The complex dtype over a real one (f32 -> complex<f32>, f64 -> complex<f64>).
DType ComplexOf(DType dtype);

// Shape and element type of one value. All dimensions are static.
struct Type {
  DType dtype = DType::kF32;
  Dims dims;

  int rank() const { return static_cast<int>(dims.size()); }
  int64_t numel() const;
  size_t bytes() const { return static_cast<size_t>(numel()) * ByteSize(dtype); }
  // "tensor<2x3xf32>"
  std::string str() const;
  bool operator==(const Type& other) const = default;
};

// Thrown while building when an operation's operands do not fit; the message names the operation
// and the operand types.
class TypeError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// The operation has no meaning for operands of this dtype.
class UnsupportedDType : public TypeError {
 public:
  UnsupportedDType(const std::string& message, DType dtype) : TypeError(message), dtype_(dtype) {}
  DType dtype() const { return dtype_; }

 private:
  DType dtype_;
};

}  // namespace torch_tpu::stablehlo
