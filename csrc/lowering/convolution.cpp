#include <c10/core/MemoryFormat.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "lowering/dot.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT: rules read like the mathematics

// --- the parameters every convolution operator takes

struct Parameters {
  std::vector<int64_t> stride, padding, dilation, output_padding;
  bool transposed = false;
  int64_t groups = 1;
};

std::vector<int64_t> Expand(std::vector<int64_t> list, const char* name, int64_t rank) {
  TORCH_CHECK(list.size() == 1 || static_cast<int64_t>(list.size()) == rank, "expected ", name,
              " to be a single integer value or a list of ", rank,
              " values to match the convolution dimensions, but got ", name, "=",
              c10::IntArrayRef(list));
  if (static_cast<int64_t>(list.size()) == rank) return list;
  return std::vector<int64_t>(rank, list[0]);
}

Parameters ParametersOf(const Call& c, int64_t rank) {
  return {Expand(c.integers("stride"), "stride", rank),
          Expand(c.integers("padding"), "padding", rank),
          Expand(c.integers("dilation"), "dilation", rank),
          Expand(c.integers("output_padding"), "output_padding", rank),
          c.boolean("transposed"),
          c.integer("groups")};
}

Parameters ParametersOf(const ShapeCall& s, int64_t rank) {
  const auto list = [&](const char* name) {
    return Expand(s.argument(name).toIntVector(), name, rank);
  };
  return {list("stride"),
          list("padding"),
          list("dilation"),
          list("output_padding"),
          s.argument("transposed").toBool(),
          s.argument("groups").toInt()};
}

// --- values

// A convolution in [batch, feature, spatial...] order whose window may have negative padding, which
// not every compiler takes: there the operand is cropped first.
Value Convolve(Call& c, Value lhs, Value rhs, const ConvolutionDims& dims,
               ConvolutionWindow window) {
  // In half types the sums are float32; widening first lets the result be rounded once, after the
  // bias. A one-pass float32 product of widened bfloat16 numbers is exact.
  const DType dtype = lhs.dtype();
  Precision precision = PrecisionOf(c, dtype);
  DType compute = ComputeType(dtype);
  if (dtype == DType::kF16) precision = c.precision();
  // Narrow integers wrap alike whether summed narrow or wide.
  if (IsInteger(dtype) && ByteSize(dtype) < 4) compute = DType::kS32;
  lhs = Convert(lhs, compute);
  rhs = Convert(rhs, compute);
  const bool negative =
      std::any_of(window.padding.begin(), window.padding.end(),
                  [](const std::pair<int64_t, int64_t>& p) { return p.first < 0 || p.second < 0; });
  if (negative) {
    Dims low(lhs.rank(), 0), high(lhs.rank(), 0), interior(lhs.rank(), 0);
    for (size_t i = 0; i < window.padding.size(); ++i) {
      const int64_t d = dims.input_spatial[i];
      low[d] = window.padding[i].first;
      high[d] = window.padding[i].second;
      interior[d] = window.lhs_dilation.empty() ? 0 : window.lhs_dilation[i] - 1;
    }
    lhs = Pad(lhs, Scalar(c.builder(), compute, 0), low, high, interior);
    window.padding.clear();
    window.lhs_dilation.clear();
  }
  return Convolution(lhs, rhs, dims, window, precision);
}

ConvolutionDims PlainDims(int64_t rank) {
  ConvolutionDims dims;
  for (int64_t i = 0; i < rank; ++i) {
    dims.input_spatial.push_back(i + 2);
    dims.kernel_spatial.push_back(i + 2);
    dims.output_spatial.push_back(i + 2);
  }
  return dims;
}

