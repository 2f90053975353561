#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string_view>

#include "lowering/memory_order.h"
#include "lowering/reduction.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: Add, Multiply, Reduce, ... read like the mathematics

Value Finish(Call& c, Value x, int i) {
  return Reshape(Convert(x, c.result(i).dtype), c.result(i).dims);
}

Value DividedBy(Value x, int64_t count) {
  return Divide(x, ConstantLike(x, static_cast<double>(count)));
}

Value InverseRoot(Value variance, Value eps) {
  return Rsqrt(Add(variance, BroadcastTo(eps, variance.dims())));
}

// A tensor normalized along some dimensions, in the dtype statistics are kept in while computing.
struct Normalized {
  std::vector<int64_t> dims;
  Value value;       // (x - mean) * rstd
  Value mean, rstd;  // without `dims`
  Value squares;     // sum of squared distances from the mean, if it was computed
};

Normalized Standardize(Value x, const std::vector<int64_t>& dims, Value eps) {
  Moments moments = MomentsOver(x, dims);
  Value variance = DividedBy(moments.squares, CountOver(x.dims(), dims));
  Value rstd = InverseRoot(variance, eps);
  Value centred = Subtract(x, BroadcastReduced(moments.mean, x.dims(), dims));
  return {dims, Multiply(centred, BroadcastReduced(rstd, x.dims(), dims)), moments.mean, rstd,
          moments.squares};
}

Normalized StandardizeWith(Value x, const std::vector<int64_t>& dims, Value mean, Value rstd) {
  Value centred = Subtract(x, BroadcastReduced(mean, x.dims(), dims));
  return {dims, Multiply(centred, BroadcastReduced(rstd, x.dims(), dims)), mean, rstd, Value()};
}

// The gradient of the input, given that of the normalized value: what the mean and the variance
// take back is projected out.
Value StandardizeGradient(const Normalized& n, Value grad) {
  const Dims& sizes = grad.dims();
  Value mean = BroadcastReduced(MeanOver(grad, n.dims), sizes, n.dims);
  Value along = BroadcastReduced(MeanOver(Multiply(grad, n.value), n.dims), sizes, n.dims);
  Value rest = Subtract(Subtract(grad, mean), Multiply(n.value, along));
  return Multiply(rest, BroadcastReduced(n.rstd, sizes, n.dims));
}

// --- for shape functions

// The dtype of parameters and statistics: the input's, or float32 beside half precision input.
c10::ScalarType ParameterType(const ShapeCall& c, std::initializer_list<std::string_view> names) {
  const c10::ScalarType input = c.tensor("input").dtype;
  std::optional<c10::ScalarType> first;
  for (std::string_view name : names) {
    const ShapeTensor& parameter = c.tensor(name);
    if (!parameter.defined) continue;
    if (!first) first = parameter.dtype;
    TORCH_CHECK(*first != input || parameter.dtype == input, "expected scalar type ", input,
                " but found ", parameter.dtype);
    TORCH_CHECK(*first == input || parameter.dtype == c10::ScalarType::Float,
                "mixed dtype (CPU): expect parameter to have scalar type of Float");
  }
  if (!first || *first == input) return input;
  TORCH_CHECK(c10::isReducedFloatingType(input),
              "mixed dtype (CPU): all inputs must share same datatype.");
  return *first;
}

void CheckFloating(const ShapeCall& c, const char* kernel) {
  const c10::ScalarType dtype = c.tensor("input").dtype;
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isFloatingType(dtype), '"', kernel, "\" not implemented for '",
                              dtype, "'");
}

ResultSpec Undefined() { return {.defined = false}; }

// Layer and RMS norm: statistics have size one in the normalized dimensions.
std::vector<int64_t> StatisticsSizes(const std::vector<int64_t>& sizes, size_t normalized) {
  std::vector<int64_t> out = sizes;
  std::fill(out.end() - static_cast<std::ptrdiff_t>(normalized), out.end(), 1);
  return out;
}

void CheckNormalizedShape(const std::vector<int64_t>& shape) {
  TORCH_CHECK(!shape.empty(),
              "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least "
              "one element, but got normalized_shape = ",
              c10::IntArrayRef(shape));
}

