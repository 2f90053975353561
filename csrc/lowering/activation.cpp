// Activation functions and their derivatives.

#include <c10/util/Exception.h>

#include <array>
#include <cmath>
#include <string>

#include "lowering/elementwise.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: rules read like the mathematics

constexpr double kSqrtHalf = 0.70710678118654752440;
constexpr double kSqrtTwoOverPi = 0.79788456080286535588;
constexpr double kInvSqrtTwoPi = 0.39894228040143267794;
constexpr double kGeluCubic = 0.044715;

Value Input(const Call& c) { return Operand(c, "self", ResultComputeType(c)); }
Value Grad(const Call& c) { return Operand(c, "grad_output", ResultComputeType(c)); }
Value Number(const Call& c, std::string_view name) {
  return Operand(c, name, ResultComputeType(c));
}

Value Times(Value x, double factor) { return Multiply(x, ConstantLike(x, factor)); }
Value Plus(Value x, double term) { return Add(x, ConstantLike(x, term)); }
Value OneMinus(Value x) { return Subtract(ConstantLike(x, 1), x); }
Value Zero(Value x) { return ConstantLike(x, 0); }
Value Positive(Value x) { return Gt(x, Zero(x)); }

// Whether low <= x <= high; false for NaN.
Value Within(Value x, Value low, Value high) { return And(Ge(x, low), Le(x, high)); }

std::vector<ResultSpec> GradSelfShape(const ShapeCall& s) {
  return {
      ElementwiseResult(s, {"grad_output", "self"}, PromoteArguments(s, {"grad_output", "self"}))};
}

// --- rectifiers

Values LowerRelu(Call& c) {
  const Value x = Operand(c, "self", c.result().dtype);
  return Result(c, Maximum(x, Zero(x)));
}

std::vector<ResultSpec> ReluShape(const ShapeCall& s) {
  TORCH_CHECK(s.tensor("self").dtype != c10::ScalarType::Bool,
              "Boolean inputs not supported for relu");
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isComplexType(s.tensor("self").dtype),
                              "clamp is not supported for complex types");
  return SelfShape(s);
}

Values LowerThreshold(Call& c) {
  const DType dtype = c.result().dtype;
  const Value x = Operand(c, "self", dtype);
  return Result(c, Select(Le(x, Operand(c, "threshold", dtype)), Operand(c, "value", dtype), x));
}

Values LowerThresholdBackward(Call& c) {
  const DType dtype = c.result().dtype;
  const Value x = Operand(c, "self", dtype), grad = Operand(c, "grad_output", dtype);
  return Result(c, Select(Le(x, Operand(c, "threshold", dtype)), Zero(x), grad));
}

Values LowerLeakyRelu(Call& c) {
  const Value x = Input(c);
  return Result(c, Select(Positive(x), x, Multiply(x, Number(c, "negative_slope"))));
}

Values LowerLeakyReluBackward(Call& c) {
  const Value x = Input(c), grad = Grad(c);
  return Result(c, Select(Positive(x), grad, Multiply(grad, Number(c, "negative_slope"))));
}

Values LowerPrelu(Call& c) {
  const Value x = Input(c);
  return Result(c, Select(Positive(x), x, Multiply(Number(c, "weight"), x)));
}

Values LowerPreluBackward(Call& c) {
  const Value x = Input(c), grad = Grad(c);
  const Value positive = Positive(x);
  const Value grad_self = Select(positive, grad, Multiply(Number(c, "weight"), grad));
  const Value grad_weight = Select(positive, Zero(x), Multiply(x, grad));
  return {Convert(grad_self, c.result(0).dtype), Convert(grad_weight, c.result(1).dtype)};
}

std::vector<ResultSpec> PreluShape(const ShapeCall& s) {
  return {ElementwiseResult(s, {"self", "weight"}, s.tensor("self").dtype)};
}