// [N, C, ...] with weights [O, C / groups, ...]; unrounded.
Value Correlate(Call& c, Value input, Value weight, const Parameters& p) {
  const int64_t rank = input.rank() - 2;
  ConvolutionWindow window{.strides = p.stride, .rhs_dilation = p.dilation};
  for (int64_t i = 0; i < rank; ++i) window.padding.emplace_back(p.padding[i], p.padding[i]);
  window.feature_groups = p.groups;
  return Convolve(c, input, weight, PlainDims(rank), window);
}

// The adjoint of Correlate: [N, C, ...] with weights [C, O / groups, ...]; unrounded. The input's
// rows lie `stride` apart, and the kernel runs backwards.
Value CorrelateTransposed(Call& c, Value input, Value weight, const Parameters& p) {
  const int64_t rank = input.rank() - 2;
  const int64_t in_features = weight.dim(0), out_features = weight.dim(1) * p.groups;
  std::vector<int64_t> spatial(rank);
  std::iota(spatial.begin(), spatial.end(), 2);
  Value kernel = Reverse(weight, spatial);
  if (p.groups != 1) {
    // [g * C/g, O/g, ...] to [C/g, g * O/g, ...]: features of all groups side by side.
    Dims split = {p.groups, in_features / p.groups, weight.dim(1)};
    std::vector<int64_t> permutation = {1, 0, 2};
    Dims merged = {in_features / p.groups, out_features};
    for (int64_t i = 0; i < rank; ++i) {
      split.push_back(weight.dim(i + 2));
      permutation.push_back(i + 3);
      merged.push_back(weight.dim(i + 2));
    }
    kernel = Reshape(Transpose(Reshape(kernel, split), permutation), merged);
  }
  ConvolutionDims dims = PlainDims(rank);
  dims.kernel_input_feature = 0;
  dims.kernel_output_feature = 1;
  ConvolutionWindow window{.lhs_dilation = p.stride, .rhs_dilation = p.dilation};
  for (int64_t i = 0; i < rank; ++i) {
    const int64_t reach = p.dilation[i] * (weight.dim(i + 2) - 1);
    window.padding.emplace_back(reach - p.padding[i], reach - p.padding[i] + p.output_padding[i]);
  }
  window.feature_groups = p.groups;
  return Convolve(c, input, kernel, dims, window);
}

// Gradient of Correlate's weights (of dims `weight`): the input correlated with the gradient, batch
// and features changing places, strides and dilations too. Unrounded.
Value WeightGradient(Call& c, Value grad, Value input, const Dims& weight, const Parameters& p) {
  const int64_t rank = input.rank() - 2;
  ConvolutionDims dims = PlainDims(rank);
  dims.input_batch = 1;
  dims.input_feature = 0;
  dims.kernel_input_feature = 0;
  dims.kernel_output_feature = 1;
  dims.output_batch = 1;
  dims.output_feature = 0;
  ConvolutionWindow window{.strides = p.dilation, .rhs_dilation = p.stride};
  for (int64_t i = 0; i < rank; ++i) {
    // What makes the result as large as the weights.
    const int64_t covered =
        p.stride[i] * (grad.dim(i + 2) - 1) + p.dilation[i] * (weight[i + 2] - 1) + 1;
    window.padding.emplace_back(p.padding[i], covered - input.dim(i + 2) - p.padding[i]);
  }
  window.batch_groups = p.groups;
  return Convolve(c, input, grad, dims, window);
}

Value AddBias(Value x, std::optional<Value> bias, const Type& out) {
  if (bias) x = Add(x, BroadcastInDim(Convert(*bias, x.dtype()), x.dims(), {1}));
  return Convert(x, out.dtype);
}

Values ConvolutionRule(Call& c) {
  Value input = c.tensor("input"), weight = c.tensor("weight");
  const auto bias = c.optional_tensor("bias");
  const Type& out = c.result();
  const Parameters p = ParametersOf(c, weight.rank() - 2);
  if (input.numel() == 0 || weight.numel() == 0 || out.numel() == 0) {
    const Type zeros{ComputeType(out.dtype), out.dims};
    return {AddBias(c.builder().Constant(zeros, 0), out.numel() ? bias : std::nullopt, out)};
  }
  Value product =
      p.transposed ? CorrelateTransposed(c, input, weight, p) : Correlate(c, input, weight, p);
  return {AddBias(product, bias, out)};
}