void CheckLikeNormalizedShape(const ShapeTensor& parameter, const char* name,
                              const std::vector<int64_t>& shape) {
  TORCH_CHECK(!parameter.defined || parameter.sizes == shape, "Expected ", name,
              " to be of same shape as normalized_shape, but got ", name, " of shape ",
              c10::IntArrayRef(parameter.sizes),
              " and normalized_shape = ", c10::IntArrayRef(shape));
}

void CheckEndsInNormalizedShape(const std::vector<int64_t>& sizes,
                                const std::vector<int64_t>& shape) {
  const bool fits =
      sizes.size() >= shape.size() && std::equal(shape.rbegin(), shape.rend(), sizes.rbegin());
  TORCH_CHECK(fits, "Given normalized_shape=", c10::IntArrayRef(shape),
              ", expected input with shape [*, ", c10::Join(", ", shape),
              "], but got input of size", c10::IntArrayRef(sizes));
}

// --- layer norm

// The last dimensions, as many as the normalized shape has.
std::vector<int64_t> TrailingDims(Call& c, Value x) {
  const auto count = static_cast<int64_t>(c.integers("normalized_shape").size());
  std::vector<int64_t> dims;
  for (int64_t dim = x.rank() - count; dim < x.rank(); ++dim) dims.push_back(dim);
  return dims;
}

std::vector<int64_t> OtherDims(Value x, const std::vector<int64_t>& dims) {
  std::vector<int64_t> others;
  for (int64_t dim = 0; dim < x.rank(); ++dim) {
    if (std::find(dims.begin(), dims.end(), dim) == dims.end()) others.push_back(dim);
  }
  return others;
}

// An optional parameter of the trailing dimensions, broadcast to x.
std::optional<Value> TrailingParameter(Call& c, std::string_view name, Value x) {
  std::optional<Value> parameter = c.optional_tensor(name);
  if (parameter) parameter = BroadcastTo(Convert(*parameter, x.dtype()), x.dims());
  return parameter;
}

Value WithoutDims(Value statistic, Value x, const std::vector<int64_t>& dims) {
  Dims sizes;
  for (int64_t dim : OtherDims(x, dims)) sizes.push_back(x.dims()[dim]);
  return Reshape(Convert(statistic, x.dtype()), sizes);
}

Values LayerNorm(Call& c) {
  Value x = c.tensor("input");
  x = Convert(x, ComputeType(x.dtype()));
  Normalized n = Standardize(x, TrailingDims(c, x), c.scalar("eps", x.dtype()));
  Value y = n.value;
  if (auto weight = TrailingParameter(c, "weight", x)) y = Multiply(y, *weight);
  if (auto bias = TrailingParameter(c, "bias", x)) y = Add(y, *bias);
  return {Finish(c, y, 0), Finish(c, n.mean, 1), Finish(c, n.rstd, 2)};
}

Values LayerNormBackward(Call& c) {
  Value x = c.tensor("input");
  x = Convert(x, ComputeType(x.dtype()));
  const std::vector<int64_t> dims = TrailingDims(c, x), rows = OtherDims(x, dims);
  Value grad = Convert(c.tensor("grad_out"), x.dtype());
  Normalized n = StandardizeWith(x, dims, WithoutDims(c.tensor("mean"), x, dims),
                                 WithoutDims(c.tensor("rstd"), x, dims));
  Values out(3);
  if (c.wants(0)) {
    auto weight = TrailingParameter(c, "weight", x);
    out[0] = Finish(c, StandardizeGradient(n, weight ? Multiply(grad, *weight) : grad), 0);
  }
  if (c.wants(1)) {
    out[1] = Finish(c, Reduce(Multiply(grad, n.value), Reduction::kSum, rows), 1);
  }
  if (c.wants(2)) out[2] = Finish(c, Reduce(grad, Reduction::kSum, rows), 2);
  return out;
}