std::vector<ResultSpec> PreluBackwardShape(const ShapeCall& s) {
  const ResultSpec result =
      ElementwiseResult(s, {"self", "weight", "grad_output"}, s.tensor("self").dtype);
  return {result, result};
}

TPU_RULE({.op = "relu", .lower = &LowerRelu, .shape = &ReluShape});
TPU_RULE({.op = "threshold",
          .lower = &LowerThreshold,
          .kinds = kFloat | kInteger,
          .specialize = {{"threshold", {0}}, {"value", {0}}},
          .scalars_fit = Rule::Fits::kCompute});
TPU_RULE({.op = "threshold_backward",
          .lower = &LowerThresholdBackward,
          .specialize = {{"threshold", {0}}}});
TPU_RULE({.op = "leaky_relu", .lower = &LowerLeakyRelu, .kinds = kFloat});
TPU_RULE({.op = "leaky_relu_backward", .lower = &LowerLeakyReluBackward});
TPU_RULE({.op = "_prelu_kernel", .lower = &LowerPrelu, .shape = &PreluShape});
TPU_RULE({.op = "_prelu_kernel_backward",
          .lower = &LowerPreluBackward,
          .shape = &PreluBackwardShape});

// --- exponential units

// scale * x right of 0, alpha * scale * (exp(input_scale * x) - 1) left of it.
Values LowerElu(Call& c) {
  const Value x = Input(c);
  const Value scale = Number(c, "scale");
  const Value left =
      Multiply(Expm1(Multiply(x, Number(c, "input_scale"))), Multiply(Number(c, "alpha"), scale));
  return Result(c, Select(Le(x, Zero(x)), left, Multiply(x, scale)));
}

Values LowerEluBackward(Call& c) {
  const DType dtype = ResultComputeType(c);
  const Value x = Operand(c, "self_or_result", dtype), grad = Grad(c);
  const Value scale = Number(c, "scale"), input_scale = Number(c, "input_scale");
  const Value height = Multiply(Number(c, "alpha"), scale);
  const Value slope =
      c.boolean("is_result") ? Add(x, height) : Multiply(height, Exp(Multiply(x, input_scale)));
  const Value left = Multiply(Multiply(grad, input_scale), slope);
  return Result(c, Select(Positive(x), Multiply(grad, scale), left));
}

// log(1 + exp(beta x)) / beta; the identity where that is lost in rounding.
Values LowerSoftplus(Call& c) {
  const Value x = Input(c), beta = Number(c, "beta");
  const Value scaled = Multiply(x, beta);
  const Value soft = Divide(Log1p(Exp(scaled)), beta);
  return Result(c, Select(Gt(scaled, Number(c, "threshold")), x, soft));
}

Values LowerSoftplusBackward(Call& c) {
  const Value x = Input(c), grad = Grad(c);
  const Value scaled = Multiply(x, Number(c, "beta"));
  const Value power = Exp(scaled);
  const Value soft = Divide(Multiply(grad, power), Plus(power, 1));
  return Result(c, Select(Gt(scaled, Number(c, "threshold")), grad, soft));
}

const std::vector<std::pair<std::string, std::vector<double>>> kEluDefaults = {
    {"alpha", {1}}, {"scale", {1}}, {"input_scale", {1}}};

TPU_RULE({.op = "elu", .lower = &LowerElu, .kinds = kFloat, .specialize = kEluDefaults});
TPU_RULE({.op = "elu_backward", .lower = &LowerEluBackward, .specialize = kEluDefaults});
TPU_RULE({.op = "softplus",
          .lower = &LowerSoftplus,
          .kinds = kFloat,
          .specialize = {{"beta", {1}}, {"threshold", {20}}}});
TPU_RULE({.op = "softplus_backward",
          .lower = &LowerSoftplusBackward,
          .specialize = {{"beta", {1}}, {"threshold", {20}}}});

// --- gelu: x times the normal distribution function, or the approximation of that by tanh