Value InputGradient(Call& c, Value grad, Value weight, const Dims& input, Parameters p) {
  const int64_t rank = weight.rank() - 2;
  if (!p.transposed) {
    for (int64_t i = 0; i < rank; ++i) {
      // The rows the stride never reached.
      const int64_t reached = (grad.dim(i + 2) - 1) * p.stride[i] - 2 * p.padding[i] +
                              p.dilation[i] * (weight.dim(i + 2) - 1) + 1;
      p.output_padding[i] = input[i + 2] - reached;
    }
    return CorrelateTransposed(c, grad, weight, p);
  }
  Value x = Correlate(c, grad, weight, p);
  // An output padding of a stride or more gives rows that belong to no input.
  for (int64_t i = 2; i < x.rank(); ++i) {
    if (x.dim(i) != input[i]) x = SliceDim(x, i, 0, input[i]);
  }
  return x;
}

Values ConvolutionBackward(Call& c) {
  Value grad = c.tensor("grad_output"), input = c.tensor("input"), weight = c.tensor("weight");
  const Parameters p = ParametersOf(c, weight.rank() - 2);
  const std::vector<bool> mask = c.booleans("output_mask");
  const bool empty = grad.numel() == 0 || input.numel() == 0 || weight.numel() == 0;
  Values results(3);
  const auto give = [&](int i, auto&& compute) {
    if (!mask[i] || !c.wants(i)) return;
    const Type& out = c.result(i);
    results[i] =
        empty || out.numel() == 0 ? c.builder().Constant(out, 0) : Convert(compute(), out.dtype);
  };
  give(0, [&] { return InputGradient(c, grad, weight, input.dims(), p); });
  give(1, [&] {
    return p.transposed ? WeightGradient(c, input, grad, weight.dims(), p)
                        : WeightGradient(c, grad, input, weight.dims(), p);
  });
  if (mask[2] && c.wants(2)) {
    std::vector<int64_t> all_but_features = {0};
    for (int i = 2; i < grad.rank(); ++i) all_but_features.push_back(i);
    Value wide = Convert(grad, ComputeType(grad.dtype()));
    results[2] = Convert(Reduce(wide, Reduction::kSum, all_but_features), c.result(2).dtype);
  }
  return results;
}

// --- shapes

std::string Product(const std::vector<int64_t>& sizes) {
  std::ostringstream out;
  for (size_t i = 0; i < sizes.size(); ++i) out << (i ? " x " : "") << sizes[i];
  return out.str();
}

// "kernel_height: 3 kernel_width: 3", as the 2-d kernels say it (1-d ones run as height 1).
std::string Named(const char* name, std::vector<int64_t> values) {
  const std::vector<const char*> axes = values.size() > 2
                                            ? std::vector<const char*>{"depth", "height", "width"}
                                            : std::vector<const char*>{"height", "width"};
  if (values.size() == 1) values.insert(values.begin(), 1);
  std::ostringstream out;
  for (size_t i = 0; i < values.size(); ++i) {
    out << (i ? " " : "") << name << "_" << axes[i] << ": " << values[i];
  }
  return out.str();
}

bool AnyBelow(const std::vector<int64_t>& list, int64_t least) {
  return std::any_of(list.begin(), list.end(), [least](int64_t i) { return i < least; });
}

void CheckKernel(const std::vector<int64_t>& kernel) {
  TORCH_CHECK(!AnyBelow(kernel, 1), "kernel size should be greater than zero, but got ",
              Named("kernel", kernel));
}