std::vector<ResultSpec> LayerNormShape(const ShapeCall& c) {
  const ShapeTensor& input = c.tensor("input");
  const std::vector<int64_t> shape = c.argument("normalized_shape").toIntVector();
  CheckNormalizedShape(shape);
  CheckLikeNormalizedShape(c.tensor("weight"), "weight", shape);
  CheckLikeNormalizedShape(c.tensor("bias"), "bias", shape);
  CheckEndsInNormalizedShape(input.sizes, shape);
  CheckFloating(c, "LayerNormKernelImpl");
  const c10::ScalarType statistics = ParameterType(c, {"weight", "bias"});
  const std::vector<int64_t> sizes = StatisticsSizes(input.sizes, shape.size());
  return {{.dtype = input.dtype, .sizes = input.sizes},
          {.dtype = statistics, .sizes = sizes},
          {.dtype = statistics, .sizes = sizes}};
}

std::vector<ResultSpec> LayerNormBackwardShape(const ShapeCall& c) {
  const ShapeTensor& input = c.tensor("input");
  const std::vector<int64_t> shape = c.argument("normalized_shape").toIntVector();
  const auto mask = c.argument("output_mask").toBoolList();
  const c10::ScalarType parameters = ParameterType(c, {"weight", "bias"});
  std::vector<ResultSpec> out(3, Undefined());
  if (mask[0]) out[0] = {.dtype = input.dtype, .sizes = input.sizes};
  if (mask[1]) out[1] = {.dtype = parameters, .sizes = shape};
  if (mask[2]) out[2] = {.dtype = parameters, .sizes = shape};
  return out;
}

TPU_RULE({.op = "native_layer_norm", .lower = &LayerNorm, .shape = &LayerNormShape});
TPU_RULE({.op = "native_layer_norm_backward",
          .lower = &LayerNormBackward,
          .shape = &LayerNormBackwardShape});

// --- RMS norm

Values RmsNorm(Call& c) {
  Value x = c.tensor("input");
  x = Convert(x, ComputeType(x.dtype()));
  const std::vector<int64_t> dims = TrailingDims(c, x);
  Value square = MeanOver(Multiply(x, x), dims);
  const bool is_double = RealOf(x.dtype()) == DType::kF64;
  Value eps = c.has("eps") ? c.scalar("eps", x.dtype())
                           : Scalar(c.builder(), x.dtype(),
                                    is_double ? std::numeric_limits<double>::epsilon()
                                              : std::numeric_limits<float>::epsilon());
  Value rstd = InverseRoot(square, eps);
  Value y = Multiply(x, BroadcastReduced(rstd, x.dims(), dims));
  if (auto weight = TrailingParameter(c, "weight", x)) y = Multiply(y, *weight);
  return {Finish(c, y, 0), Finish(c, rstd, 1)};
}

Values RmsNormBackward(Call& c) {
  Value x = c.tensor("input");
  x = Convert(x, ComputeType(x.dtype()));
  const std::vector<int64_t> dims = TrailingDims(c, x);
  Value rstd = BroadcastReduced(WithoutDims(c.tensor("rstd"), x, dims), x.dims(), dims);
  Value normalized = Multiply(x, rstd);
  Value grad = Convert(c.tensor("grad_out"), x.dtype());
  Values out(2);
  if (c.wants(0)) {
    auto weight = TrailingParameter(c, "weight", x);
    Value g = weight ? Multiply(grad, *weight) : grad;
    Value along = BroadcastReduced(MeanOver(Multiply(g, normalized), dims), x.dims(), dims);
    out[0] = Finish(c, Multiply(rstd, Subtract(g, Multiply(normalized, along))), 0);
  }
  if (c.wants(1)) {
    out[1] = Finish(c, Reduce(Multiply(grad, normalized), Reduction::kSum, OtherDims(x, dims)), 1);
  }
  return out;
}

std::vector<ResultSpec> RmsNormShape(const ShapeCall& c) {
  const ShapeTensor& input = c.tensor("input");
  const std::vector<int64_t> shape = c.argument("normalized_shape").toIntVector();
  CheckNormalizedShape(shape);
  CheckLikeNormalizedShape(c.tensor("weight"), "weight", shape);
  TORCH_CHECK_VALUE(input.sizes.size() >= shape.size(), "Input tensor must have at least ",
                    shape.size(), " dimensions, but got ", input.sizes.size());
  CheckEndsInNormalizedShape(input.sizes, shape);
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isFloatingType(input.dtype) || c10::isComplexType(input.dtype),
                              "\"rms_norm\" not implemented for '", input.dtype, "'");
  return {{.dtype = input.dtype, .sizes = input.sizes},
          {.dtype = c10::isReducedFloatingType(input.dtype) ? c10::ScalarType::Float : input.dtype,
           .sizes = StatisticsSizes(input.sizes, shape.size())}};
}

