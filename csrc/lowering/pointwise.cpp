// Operations that pick, fill, bound and combine elements.

#include <c10/util/Exception.h>

#include "lowering/elementwise.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: rules read like the mathematics

// --- where

Values LowerWhere(Call& c) {
  const DType dtype = c.result().dtype;
  const Value condition = Operand(c, "condition", DType::kPred);
  return Result(c, Select(condition, Operand(c, "self", dtype), Operand(c, "other", dtype)));
}

const char* DTypeName(c10::ScalarType type) { return c10::toString(type); }

std::vector<ResultSpec> WhereShape(const ShapeCall& s) {
  const c10::ScalarType condition = s.tensor("condition").dtype;
  TORCH_CHECK(condition == c10::ScalarType::Bool || condition == c10::ScalarType::Byte,
              "where expected condition to be a boolean tensor, but got a tensor with dtype ",
              DTypeName(condition));
  return {
      ElementwiseResult(s, {"condition", "self", "other"}, PromoteArguments(s, {"self", "other"}))};
}

TPU_RULE({.op = "where.self", .lower = &LowerWhere, .shape = &WhereShape});

// --- fill

Values LowerFill(Call& c) { return {Operand(c, "value", c.result().dtype)}; }

Values LowerZero(Call& c) { return {c.builder().Constant(c.result(), 0)}; }

std::vector<ResultSpec> FillTensorShape(const ShapeCall& s) {
  const size_t rank = s.tensor("value").sizes.size();
  TORCH_CHECK(rank == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", rank,
              " dimensions.");
  return SelfShape(s);
}

Values LowerMaskedFill(Call& c) {
  const DType dtype = c.result().dtype;
  const Value mask = Operand(c, "mask", DType::kPred);
  return Result(c, Select(mask, Operand(c, "value", dtype), Operand(c, "self", dtype)));
}

std::vector<ResultSpec> MaskedFillShape(const ShapeCall& s) {
  const c10::ScalarType mask = s.tensor("mask").dtype;
  TORCH_CHECK(mask == c10::ScalarType::Bool,
              "masked_fill_ only supports boolean masks, but got mask with dtype ",
              c10::scalarTypeToTypeMeta(mask));
  ResultSpec result = ElementwiseResult(s, {"mask", "self"}, s.tensor("self").dtype);
  result.strides.clear();  // contiguous whatever the operands are
  return {result};
}

std::vector<ResultSpec> MaskedFillTensorShape(const ShapeCall& s) {
  const size_t rank = s.tensor("value").sizes.size();
  TORCH_CHECK(rank == 0,
              "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ", rank,
              " dimension(s).");
  return MaskedFillShape(s);
}

TPU_RULE({.op = "fill.Scalar", .lower = &LowerFill, .shape = &SelfShape, .scalars_as_self = true});
TPU_RULE({.op = "fill.Tensor", .lower = &LowerFill, .shape = &FillTensorShape});
TPU_RULE({.op = "zero", .lower = &LowerZero, .shape = &SelfShape});
TPU_RULE({.op = "masked_fill.Scalar",
          .lower = &LowerMaskedFill,
          .shape = &MaskedFillShape,
          .scalars_as_self = true});
TPU_RULE({.op = "masked_fill.Tensor", .lower = &LowerMaskedFill, .shape = &MaskedFillTensorShape});

// --- clamp: NaN in the value or in a bound wins; a lower bound above the upper one gives the upper

Value AtLeast(Value x, Value bound) {
  return x.dtype() == DType::kPred ? Or(x, bound) : Maximum(x, bound);
}

Value AtMost(Value x, Value bound) {
  return x.dtype() == DType::kPred ? And(x, bound) : Minimum(x, bound);
}

Values LowerClamp(Call& c) {
  const DType dtype = c.result().dtype;
  Value x = Operand(c, "self", dtype);
  if (c.has("min")) x = AtLeast(x, Operand(c, "min", dtype));
  if (c.has("max")) x = AtMost(x, Operand(c, "max", dtype));
  return Result(c, x);
}

Values LowerClampMin(Call& c) {
  const DType dtype = c.result().dtype;
  return Result(c, AtLeast(Operand(c, "self", dtype), Operand(c, "min", dtype)));
}

Values LowerClampMax(Call& c) {
  const DType dtype = c.result().dtype;
  return Result(c, AtMost(Operand(c, "self", dtype), Operand(c, "max", dtype)));
}

