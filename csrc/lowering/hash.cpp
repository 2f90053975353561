#include <c10/util/Exception.h>

#include "lowering/reduction.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: Add, Multiply, Reduce, ... read like the mathematics

// The bits of float32 numbers as float64. By integer arithmetic, since a TPU has no float64 whose
// bits could be looked at. NaNs become quiet, as in the conversion.
Value BitsOfDoubles(Value x) {
  Value bits = BitcastConvert(x, DType::kU32);
  const auto narrow = [&](int64_t value) { return x.builder().ConstantInt(bits.type(), value); };
  Value exponent = And(ShiftRightLogical(bits, narrow(23)), narrow(0xff));
  Value mantissa = And(bits, narrow(0x7fffff));
  Value zero = narrow(0);

  // The biases are 127 and 1023. Subnormal numbers are normal as float64.
  Value shift = Subtract(CountLeadingZeros(mantissa), narrow(8));
  Value subnormal = And(Eq(exponent, zero), Ne(mantissa, zero));
  Value wide_mantissa =
      Select(subnormal, And(ShiftLeft(mantissa, shift), narrow(0x7fffff)), mantissa);
  Value wide_exponent = Select(subnormal, Subtract(narrow(897), shift),
                               Select(Eq(exponent, zero), zero, Add(exponent, narrow(896))));
  Value special = Eq(exponent, narrow(0xff));
  wide_exponent = Select(special, narrow(2047), wide_exponent);
  Value quiet = And(special, Ne(mantissa, zero));
  wide_mantissa = Select(quiet, Or(wide_mantissa, narrow(0x400000)), wide_mantissa);

  const auto placed = [&](Value part, int64_t shift_by) {
    Value wide = Convert(part, DType::kU64);
    return ShiftLeft(wide, x.builder().ConstantInt(wide.type(), shift_by));
  };
  Value sign = ShiftRightLogical(bits, narrow(31));
  return Or(placed(sign, 63), Or(placed(wide_exponent, 52), placed(wide_mantissa, 29)));
}

// The elements as 64-bit patterns, exclusive-ored.
Values HashTensor(Call& c) {
  const int64_t mode = c.integer("mode");
  TORCH_CHECK(mode == 0, "Unknown hash_tensor mode: ", mode);
  Value x = c.tensor("self");
  const DType dtype = x.dtype();
  const bool unknown = IsComplex(dtype) || (IsFloat(dtype) && ByteSize(dtype) == 1) ||
                       (IsUnsigned(dtype) && ByteSize(dtype) > 1);
  TORCH_CHECK_NOT_IMPLEMENTED(!unknown, "\"xor_sum_cpu\" not implemented for '",
                              ToScalarType(dtype), "'");
  if (dtype == DType::kF64) {
    x = BitcastConvert(x, DType::kU64);
  } else if (IsFloat(dtype)) {
    x = BitsOfDoubles(Convert(x, DType::kF32));
  } else {
    x = Convert(x, DType::kU64);
  }
  x = AtLeast1d(x);
  const std::vector<int64_t> dims = WrapDims(c.integers("dim"), x.rank(), /*empty_means_all=*/true);
  x = ReduceGeneric({x}, {ScalarInt(c.builder(), DType::kU64, 0)}, dims, [](const Values& v) {
        return Values{Xor(v[0], v[1])};
      }).front();
  return {Reshape(x, c.result().dims)};
}

TPU_RULE({.op = "hash_tensor", .lower = &HashTensor});

}  // namespace
}  // namespace torch_tpu::lowering