std::vector<ResultSpec> RmsNormBackwardShape(const ShapeCall& c) {
  const ShapeTensor& input = c.tensor("input");
  const ShapeTensor& weight = c.tensor("weight");
  const auto mask = c.argument("output_mask").toBoolList();
  std::vector<ResultSpec> out(2, Undefined());
  if (mask[0]) out[0] = {.dtype = input.dtype, .sizes = input.sizes};
  if (mask[1] && weight.defined) out[1] = {.dtype = weight.dtype, .sizes = weight.sizes};
  return out;
}

TPU_RULE({.op = "_fused_rms_norm", .lower = &RmsNorm, .shape = &RmsNormShape});
TPU_RULE({.op = "_fused_rms_norm_backward",
          .lower = &RmsNormBackward,
          .shape = &RmsNormBackwardShape});

// --- group norm

// The input as [N, groups, channels of a group, positions], normalized over the last two.
struct Groups {
  int64_t n, channels, positions, groups;
  std::vector<int64_t> dims = {2, 3};

  explicit Groups(Call& c)
      : n(c.integer("N")),
        channels(c.integer("C")),
        positions(c.integer("HxW")),
        groups(c.integer("group")) {}

  Value Split(Value x) const {
    return Reshape(Convert(x, ComputeType(x.dtype())), {n, groups, channels / groups, positions});
  }
  Value Statistic(Value statistic, DType dtype) const {
    return Reshape(Convert(statistic, dtype), {n, groups});
  }
  // A value for each channel, broadcast to x.
  Value PerChannel(Value parameter, Value x) const {
    Value split = Reshape(Convert(parameter, x.dtype()), {groups, channels / groups});
    return BroadcastInDim(split, x.dims(), {1, 2});
  }
};

Values GroupNorm(Call& c) {
  const Groups g(c);
  Value x = g.Split(c.tensor("input"));
  Normalized n = Standardize(x, g.dims, c.scalar("eps", x.dtype()));
  Value y = n.value;
  if (auto weight = c.optional_tensor("weight")) y = Multiply(y, g.PerChannel(*weight, x));
  if (auto bias = c.optional_tensor("bias")) y = Add(y, g.PerChannel(*bias, x));
  return {Finish(c, y, 0), Finish(c, n.mean, 1), Finish(c, n.rstd, 2)};
}

Values GroupNormBackward(Call& c) {
  const Groups g(c);
  Value x = g.Split(c.tensor("input"));
  Value grad = Convert(g.Split(c.tensor("grad_out")), x.dtype());
  Normalized n = StandardizeWith(x, g.dims, g.Statistic(c.tensor("mean"), x.dtype()),
                                 g.Statistic(c.tensor("rstd"), x.dtype()));
  Values out(3);
  if (c.wants(0)) {
    auto weight = c.optional_tensor("weight");
    Value inner = weight ? Multiply(grad, g.PerChannel(*weight, x)) : grad;
    out[0] = Finish(c, StandardizeGradient(n, inner), 0);
  }
  if (c.wants(1)) {
    out[1] = Finish(c, Reduce(Multiply(grad, n.value), Reduction::kSum, {0, 3}), 1);
  }
  if (c.wants(2)) out[2] = Finish(c, Reduce(grad, Reduction::kSum, {0, 3}), 2);
  return out;
}

std::vector<ResultSpec> GroupNormShape(const ShapeCall& c) {
  const ShapeTensor& input = c.tensor("input");
  const int64_t n = c.argument("N").toInt(), channels = c.argument("C").toInt();
  const int64_t groups = c.argument("group").toInt();
  TORCH_CHECK(groups > 0, "Expected num groups to be greater than 0, got ", groups);
  TORCH_CHECK(channels % groups == 0,
              "Expected number of channels in input to be divisible by num_groups, but got input "
              "of shape ",
              c10::IntArrayRef(input.sizes), " and num_groups=", groups);
  for (const char* name : {"weight", "bias"}) {
    const ShapeTensor& parameter = c.tensor(name);
    TORCH_CHECK(
        !parameter.defined || (parameter.sizes.size() == 1 && parameter.sizes[0] == channels),
        "Expected ", name,
        " to be a vector of size equal to the number of channels in input, but got ", name,
        " of shape ", c10::IntArrayRef(parameter.sizes), " and input of shape ",
        c10::IntArrayRef(input.sizes));
  }
  CheckFloating(c, "GroupNormKernelImpl");
  const c10::ScalarType statistics = ParameterType(c, {"weight", "bias"});
  return {{.dtype = input.dtype, .sizes = input.sizes, .strides = SuggestedStrides(input)},
          {.dtype = statistics, .sizes = {n, groups}},
          {.dtype = statistics, .sizes = {n, groups}}};
}

