#include "stablehlo/builder.h"
#include "stablehlo/internal.h"

namespace torch_tpu::stablehlo {
namespace {

bool IsFloat8(DType dtype) { return dtype >= DType::kF8E4M3FN; }

Value EmitConvert(Value x, DType dtype) {
  return EmitOne("stablehlo.convert", {x}, "", {dtype, x.dims()});
}

// float32 `x` with every number replaced that PyTorch and XLA convert to `dtype` differently.
// Of too large ones PyTorch makes the largest of e4m3fn, which has no infinity, and XLA NaN. Small
// negative ones are zero, but XLA leaves them their sign, and 0x80 is NaN in the "UZ" formats.
Value PrepareForFloat8(Value x, DType dtype) {
  if (dtype == DType::kF8E4M3FN) {
    const Value largest = ConstantLike(x, 448), lowest = ConstantLike(x, -448);
    return Select(Gt(x, largest), largest, Select(Lt(x, lowest), lowest, x));
  }
  if (dtype == DType::kF8E4M3FNUZ || dtype == DType::kF8E5M2FNUZ) {
    // Half of the smallest number rounds to zero, the even one.
    const double half = dtype == DType::kF8E4M3FNUZ ? 0x1p-11 : 0x1p-18;
    return Select(Le(Abs(x), ConstantLike(x, half)), ConstantLike(x, 0), x);
  }
  return x;
}

// PyTorch converts in two steps where C++ does: numbers reach the small floats through float32
// (which may round twice), and floats reach narrow integers through a wider one (so they wrap
// around, where XLA would saturate).
std::optional<DType> Intermediate(DType from, DType to) {
  const bool small_float = to == DType::kF16 || to == DType::kBF16 || IsFloat8(to);
  if (small_float && from != DType::kF32) {
    const bool exact = from == DType::kF16 || from == DType::kBF16;
    if (!exact || IsFloat8(to)) return DType::kF32;
  }
  if (IsFloat8(from) && to != DType::kF32) return DType::kF32;
  if (IsFloat(from) && IsInteger(to)) {
    if (ByteSize(to) < 4) return DType::kS32;
    if (to == DType::kU32) return DType::kS64;
  }
  return std::nullopt;
}

// Bitcast between real dtypes.
Value Bitcast(Value x, DType dtype) {
  if (x.dtype() == dtype) return x;
  // i1 has one bit in StableHLO, a byte in PyTorch.
  if (x.dtype() == DType::kPred) {
    return Bitcast(EmitConvert(x, DType::kU8), dtype);
  }
  if (dtype == DType::kPred) {
    Value bytes = Bitcast(x, DType::kU8);
    return Ne(bytes, ConstantLike(bytes, 0));
  }
  Dims dims = x.dims();
  const auto from = static_cast<int64_t>(ByteSize(x.dtype()));
  const auto to = static_cast<int64_t>(ByteSize(dtype));
  if (from > to) {
    dims.push_back(from / to);
  } else if (from < to) {
    if (dims.empty() || dims.back() != to / from) {
      Fail("stablehlo.bitcast_convert",
           "the last dimension does not make up one " + std::string(Name(dtype)), {x});
    }
    dims.pop_back();
  }
  return EmitOne("stablehlo.bitcast_convert", {x}, "", {dtype, dims});
}

}  // namespace

Value Convert(Value x, DType dtype) {
  CheckDefined("stablehlo.convert", {x});
  const DType from = x.dtype();
  if (from == dtype) return x;
  if (dtype == DType::kPred) {
    if (IsFloat8(from)) x = EmitConvert(x, DType::kF32);
    return Ne(x, ConstantLike(x, 0));
  }
  if (IsComplex(dtype)) {
    if (IsComplex(from)) return EmitConvert(x, dtype);
    Value real = Convert(x, RealOf(dtype));
    return Complex(real, ConstantLike(real, 0));
  }
  if (IsComplex(from)) return Convert(Real(x), dtype);
  // XLA takes the product of a converted predicate and x for a selection between x and 0, which
  // drops NaN and infinities times false.
  if (from == DType::kPred && IsFloat(dtype)) return Convert(EmitConvert(x, DType::kU8), dtype);
  if (const std::optional<DType> step = Intermediate(from, dtype); step && *step != from) {
    return Convert(EmitConvert(x, *step), dtype);
  }
  return EmitConvert(PrepareForFloat8(x, dtype), dtype);
}

Value BitcastConvert(Value x, DType dtype) {
  CheckDefined("stablehlo.bitcast_convert", {x});
  const DType from = x.dtype();
  if (from == dtype) return x;
  if (!IsComplex(from) && !IsComplex(dtype)) return Bitcast(x, dtype);

  // A complex number is its parts along a trailing dimension.
  if (IsComplex(from)) {
    Dims pair = x.dims();
    pair.push_back(1);
    Value parts = Concatenate({Reshape(Real(x), pair), Reshape(Imag(x), pair)},
                              static_cast<int>(pair.size()) - 1);
    Dims dims = x.dims();
    if (IsComplex(dtype)) {
      if (from == DType::kC64) return BitcastConvert(Bitcast(parts, DType::kF64), dtype);
      Value halves = Bitcast(parts, DType::kF32);
      return BitcastConvert(halves, dtype);
    }
    Value bits = Bitcast(parts, dtype);
    if (bits.rank() <= static_cast<int>(dims.size()) + 1) return bits;
    dims.push_back(bits.dim(-1) * bits.dim(-2));
    return Reshape(bits, dims);
  }
  const auto ratio = static_cast<int64_t>(ByteSize(dtype) / ByteSize(from));
  if (ratio == 1) return BitcastConvert(Bitcast(x, RealOf(dtype)), dtype);
  if (x.rank() == 0 || x.dim(-1) != ratio) {
    Fail("stablehlo.bitcast_convert",
         "the last dimension does not make up one " + std::string(Name(dtype)), {x});
  }
  if (ratio > 2) {
    Dims split = x.dims();
    split.back() = 2;
    split.push_back(ratio / 2);
    x = Reshape(x, split);
  }
  Value parts = Bitcast(x, RealOf(dtype));
  const int last = parts.rank() - 1;
  Dims dims = parts.dims();
  dims.pop_back();
  return Complex(Reshape(SliceDim(parts, last, 0, 1), dims),
                 Reshape(SliceDim(parts, last, 1, 2), dims));
}

}  // namespace torch_tpu::stablehlo