Value GeluInner(Value x) {
  const Value cube = Multiply(Square(x), x);
  return Times(Add(x, Times(cube, kGeluCubic)), kSqrtTwoOverPi);
}

Value NormalDistribution(Value x) { return Times(Plus(Erf(Times(x, kSqrtHalf)), 1), 0.5); }

Values LowerGelu(Call& c) {
  const Value x = Input(c);
  if (c.string("approximate") == "tanh") {
    return Result(c, Multiply(Times(x, 0.5), Plus(Tanh(GeluInner(x)), 1)));
  }
  return Result(c, Multiply(x, NormalDistribution(x)));
}

Values LowerGeluBackward(Call& c) {
  const Value x = Input(c), grad = Grad(c);
  if (c.string("approximate") == "tanh") {
    const Value tanh = Tanh(GeluInner(x));
    const Value inner_slope = Times(Plus(Times(Square(x), 3 * kGeluCubic), 1), kSqrtTwoOverPi);
    const Value left = Times(Plus(tanh, 1), 0.5);
    const Value right = Multiply(Multiply(Times(x, 0.5), OneMinus(Square(tanh))), inner_slope);
    return Result(c, Multiply(grad, Add(left, right)));
  }
  const Value density = Times(Exp(Times(Square(x), -0.5)), kInvSqrtTwoPi);
  return Result(c, Multiply(grad, Add(NormalDistribution(x), Multiply(x, density))));
}

TPU_RULE({.op = "gelu", .lower = &LowerGelu, .kinds = kFloat});
TPU_RULE({.op = "gelu_backward", .lower = &LowerGeluBackward});

// --- functions of the sigmoid and of tanh

Values LowerSilu(Call& c) {
  const Value x = Input(c);
  return Result(c, Multiply(x, Sigmoid(x)));
}

Values LowerSiluBackward(Call& c) {
  const Value x = Input(c), grad = Grad(c);
  const Value sigmoid = Sigmoid(x);
  const Value slope = Multiply(sigmoid, Plus(Multiply(x, OneMinus(sigmoid)), 1));
  return Result(c, Multiply(grad, slope));
}

Value TanhOfSoftplus(Value x) { return Tanh(Log1p(Exp(x))); }

Values LowerMish(Call& c) {
  const Value x = Input(c);
  return Result(c, Multiply(x, TanhOfSoftplus(x)));
}

Values LowerMishBackward(Call& c) {
  const Value x = Input(c), grad = Grad(c);
  const Value tanh = TanhOfSoftplus(x);
  const Value slope = Multiply(Multiply(x, Sigmoid(x)), OneMinus(Square(tanh)));
  return Result(c, Multiply(grad, Add(tanh, slope)));
}

Values LowerSigmoidBackward(Call& c) {
  const Value grad = Grad(c), y = Number(c, "output");
  return Result(c, Multiply(grad, Conj(Multiply(OneMinus(y), y))));
}

Values LowerTanhBackward(Call& c) {
  const Value grad = Grad(c), y = Number(c, "output");
  return Result(c, Multiply(grad, Conj(OneMinus(Square(y)))));
}

// The buffer keeps exp(-|x|) for the backward pass, as on CPU.
Values LowerLogSigmoid(Call& c) {
  const Value x = Input(c);
  const Value buffer = Exp(Negate(Abs(x)));
  const Value y = Subtract(Minimum(x, Zero(x)), Log1p(buffer));
  Values results = {Convert(y, c.result(0).dtype), Value()};
  if (c.wants(1)) results[1] = Convert(buffer, c.result(1).dtype);
  return results;
}

Values LowerLogSigmoidBackward(Call& c) {
  const Value x = Input(c), grad = Grad(c);
  return Result(c, Multiply(grad, Sigmoid(Negate(x))));
}

std::vector<ResultSpec> LogSigmoidShape(const ShapeCall& s) {
  ResultSpec result;
  result.dtype = s.tensor("self").dtype;
  result.sizes = s.tensor("self").sizes;
  return {result, result};
}