std::vector<ResultSpec> GroupNormBackwardShape(const ShapeCall& c) {
  const ShapeTensor& input = c.tensor("input");
  const int64_t channels = c.argument("C").toInt();
  const auto mask = c.argument("output_mask").toBoolList();
  const c10::ScalarType parameters = ParameterType(c, {"weight"});
  std::vector<ResultSpec> out(3, Undefined());
  if (mask[0]) {
    out[0] = {.dtype = input.dtype, .sizes = input.sizes, .strides = SuggestedStrides(input)};
  }
  if (mask[1]) out[1] = {.dtype = parameters, .sizes = {channels}};
  if (mask[2]) out[2] = {.dtype = parameters, .sizes = {channels}};
  return out;
}

TPU_RULE({.op = "native_group_norm", .lower = &GroupNorm, .shape = &GroupNormShape});
TPU_RULE({.op = "native_group_norm_backward",
          .lower = &GroupNormBackward,
          .shape = &GroupNormBackwardShape});

// --- batch norm

std::vector<int64_t> AllButChannels(Value x) { return OtherDims(x, {1}); }

Value PerChannel(Value parameter, Value x) {
  return BroadcastInDim(Convert(parameter, x.dtype()), x.dims(), {1});
}

// momentum * observed + (1 - momentum) * running, in the running statistic's dtype.
Value Updated(Value running, Value observed, Value momentum) {
  momentum = BroadcastTo(momentum, observed.dims());
  Value rest = Subtract(ConstantLike(momentum, 1), momentum);
  Value old = Convert(running, observed.dtype());
  return Convert(Add(Multiply(momentum, observed), Multiply(rest, old)), running.dtype());
}

struct BatchNormResults {
  Value output, save_mean, save_invstd;  // the last two empty in evaluation
  Value running_mean, running_var;       // as they are to be; empty if there are none
};

BatchNormResults BatchNormOf(Call& c, bool training, std::optional<Value> running_mean,
                             std::optional<Value> running_var) {
  Value x = c.tensor("input");
  x = Convert(x, ComputeType(x.dtype()));
  const std::vector<int64_t> dims = AllButChannels(x);
  Value eps = c.scalar("eps", x.dtype());
  BatchNormResults out;
  out.running_mean = running_mean.value_or(Value());
  out.running_var = running_var.value_or(Value());
  Normalized n;
  if (training) {
    n = Standardize(x, dims, eps);
    out.save_mean = Finish(c, n.mean, 1);
    out.save_invstd = Finish(c, n.rstd, 2);
    Value momentum = c.scalar("momentum", x.dtype());
    if (running_mean) out.running_mean = Updated(*running_mean, n.mean, momentum);
    if (running_var) {
      // The running variance is the unbiased one.
      Value unbiased = DividedBy(n.squares, CountOver(x.dims(), dims) - 1);
      out.running_var = Updated(*running_var, unbiased, momentum);
    }
  } else {
    Value variance = Convert(running_var.value(), x.dtype());
    n = StandardizeWith(x, dims, Convert(running_mean.value(), x.dtype()),
                        InverseRoot(variance, eps));
    out.save_mean = c.builder().Constant(c.result(1), 0);
    out.save_invstd = c.builder().Constant(c.result(2), 0);
  }
  Value y = n.value;
  if (auto weight = c.optional_tensor("weight")) y = Multiply(y, PerChannel(*weight, x));
  if (auto bias = c.optional_tensor("bias")) y = Add(y, PerChannel(*bias, x));
  out.output = Finish(c, y, 0);
  return out;
}