void CheckArguments(const ShapeTensor& input, const ShapeTensor& weight, const ShapeTensor& bias,
                    const Parameters& p) {
  const c10::IntArrayRef in(input.sizes), w(weight.sizes);
  const size_t k = weight.sizes.size();
  TORCH_CHECK(!AnyBelow(p.padding, 0), "negative padding is not supported");
  TORCH_CHECK(!AnyBelow(p.output_padding, 0), "negative output_padding is not supported");
  TORCH_CHECK(!AnyBelow(p.stride, 1), "non-positive stride is not supported");
  TORCH_CHECK(!AnyBelow(p.dilation, 1), "dilation should be greater than zero, but got ",
              c10::IntArrayRef(p.dilation));
  TORCH_CHECK(in.size() == k, "Expected ", k, "-dimensional input for ", k, "-dimensional weight ",
              w, ", but got ", in.size(), "-dimensional input of size ", in, " instead");
  TORCH_CHECK(w[0] >= p.groups, "Given groups=", p.groups, ", expected weight to be at least ",
              p.groups, " at dimension 0, but got weight of size ", w, " instead");
  TORCH_CHECK(w[0] % p.groups == 0, "Given groups=", p.groups,
              ", expected weight to be divisible by ", p.groups,
              " at dimension 0, but got weight of size [", w, "] instead");
  const int64_t in_channels = p.transposed ? w[0] : w[1] * p.groups;
  const int64_t out_channels = p.transposed ? w[1] * p.groups : w[0];
  const bool bias_fits = !bias.defined || bias.sizes == std::vector<int64_t>{out_channels};
  if (p.transposed) {
    TORCH_CHECK(in[1] == in_channels, "Given transposed=1, weight of size ", w, ", expected input",
                in, " to have ", in_channels, " channels, but got ", in[1], " channels instead");
    TORCH_CHECK(bias_fits, "Given transposed=1, weight of size ", w,
                ", expected bias to be 1-dimensional with ", out_channels,
                " elements, but got bias of size ", c10::IntArrayRef(bias.sizes), " instead");
  } else {
    TORCH_CHECK(in[1] == in_channels, "Given groups=", p.groups, ", weight of size ", w,
                ", expected input", in, " to have ", in_channels, " channels, but got ", in[1],
                " channels instead");
    TORCH_CHECK(bias_fits, "Given weight of size ", w, ", expected bias to be 1-dimensional with ",
                out_channels, " elements, but got bias of size ", c10::IntArrayRef(bias.sizes),
                " instead");
  }
}

// channels-last if input or weight is, as CPU's kernels have it.
std::vector<int64_t> LayoutOf(const ShapeTensor& input, const ShapeTensor& weight,
                              const std::vector<int64_t>& sizes) {
  for (const ShapeTensor* t : {&input, &weight}) {
    if (sizes.size() == 4 && c10::is_channels_last_strides_2d(t->sizes, t->strides)) {
      return c10::get_channels_last_strides_2d(sizes);
    }
    if (sizes.size() == 5 && c10::is_channels_last_strides_3d(t->sizes, t->strides)) {
      return c10::get_channels_last_strides_3d(sizes);
    }
  }
  return {};
}

// "float", "c10::BFloat16": what CPU calls a dtype here.
caffe2::TypeMeta TypeName(c10::ScalarType type) { return caffe2::TypeMeta::fromScalarType(type); }