TPU_RULE({.op = "silu", .lower = &LowerSilu, .kinds = kFloat | kComplex});
TPU_RULE({.op = "silu_backward", .lower = &LowerSiluBackward});
TPU_RULE({.op = "mish", .lower = &LowerMish, .kinds = kFloat});
TPU_RULE({.op = "mish_backward", .lower = &LowerMishBackward, .shape = &GradSelfShape});
TPU_RULE({.op = "sigmoid_backward", .lower = &LowerSigmoidBackward});
TPU_RULE({.op = "tanh_backward", .lower = &LowerTanhBackward});
TPU_RULE({.op = "log_sigmoid_forward",
          .lower = &LowerLogSigmoid,
          .shape = &LogSigmoidShape,
          .kinds = kFloat});
TPU_RULE({.op = "log_sigmoid_backward",
          .lower = &LowerLogSigmoidBackward,
          .shape = &GradSelfShape});

// --- piecewise linear functions

// relu6(x + 3)
Value Ramp(Value x) { return Minimum(Maximum(Plus(x, 3), Zero(x)), ConstantLike(x, 6)); }

Values LowerHardSigmoid(Call& c) { return Result(c, Times(Ramp(Input(c)), 1.0 / 6)); }

Values LowerHardSigmoidBackward(Call& c) {
  const Value x = Input(c), grad = Grad(c);
  const Value inside = And(Gt(x, ConstantLike(x, -3)), Lt(x, ConstantLike(x, 3)));
  return Result(c, Select(inside, Times(grad, 1.0 / 6), Zero(x)));
}

Values LowerHardSwish(Call& c) {
  const Value x = Input(c);
  return Result(c, Times(Multiply(x, Ramp(x)), 1.0 / 6));
}

Values LowerHardSwishBackward(Call& c) {
  const Value x = Input(c), grad = Grad(c);
  const Value three = ConstantLike(x, 3);
  const Value middle = Multiply(grad, Plus(Divide(x, three), 0.5));
  const Value right = Select(Ge(x, three), grad, middle);
  return Result(c, Select(Le(x, Negate(three)), Zero(x), right));
}

Values LowerHardTanh(Call& c) {
  const DType dtype = c.result().dtype;
  const Value x = Operand(c, "self", dtype);
  return Result(c, Minimum(Maximum(x, Operand(c, "min_val", dtype)), Operand(c, "max_val", dtype)));
}

Values LowerHardTanhBackward(Call& c) {
  const Value x = Input(c), grad = Grad(c);
  const Value inside = And(Gt(x, Number(c, "min_val")), Lt(x, Number(c, "max_val")));
  return Result(c, Select(inside, grad, Zero(x)));
}

std::vector<ResultSpec> HardTanhShape(const ShapeCall& s) {
  TORCH_CHECK(s.tensor("self").dtype != c10::ScalarType::Bool,
              "Bool inputs not supported for hardtanh");
  const c10::ScalarType dtype = s.tensor("self").dtype;
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isComplexType(dtype),
                              "clamp is not supported for complex types");
  const bool integer = c10::isIntegralType(dtype, false);
  std::array<c10::Scalar, 2> limits{s.argument("min_val").toScalar(),
                                    s.argument("max_val").toScalar()};
  for (c10::Scalar& limit : limits) {
    if (integer) limit = limit.toLong();
    TORCH_CHECK(dtype != c10::ScalarType::Byte || limit.toLong() >= 0,
                "cannot do hardtanh on an unsigned type with negative limits");
  }
  for (const c10::Scalar& limit : limits) CheckRange(limit, dtype);
  return SelfShape(s);
}

Values LowerHardShrink(Call& c) {
  const Value x = Input(c), bound = Number(c, "lambd");
  return Result(c, Select(Within(x, Negate(bound), bound), Zero(x), x));
}