// Statistics that are not tracked are no results.
void AppendRunning(const BatchNormResults& r, Values& out) {
  if (r.running_mean) out.push_back(r.running_mean);
  if (r.running_var) out.push_back(r.running_var);
}

// Nothing is kept in reserve for the backward.
Value Reserve(Call& c) { return c.builder().Constant(c.result(3), 0); }

Values BatchNorm(Call& c) {
  BatchNormResults r = BatchNormOf(c, c.boolean("training"), c.optional_tensor("running_mean"),
                                   c.optional_tensor("running_var"));
  Values out = {r.output, r.save_mean, r.save_invstd};
  AppendRunning(r, out);
  return out;
}

Values BatchNormNoStatistics(Call& c) {
  BatchNormResults r = BatchNormOf(c, /*training=*/true, std::nullopt, std::nullopt);
  return {r.output, r.save_mean, r.save_invstd};
}

Values BatchNormNoTraining(Call& c) {
  BatchNormResults r = BatchNormOf(c, /*training=*/false, c.optional_tensor("running_mean"),
                                   c.optional_tensor("running_var"));
  return {r.output, r.save_mean, r.save_invstd};
}

Values BatchNormNoUpdate(Call& c) {
  Values out = BatchNormNoTraining(c);
  out.push_back(Reserve(c));
  return out;
}

Values BatchNormWithUpdate(Call& c) {
  BatchNormResults r = BatchNormOf(c, /*training=*/true, c.optional_tensor("running_mean"),
                                   c.optional_tensor("running_var"));
  Values out = {r.output, r.save_mean, r.save_invstd, Reserve(c)};
  AppendRunning(r, out);
  return out;
}

// In evaluation nothing is saved: empty tensors.
std::vector<ResultSpec> BatchNormResultsShape(const ShapeCall& c, bool training,
                                              c10::ScalarType statistics) {
  const ShapeTensor& input = c.tensor("input");
  TORCH_CHECK_INDEX(input.sizes.size() >= 2,
                    "Dimension out of range (expected to be in range of [-1, 0], but got 1)");
  TORCH_CHECK(
      std::find(input.sizes.begin(), input.sizes.end(), 0) == input.sizes.end() || !training,
      "input tensor must have at least one element, but got input_sizes = ",
      c10::IntArrayRef(input.sizes));
  CheckFloating(c, "batch_norm");
  const std::vector<int64_t> sizes = {training ? input.sizes[1] : 0};
  return {{.dtype = input.dtype, .sizes = input.sizes, .strides = SuggestedStrides(input)},
          {.dtype = statistics, .sizes = sizes},
          {.dtype = statistics, .sizes = sizes}};
}

void CheckRunning(const ShapeCall& c, bool needed) {
  const ShapeTensor& input = c.tensor("input");
  TORCH_CHECK_VALUE(c.tensor("running_mean").defined == c.tensor("running_var").defined,
                    "running_mean and running_var must either both be None or neither be None");
  for (const char* name : {"running_mean", "running_var"}) {
    const ShapeTensor& running = c.tensor(name);
    TORCH_CHECK(running.defined || !needed, name, " must be defined in evaluation mode");
    if (!running.defined || input.sizes.size() < 2) continue;
    int64_t count = 1;
    for (int64_t size : running.sizes) count *= size;
    TORCH_CHECK(count == input.sizes[1], name, " should contain ", input.sizes[1], " elements not ",
                count);
  }
}

std::vector<ResultSpec> BatchNormShapeIn(const ShapeCall& c, bool training) {
  CheckRunning(c, !training);
  return BatchNormResultsShape(c, training,
                               ParameterType(c, {"weight", "bias", "running_mean", "running_var"}));
}

std::vector<ResultSpec> BatchNormShape(const ShapeCall& c) {
  return BatchNormShapeIn(c, c.argument("training").toBool());
}

std::vector<ResultSpec> BatchNormNoTrainingShape(const ShapeCall& c) {
  return BatchNormShapeIn(c, /*training=*/false);
}

std::vector<ResultSpec> BatchNormNoStatisticsShape(const ShapeCall& c) {
  return BatchNormResultsShape(c, /*training=*/true, ParameterType(c, {"weight", "bias"}));
}