std::vector<ResultSpec> ConvolutionShape(const ShapeCall& s) {
  const ShapeTensor &input = s.tensor("input"), &weight = s.tensor("weight"),
                    &bias = s.tensor("bias");
  const int64_t rank = static_cast<int64_t>(weight.sizes.size()) - 2;
  TORCH_CHECK(rank > 0, "weight should have at least three dimensions");
  TORCH_CHECK(s.argument("groups").toInt() > 0, "non-positive groups is not supported");
  const Parameters p = ParametersOf(s, rank);
  CheckArguments(input, weight, bias, p);

  std::vector<int64_t> sizes = {input.sizes[0],
                                p.transposed ? weight.sizes[1] * p.groups : weight.sizes[0]};
  const std::vector<int64_t> in(input.sizes.begin() + 2, input.sizes.end());
  const std::vector<int64_t> kernel(weight.sizes.begin() + 2, weight.sizes.end());
  if (input.sizes[1] == 0) sizes[1] = 0;
  if (p.transposed) {
    CheckKernel(kernel);
    bool fits = true;
    for (int64_t i = 0; i < rank; ++i) {
      fits &= p.output_padding[i] < std::max(p.stride[i], p.dilation[i]);
      sizes.push_back((in[i] - 1) * p.stride[i] - 2 * p.padding[i] +
                      p.dilation[i] * (kernel[i] - 1) + p.output_padding[i] + 1);
    }
    TORCH_CHECK(fits, "output padding must be smaller than either stride or dilation, but got ",
                Named("output_padding", p.output_padding), " ", Named("stride", p.stride), " ",
                Named("dilation", p.dilation));
  } else {
    std::vector<int64_t> padded(rank), effective(rank);
    bool fits = true;
    for (int64_t i = 0; i < rank; ++i) {
      padded[i] = in[i] + 2 * p.padding[i];
      effective[i] = p.dilation[i] * (kernel[i] - 1) + 1;
      fits &= padded[i] >= effective[i];
      sizes.push_back((padded[i] - effective[i]) / p.stride[i] + 1);
    }
    TORCH_CHECK(fits, "Calculated padded input size per channel: (", Product(padded),
                "). Kernel size: (", Product(effective),
                "). Kernel size can't be greater than actual input size");
    CheckKernel(kernel);
  }
  const std::vector<int64_t> out(sizes.begin() + 2, sizes.end());
  TORCH_CHECK(!AnyBelow(out, 1), "Given input size per channel: (", Product(in),
              "). Calculated output size per channel: (", Product(out),
              "). Output size is too small");
  TORCH_CHECK(input.dtype == weight.dtype, "expected scalar type ", input.dtype, " but found ",
              weight.dtype);
  TORCH_CHECK(!bias.defined || input.dtype == bias.dtype, "Input type (", TypeName(input.dtype),
              ") and bias type (", TypeName(bias.dtype), ") should be the same");
  return {{.dtype = input.dtype, .sizes = sizes, .strides = LayoutOf(input, weight, sizes)}};
}

std::vector<ResultSpec> ConvolutionBackwardShape(const ShapeCall& s) {
  const ShapeTensor &grad = s.tensor("grad_output"), &input = s.tensor("input"),
                    &weight = s.tensor("weight");
  const auto mask = s.argument("output_mask").toBoolList();
  const int64_t features = grad.sizes.size() > 1 ? grad.sizes[1] : 0;
  return {{.dtype = grad.dtype,
           .sizes = input.sizes,
           .strides = LayoutOf(input, weight, input.sizes),
           .defined = mask.get(0)},
          {.dtype = grad.dtype,
           .sizes = weight.sizes,
           .strides = LayoutOf(input, weight, weight.sizes),
           .defined = mask.get(1)},
          {.dtype = grad.dtype, .sizes = {features}, .strides = {}, .defined = mask.get(2)}};
}

TPU_RULE({.op = "convolution", .lower = &ConvolutionRule, .shape = &ConvolutionShape});
TPU_RULE({.op = "convolution_overrideable", .lower = &ConvolutionRule, .shape = &ConvolutionShape});
TPU_RULE({.op = "convolution_backward",
          .lower = &ConvolutionBackward,
          .shape = &ConvolutionBackwardShape});
TPU_RULE({.op = "convolution_backward_overrideable",
          .lower = &ConvolutionBackward,
          .shape = &ConvolutionBackwardShape});

}  // namespace
}  // namespace torch_tpu::lowering