// The middle is x * 0, which keeps NaN.
Values LowerSoftShrink(Call& c) {
  const Value x = Input(c), bound = Number(c, "lambd");
  const Value rest = Select(Lt(x, Negate(bound)), Add(x, bound), Multiply(x, Zero(x)));
  return Result(c, Select(Gt(x, bound), Subtract(x, bound), rest));
}

Values ShrinkBackward(Call& c, std::string_view grad_name) {
  const Value x = Input(c), bound = Number(c, "lambd");
  const Value outside = Or(Lt(x, Negate(bound)), Gt(x, bound));
  return Result(c, Select(outside, Number(c, grad_name), Zero(x)));
}

Values LowerHardShrinkBackward(Call& c) { return ShrinkBackward(c, "grad_out"); }
Values LowerSoftShrinkBackward(Call& c) { return ShrinkBackward(c, "grad_output"); }

TPU_RULE({.op = "hardsigmoid", .lower = &LowerHardSigmoid, .kinds = kFloat});
TPU_RULE({.op = "hardsigmoid_backward", .lower = &LowerHardSigmoidBackward});
TPU_RULE({.op = "hardswish", .lower = &LowerHardSwish, .shape = &SelfShape, .kinds = kFloat});
TPU_RULE({.op = "hardswish_backward", .lower = &LowerHardSwishBackward, .shape = &GradSelfShape});
TPU_RULE({.op = "hardtanh",
          .lower = &LowerHardTanh,
          .shape = &HardTanhShape,
          .structural = {"min_val", "max_val"}});
TPU_RULE({.op = "hardtanh_backward", .lower = &LowerHardTanhBackward, .shape = &GradSelfShape});
TPU_RULE({.op = "hardshrink", .lower = &LowerHardShrink, .kinds = kFloat});
TPU_RULE({.op = "hardshrink_backward", .lower = &LowerHardShrinkBackward});
TPU_RULE({.op = "softshrink", .lower = &LowerSoftShrink, .kinds = kFloat});
TPU_RULE({.op = "softshrink_backward", .lower = &LowerSoftShrinkBackward});

// --- gated linear units: the first half of a dimension times the sigmoid of the second

struct Halves {
  Value first, second;
  int dim;
};

Halves Split(const Call& c) {
  const Value x = Convert(c.tensor("self"), ResultComputeType(c));
  const int dim = static_cast<int>(WrapDim(c.integer("dim"), x.rank()));
  const int64_t size = x.dim(dim);
  return {SliceDim(x, dim, 0, size / 2), SliceDim(x, dim, size / 2, size), dim};
}

Values LowerGlu(Call& c) {
  const Halves x = Split(c);
  return Result(c, Multiply(x.first, Sigmoid(x.second)));
}

Values LowerGluBackward(Call& c) {
  const Halves x = Split(c);
  const Value grad = Convert(c.tensor("grad_output"), ResultComputeType(c));
  const Value gate = Sigmoid(x.second);
  const Value grad_first = Multiply(gate, grad);
  const Value grad_second = Multiply(Multiply(Multiply(OneMinus(gate), gate), grad), x.first);
  return Result(c, Concatenate({grad_first, grad_second}, x.dim));
}

std::vector<ResultSpec> GluBackwardShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  TORCH_CHECK(!self.sizes.empty(), "glu does not support 0-dimensional tensors");
  const int64_t dim = WrapDim(s.argument("dim").toInt(), static_cast<int64_t>(self.sizes.size()));
  TORCH_CHECK(self.sizes[dim] % 2 == 0, "Halving dimension must be even, but dimension ", dim,
              " is size ", self.sizes[dim]);
  ResultSpec result;
  result.dtype = self.dtype;
  result.sizes = self.sizes;
  return {result};
}

TPU_RULE({.op = "glu", .lower = &LowerGlu, .kinds = kFloat});
TPU_RULE({.op = "glu_backward", .lower = &LowerGluBackward, .shape = &GluBackwardShape});

}  // namespace
}  // namespace torch_tpu::lowering