std::vector<ResultSpec> BatchNormNoUpdateShape(const ShapeCall& c) {
  std::vector<ResultSpec> out = BatchNormShapeIn(c, /*training=*/false);
  out.push_back({.dtype = c10::ScalarType::Byte, .sizes = {0}});
  return out;
}

ResultSpec Like(const ShapeTensor& tensor) {
  return {.dtype = tensor.dtype, .sizes = tensor.sizes};
}

std::vector<ResultSpec> BatchNormFunctionalShape(const ShapeCall& c) {
  std::vector<ResultSpec> out = BatchNormShape(c);
  out.push_back(Like(c.tensor("running_mean")));
  out.push_back(Like(c.tensor("running_var")));
  return out;
}

std::vector<ResultSpec> BatchNormWithUpdateShape(const ShapeCall& c) {
  std::vector<ResultSpec> out = BatchNormShapeIn(c, /*training=*/true);
  out.push_back({.dtype = c10::ScalarType::Byte, .sizes = {0}});
  return out;
}

std::vector<ResultSpec> BatchNormWithUpdateFunctionalShape(const ShapeCall& c) {
  std::vector<ResultSpec> out = BatchNormWithUpdateShape(c);
  out.push_back(Like(c.tensor("running_mean")));
  out.push_back(Like(c.tensor("running_var")));
  return out;
}

TPU_RULE({.op = "native_batch_norm",
          .lower = &BatchNorm,
          .shape = &BatchNormShape,
          .also_writes = {"running_mean", "running_var"}});
TPU_RULE({.op = "_native_batch_norm_legit",
          .lower = &BatchNorm,
          .shape = &BatchNormShape,
          .also_writes = {"running_mean", "running_var"}});
TPU_RULE({.op = "_native_batch_norm_legit_functional",
          .lower = &BatchNorm,
          .shape = &BatchNormFunctionalShape});
TPU_RULE({.op = "_native_batch_norm_legit.no_stats",
          .lower = &BatchNormNoStatistics,
          .shape = &BatchNormNoStatisticsShape});
TPU_RULE({.op = "_native_batch_norm_legit_no_training",
          .lower = &BatchNormNoTraining,
          .shape = &BatchNormNoTrainingShape});
TPU_RULE({.op = "_batch_norm_with_update",
          .lower = &BatchNormWithUpdate,
          .shape = &BatchNormWithUpdateShape,
          .also_writes = {"running_mean", "running_var"}});
TPU_RULE({.op = "_batch_norm_with_update_functional",
          .lower = &BatchNormWithUpdate,
          .shape = &BatchNormWithUpdateFunctionalShape});
TPU_RULE({.op = "_batch_norm_no_update",
          .lower = &BatchNormNoUpdate,
          .shape = &BatchNormNoUpdateShape});

// `saved_rstd` holds the inverse standard deviation whatever the schema calls it.
Values BatchNormGradients(Call& c, bool training, std::string_view saved_rstd) {
  Value x = c.tensor("input");
  x = Convert(x, ComputeType(x.dtype()));
  const std::vector<int64_t> dims = AllButChannels(x);
  Value grad = Convert(c.tensor("grad_out"), x.dtype());
  Value mean, rstd;
  if (training) {
    mean = Convert(c.tensor("save_mean"), x.dtype());
    rstd = Convert(c.tensor(saved_rstd), x.dtype());
  } else {
    mean = Convert(c.tensor("running_mean"), x.dtype());
    rstd = InverseRoot(Convert(c.tensor("running_var"), x.dtype()), c.scalar("eps", x.dtype()));
  }
  Normalized n = StandardizeWith(x, dims, mean, rstd);
  Values out(3);
  if (c.wants(0)) {
    auto weight = c.optional_tensor("weight");
    Value inner = weight ? Multiply(grad, PerChannel(*weight, x)) : grad;
    out[0] = Finish(c,
                    training ? StandardizeGradient(n, inner)
                             : Multiply(inner, BroadcastReduced(rstd, x.dims(), dims)),
                    0);
  }
  if (c.wants(1)) out[1] = Finish(c, Reduce(Multiply(grad, n.value), Reduction::kSum, dims), 1);
  if (c.wants(2)) out[2] = Finish(c, Reduce(grad, Reduction::kSum, dims), 2);
  return out;
}