TPU_RULE({.op = "clamp",
          .lower = &LowerClamp,
          .kinds = kFloat | kInteger,
          .scalars_fit = Rule::Fits::kResult});
TPU_RULE({.op = "clamp.Tensor", .lower = &LowerClamp, .kinds = kFloat | kInteger});
TPU_RULE({.op = "clamp_min",
          .lower = &LowerClampMin,
          .specialize = {{"min", {0}}},
          .scalars_fit = Rule::Fits::kResult});
TPU_RULE({.op = "clamp_min.Tensor", .lower = &LowerClampMin});
TPU_RULE({.op = "clamp_max", .lower = &LowerClampMax, .scalars_fit = Rule::Fits::kResult});
TPU_RULE({.op = "clamp_max.Tensor", .lower = &LowerClampMax});

// --- multiply-add and interpolation

template <Value (*F)(Value, Value)>
Values LowerAddCombined(Call& c) {
  const DType dtype = ResultComputeType(c);
  Value left = Operand(c, "tensor1", dtype);
  const Value right = Operand(c, "tensor2", dtype);
  if (!c.is("value", 1)) left = Multiply(Operand(c, "value", dtype), left);
  return Result(c, Add(Operand(c, "self", dtype), F(left, right)));
}

TPU_RULE({.op = "addcmul",
          .lower = &LowerAddCombined<&Multiply>,
          .kinds = kFloat | kComplex | kInteger,
          .specialize = {{"value", {1}}},
          .scalars_fit = Rule::Fits::kCompute});
TPU_RULE({.op = "addcdiv",
          .lower = &LowerAddCombined<&Divide>,
          .specialize = {{"value", {1}}},
          .scalars_fit = Rule::Fits::kCompute});

// From the nearer end, so that the weights 0 and 1 give the ends exactly.
Values LowerLerp(Call& c) {
  const DType dtype = ResultComputeType(c);
  const Value start = Operand(c, "self", dtype), end = Operand(c, "end", dtype);
  const Value weight = Operand(c, "weight", dtype);
  const Value difference = Subtract(end, start);
  const Value from_start = Add(start, Multiply(weight, difference));
  const Value from_end =
      Subtract(end, Multiply(difference, Subtract(ConstantLike(weight, 1), weight)));
  const Value magnitude = Abs(weight);
  return Result(c, Select(Lt(magnitude, ConstantLike(magnitude, 0.5)), from_start, from_end));
}

TPU_RULE({.op = "lerp.Scalar", .lower = &LowerLerp, .kinds = kFloat | kComplex});
TPU_RULE({.op = "lerp.Tensor", .lower = &LowerLerp, .kinds = kFloat | kComplex});

// --- complex numbers from their parts

Values LowerComplex(Call& c) {
  const DType part = RealOf(c.result().dtype);
  return Result(c, Complex(Operand(c, "real", part), Operand(c, "imag", part)));
}

Values LowerPolar(Call& c) {
  const DType part = RealOf(c.result().dtype);
  const Value length = Operand(c, "abs", part), angle = Operand(c, "angle", part);
  return Result(c, Complex(Multiply(length, Cosine(angle)), Multiply(length, Sine(angle))));
}

ResultSpec FromParts(const ShapeCall& s, std::string_view first, std::string_view second) {
  const c10::ScalarType a = s.tensor(first).dtype, b = s.tensor(second).dtype;
  const auto valid = [](c10::ScalarType type) {
    return type == c10::ScalarType::Half || type == c10::ScalarType::Float ||
           type == c10::ScalarType::Double;
  };
  TORCH_CHECK(valid(a) && valid(b),
              "Expected both inputs to be Half, Float or Double tensors but got ", DTypeName(a),
              " and ", DTypeName(b));
  TORCH_CHECK(a == b, "Expected object of scalar type ", DTypeName(a), " but got scalar type ",
              DTypeName(b), " for second argument");
  return ElementwiseResult(s, {first, second}, c10::toComplexType(a));
}

std::vector<ResultSpec> ComplexShape(const ShapeCall& s) { return {FromParts(s, "real", "imag")}; }
std::vector<ResultSpec> PolarShape(const ShapeCall& s) { return {FromParts(s, "abs", "angle")}; }

TPU_RULE({.op = "complex", .lower = &LowerComplex, .shape = &ComplexShape});
TPU_RULE({.op = "polar", .lower = &LowerPolar, .shape = &PolarShape});

}  // namespace
}  // namespace torch_tpu::lowering
