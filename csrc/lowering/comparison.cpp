// Comparisons and the logic of truth values.

#include "lowering/elementwise.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: rules read like the mathematics

// Operands meet in their promoted type: an int tensor against 2.5 compares as floats.
template <Direction kDirection>
Values LowerCompare(Call& c) {
  const DType dtype = c.promoted();
  return Result(c, Compare(Operand(c, "self", dtype), Operand(c, "other", dtype), kDirection));
}

TPU_RULE({.op = "eq.Tensor", .lower = &LowerCompare<Direction::kEq>, .any_out_dtype = true});
TPU_RULE({.op = "eq.Scalar", .lower = &LowerCompare<Direction::kEq>, .any_out_dtype = true});
TPU_RULE({.op = "ne.Tensor", .lower = &LowerCompare<Direction::kNe>, .any_out_dtype = true});
TPU_RULE({.op = "ne.Scalar", .lower = &LowerCompare<Direction::kNe>, .any_out_dtype = true});
TPU_RULE({.op = "lt.Tensor", .lower = &LowerCompare<Direction::kLt>, .any_out_dtype = true});
TPU_RULE({.op = "lt.Scalar", .lower = &LowerCompare<Direction::kLt>, .any_out_dtype = true});
TPU_RULE({.op = "le.Tensor", .lower = &LowerCompare<Direction::kLe>, .any_out_dtype = true});
TPU_RULE({.op = "le.Scalar", .lower = &LowerCompare<Direction::kLe>, .any_out_dtype = true});
TPU_RULE({.op = "gt.Tensor", .lower = &LowerCompare<Direction::kGt>, .any_out_dtype = true});
TPU_RULE({.op = "gt.Scalar", .lower = &LowerCompare<Direction::kGt>, .any_out_dtype = true});
TPU_RULE({.op = "ge.Tensor", .lower = &LowerCompare<Direction::kGe>, .any_out_dtype = true});
TPU_RULE({.op = "ge.Scalar", .lower = &LowerCompare<Direction::kGe>, .any_out_dtype = true});

Value Truth(const Call& c, std::string_view name) {
  return BroadcastTo(Convert(c.tensor(name), DType::kPred), c.result().dims);
}

template <Value (*F)(Value, Value)>
Values LowerLogical(Call& c) {
  return Result(c, F(Truth(c, "self"), Truth(c, "other")));
}

Values LowerLogicalNot(Call& c) { return Result(c, Not(Truth(c, "self"))); }

TPU_RULE({.op = "logical_and",
          .lower = &LowerLogical<&And>,
          .shape = &BinaryBoolShape,
          .any_out_dtype = true});
TPU_RULE({.op = "logical_or",
          .lower = &LowerLogical<&Or>,
          .shape = &BinaryBoolShape,
          .any_out_dtype = true});
TPU_RULE({.op = "logical_xor",
          .lower = &LowerLogical<&Xor>,
          .shape = &BinaryBoolShape,
          .any_out_dtype = true});
TPU_RULE({.op = "logical_not",
          .lower = &LowerLogicalNot,
          .shape = &SelfBoolShape,
          .any_out_dtype = true});

}  // namespace
}  // namespace torch_tpu::lowering