Values NativeBatchNormBackward(Call& c) {
  return BatchNormGradients(c, c.boolean("train"), "save_invstd");
}

Values BatchNormBackward(Call& c) { return BatchNormGradients(c, c.boolean("update"), "save_var"); }

std::vector<ResultSpec> BatchNormBackwardShape(const ShapeCall& c) {
  const ShapeTensor& input = c.tensor("input");
  const auto mask = c.argument("output_mask").toBoolList();
  const c10::ScalarType parameters = ParameterType(c, {"weight", "running_mean", "running_var"});
  const std::vector<int64_t> channels = {input.sizes.at(1)};
  std::vector<ResultSpec> out(3, Undefined());
  if (mask[0]) {
    out[0] = {.dtype = input.dtype, .sizes = input.sizes, .strides = SuggestedStrides(input)};
  }
  if (mask[1]) out[1] = {.dtype = parameters, .sizes = channels};
  if (mask[2]) out[2] = {.dtype = parameters, .sizes = channels};
  return out;
}

TPU_RULE({.op = "native_batch_norm_backward",
          .lower = &NativeBatchNormBackward,
          .shape = &BatchNormBackwardShape});
TPU_RULE({.op = "batch_norm_backward",
          .lower = &BatchNormBackward,
          .shape = &BatchNormBackwardShape});

// --- weight norm: v * (g / |v|), the norm over all dimensions but `dim`, the first or the last

struct WeightNormCall {
  Value v, g;                 // in the compute type
  std::vector<int64_t> dims;  // normed

  explicit WeightNormCall(const Call& c, std::string_view v_name, std::string_view g_name) {
    v = c.tensor(v_name);
    v = Convert(v, ComputeType(v.dtype()));
    g = Convert(c.tensor(g_name), v.dtype());
    dims = OtherDims(v, {WrapDim(c.integer("dim"), v.rank())});
  }
  Value Spread(Value per_slice) const {
    Dims sizes = v.dims();
    for (int64_t dim : dims) sizes[dim] = 1;
    return BroadcastTo(Reshape(per_slice, sizes), v.dims());
  }
};

Values WeightNorm(Call& c) {
  const WeightNormCall w(c, "v", "g");
  Value norm = Sqrt(Reduce(Multiply(w.v, w.v), Reduction::kSum, w.dims));
  Value factor = Divide(Reshape(w.g, norm.dims()), norm);
  return {Finish(c, Multiply(w.v, w.Spread(factor)), 0), Finish(c, norm, 1)};
}

Values WeightNormBackward(Call& c) {
  const WeightNormCall w(c, "saved_v", "saved_g");
  Value grad = Convert(c.tensor("grad_w"), w.v.dtype());
  Value along = Reduce(Multiply(grad, w.v), Reduction::kSum, w.dims);
  Value norm = Reshape(Convert(c.tensor("saved_norms"), w.v.dtype()), along.dims());
  Value factor = Divide(Reshape(w.g, along.dims()), norm);
  Value back = Divide(along, Multiply(norm, norm));
  Value grad_v = Multiply(w.Spread(factor), Subtract(grad, Multiply(w.v, w.Spread(back))));
  return {Finish(c, grad_v, 0), Finish(c, Divide(along, norm), 1)};
}

std::vector<ResultSpec> WeightNormShape(const ShapeCall& c) {
  const ShapeTensor &v = c.tensor("v"), &g = c.tensor("g");
  const bool narrow = g.dtype == c10::ScalarType::BFloat16;
  return {
      Like(v),
      {.dtype = narrow ? c10::ScalarType::Float : g.dtype, .sizes = g.sizes, .strides = g.strides}};
}

std::vector<ResultSpec> WeightNormBackwardShape(const ShapeCall& c) {
  return {Like(c.tensor("saved_v")), Like(c.tensor("saved_g"))};
}

TPU_RULE({.op = "_weight_norm_interface", .lower = &WeightNorm, .shape = &WeightNormShape});
TPU_RULE({.op = "_weight_norm_interface_backward",
          .lower = &WeightNormBackward,
          .shape = &WeightNormBackwardShape});

}  // namespace
}  // namespace torch_tpu::lowering
