// Operations on the bits of integers and on bool.

#include "lowering/elementwise.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: rules read like the mathematics

template <Value (*F)(Value, Value)>
Values LowerBitwise(Call& c) {
  const DType dtype = c.result().dtype;
  return Result(c, F(Operand(c, "self", dtype), Operand(c, "other", dtype)));
}

Values LowerBitwiseNot(Call& c) { return Result(c, Not(Operand(c, "self", c.result().dtype))); }

TPU_RULE({.op = "bitwise_and.Tensor", .lower = &LowerBitwise<&And>, .kinds = kInteger | kBool});
TPU_RULE({.op = "bitwise_and.Scalar",
          .lower = &LowerBitwise<&And>,
          .shape = &BinaryShape,
          .kinds = kInteger | kBool});
TPU_RULE({.op = "bitwise_and.Scalar_Tensor",
          .lower = &LowerBitwise<&And>,
          .shape = &BinaryShape,
          .kinds = kInteger | kBool});
TPU_RULE({.op = "bitwise_or.Tensor", .lower = &LowerBitwise<&Or>, .kinds = kInteger | kBool});
TPU_RULE({.op = "bitwise_or.Scalar",
          .lower = &LowerBitwise<&Or>,
          .shape = &BinaryShape,
          .kinds = kInteger | kBool});
TPU_RULE({.op = "bitwise_or.Scalar_Tensor",
          .lower = &LowerBitwise<&Or>,
          .shape = &BinaryShape,
          .kinds = kInteger | kBool});
TPU_RULE({.op = "bitwise_xor.Tensor", .lower = &LowerBitwise<&Xor>, .kinds = kInteger | kBool});
TPU_RULE({.op = "bitwise_xor.Scalar",
          .lower = &LowerBitwise<&Xor>,
          .shape = &BinaryShape,
          .kinds = kInteger | kBool});
TPU_RULE({.op = "bitwise_xor.Scalar_Tensor",
          .lower = &LowerBitwise<&Xor>,
          .shape = &BinaryShape,
          .kinds = kInteger | kBool});
TPU_RULE({.op = "bitwise_not", .lower = &LowerBitwiseNot, .kinds = kInteger | kBool});

// --- shifts

// Whether 0 <= count < bits of the dtype.
Value InRange(Value count) {
  const Value bits = ConstantLike(count, 8.0 * static_cast<double>(ByteSize(count.dtype())));
  const Value below = Lt(count, bits);
  return IsUnsigned(count.dtype()) ? below : And(below, Ge(count, ConstantLike(count, 0)));
}

// Shifting everything out leaves 0.
Value Left(Value a, Value count) {
  const Value zero = ConstantLike(a, 0);
  const Value valid = InRange(count);
  return Select(valid, ShiftLeft(a, Select(valid, count, zero)), zero);
}

// Shifting everything out leaves copies of the sign.
Value Right(Value a, Value count) {
  const Value valid = InRange(count);
  const Value zero = ConstantLike(a, 0);
  if (IsUnsigned(a.dtype())) {
    return Select(valid, ShiftRightLogical(a, Select(valid, count, zero)), zero);
  }
  const Value most = ConstantLike(a, 8.0 * static_cast<double>(ByteSize(a.dtype())) - 1);
  return ShiftRightArithmetic(a, Select(valid, count, most));
}

template <bool kLeft>
Values LowerShift(Call& c) {
  const DType dtype = c.result().dtype;
  const Value a = Operand(c, "self", dtype), count = Operand(c, "other", dtype);
  return Result(c, kLeft ? Left(a, count) : Right(a, count));
}

TPU_RULE({.op = "bitwise_left_shift.Tensor", .lower = &LowerShift<true>, .kinds = kInteger});
TPU_RULE({.op = "bitwise_left_shift.Tensor_Scalar",
          .lower = &LowerShift<true>,
          .shape = &BinaryShape,
          .kinds = kInteger});
TPU_RULE({.op = "bitwise_left_shift.Scalar_Tensor",
          .lower = &LowerShift<true>,
          .shape = &BinaryShape,
          .kinds = kInteger});
TPU_RULE({.op = "bitwise_right_shift.Tensor", .lower = &LowerShift<false>, .kinds = kInteger});
TPU_RULE({.op = "bitwise_right_shift.Tensor_Scalar",
          .lower = &LowerShift<false>,
          .shape = &BinaryShape,
          .kinds = kInteger});
TPU_RULE({.op = "bitwise_right_shift.Scalar_Tensor",
          .lower = &LowerShift<false>,
          .shape = &BinaryShape,
          .kinds = kInteger});
TPU_RULE({.op = "__lshift__.Tensor",
          .lower = &LowerShift<true>,
          .shape = &BinaryShape,
          .kinds = kInteger});
TPU_RULE({.op = "__lshift__.Scalar",
          .lower = &LowerShift<true>,
          .shape = &BinaryShape,
          .kinds = kInteger});
TPU_RULE({.op = "__rshift__.Tensor",
          .lower = &LowerShift<false>,
          .shape = &BinaryShape,
          .kinds = kInteger});
TPU_RULE({.op = "__rshift__.Scalar",
          .lower = &LowerShift<false>,
          .shape = &BinaryShape,
          .kinds = kInteger});

}  // namespace
}  // namespace torch_tpu::lowering
