#include <algorithm>

#include "stablehlo/builder.h"
#include "stablehlo/internal.h"

namespace torch_tpu::stablehlo {
namespace {

std::string PrecisionConfig(Precision precision) {
  constexpr std::string_view kNames[] = {"DEFAULT", "HIGH", "HIGHEST"};
  const std::string one =
      "#stablehlo<precision " + std::string(kNames[static_cast<int>(precision)]) + ">";
  return "precision_config = [" + one + ", " + one + "]";
}

bool Contains(const std::vector<int64_t>& values, int64_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// The dimensions' sizes agree pairwise.
void CheckPaired(std::string_view name, Value lhs, const std::vector<int64_t>& lhs_dims, Value rhs,
                 const std::vector<int64_t>& rhs_dims) {
  CheckDimensions(name, lhs_dims, lhs.rank(), lhs);
  CheckDimensions(name, rhs_dims, rhs.rank(), rhs);
  bool fits = lhs_dims.size() == rhs_dims.size();
  for (size_t i = 0; fits && i < lhs_dims.size(); ++i) {
    fits = lhs.dims()[lhs_dims[i]] == rhs.dims()[rhs_dims[i]];
  }
  if (!fits) {
    Fail(name, "dimensions " + List(lhs_dims) + " and " + List(rhs_dims) + " do not fit",
         {lhs, rhs});
  }
}

bool IsFloat8(DType dtype) { return IsFloat(dtype) && ByteSize(dtype) == 1; }

// "[b, f, 0, 1]": what each dimension of one operand of a convolution is.
std::string Layout(std::string_view name, Value x, char first, int64_t first_dim, char second,
                   int64_t second_dim, const std::vector<int64_t>& spatial) {
  std::vector<std::string> labels(spatial.size() + 2);
  std::vector<int64_t> all = {first_dim, second_dim};
  all.insert(all.end(), spatial.begin(), spatial.end());
  CheckDimensions(name, all, static_cast<int64_t>(all.size()), x);
  labels[first_dim] = first;
  labels[second_dim] = second;
  for (size_t i = 0; i < spatial.size(); ++i) labels[spatial[i]] = std::to_string(i);
  std::string text = "[";
  for (size_t i = 0; i < labels.size(); ++i) {
    if (i > 0) text.append(", ");
    text.append(labels[i]);
  }
  text.push_back(']');
  return text;
}

void CheckMatrices(std::string_view name, Value x, const Values& operands) {
  if (!IsFloat(x.dtype()) && !IsComplex(x.dtype())) {
    FailDType(name, "not defined for this dtype", operands);
  }
  if (x.rank() < 2 || x.dim(-1) != x.dim(-2)) Fail(name, "matrices are not square", operands);
}

}  // namespace

Value DotGeneral(Value lhs, Value rhs, const DotDims& dims, Precision precision,
                 std::optional<DType> result) {
  constexpr std::string_view kName = "stablehlo.dot_general";
  CheckDefined(kName, {lhs, rhs});
  if (lhs.dtype() != rhs.dtype() && !(IsFloat8(lhs.dtype()) && IsFloat8(rhs.dtype()))) {
    Fail(kName, "operand dtypes differ", {lhs, rhs});
  }
  CheckPaired(kName, lhs, dims.lhs_batch, rhs, dims.rhs_batch);
  CheckPaired(kName, lhs, dims.lhs_contract, rhs, dims.rhs_contract);
  Type type{result.value_or(lhs.dtype()), {}};
  for (int64_t dim : dims.lhs_batch) type.dims.push_back(lhs.dims()[dim]);
  for (int i = 0; i < lhs.rank(); ++i) {
    const bool batch = Contains(dims.lhs_batch, i);
    const bool contracted = Contains(dims.lhs_contract, i);
    if (batch && contracted) Fail(kName, "a dimension is both batch and contracted", {lhs, rhs});
    if (!batch && !contracted) type.dims.push_back(lhs.dim(i));
  }
  for (int i = 0; i < rhs.rank(); ++i) {
    const bool batch = Contains(dims.rhs_batch, i);
    const bool contracted = Contains(dims.rhs_contract, i);
    if (batch && contracted) Fail(kName, "a dimension is both batch and contracted", {lhs, rhs});
    if (!batch && !contracted) type.dims.push_back(rhs.dim(i));
  }
  std::string attributes = "dot_dimension_numbers = #stablehlo.dot<";
  if (!dims.lhs_batch.empty()) {
    attributes.append("lhs_batching_dimensions = ").append(List(dims.lhs_batch)).append(", ");
    attributes.append("rhs_batching_dimensions = ").append(List(dims.rhs_batch)).append(", ");
  }
  attributes.append("lhs_contracting_dimensions = ").append(List(dims.lhs_contract)).append(", ");
  attributes.append("rhs_contracting_dimensions = ").append(List(dims.rhs_contract)).append(">, ");
  attributes.append(PrecisionConfig(precision));
  return EmitOne(kName, {lhs, rhs}, attributes, type);
}

Value Convolution(Value lhs, Value rhs, const ConvolutionDims& dims,
                  const ConvolutionWindow& window, Precision precision) {
  constexpr std::string_view kName = "stablehlo.convolution";
  CheckDefined(kName, {lhs, rhs});
  const size_t spatial = dims.input_spatial.size();
  if (lhs.dtype() != rhs.dtype()) Fail(kName, "operand dtypes differ", {lhs, rhs});
  if (lhs.dims().size() != spatial + 2 || rhs.dims().size() != spatial + 2 ||
      dims.kernel_spatial.size() != spatial || dims.output_spatial.size() != spatial) {
    Fail(kName, "ranks and dimension numbers do not fit", {lhs, rhs});
  }
  const std::string layout =
      Layout(kName, lhs, 'b', dims.input_batch, 'f', dims.input_feature, dims.input_spatial) + "x" +
      Layout(kName, rhs, 'o', dims.kernel_output_feature, 'i', dims.kernel_input_feature,
             dims.kernel_spatial) +
      "->" +
      Layout(kName, lhs, 'b', dims.output_batch, 'f', dims.output_feature, dims.output_spatial);

  const auto filled = [&](const Dims& list) {
    if (!list.empty() && list.size() != spatial) {
      Fail(kName, "the window does not fit", {lhs, rhs});
    }
    return list.empty() ? Dims(spatial, 1) : list;
  };
  const Dims strides = filled(window.strides);
  const Dims lhs_dilation = filled(window.lhs_dilation);
  const Dims rhs_dilation = filled(window.rhs_dilation);
  auto padding = window.padding;
  if (padding.empty()) padding.assign(spatial, {0, 0});
  auto reversal = window.reversal;
  if (reversal.empty()) reversal.assign(spatial, false);
  if (padding.size() != spatial || reversal.size() != spatial) {
    Fail(kName, "the window does not fit", {lhs, rhs});
  }

  const int64_t batch = lhs.dims()[dims.input_batch];
  const int64_t in_features = lhs.dims()[dims.input_feature];
  const int64_t out_features = rhs.dims()[dims.kernel_output_feature];
  if (window.feature_groups < 1 || window.batch_groups < 1 ||
      in_features != rhs.dims()[dims.kernel_input_feature] * window.feature_groups ||
      out_features % window.feature_groups != 0 || batch % window.batch_groups != 0 ||
      out_features % window.batch_groups != 0) {
    Fail(kName, "features, batch and groups do not fit", {lhs, rhs});
  }
  Type type{lhs.dtype(), Dims(spatial + 2)};
  type.dims[dims.output_batch] = batch / window.batch_groups;
  type.dims[dims.output_feature] = out_features;
  for (size_t i = 0; i < spatial; ++i) {
    const int64_t in = lhs.dims()[dims.input_spatial[i]];
    const int64_t kernel = rhs.dims()[dims.kernel_spatial[i]];
    if (strides[i] < 1 || lhs_dilation[i] < 1 || rhs_dilation[i] < 1) {
      Fail(kName, "strides and dilations are positive", {lhs, rhs});
    }
    const int64_t padded =
        (in == 0 ? 0 : (in - 1) * lhs_dilation[i] + 1) + padding[i].first + padding[i].second;
    const int64_t size = kernel == 0 ? 0 : (kernel - 1) * rhs_dilation[i] + 1;
    type.dims[dims.output_spatial[i]] = padded < size ? 0 : (padded - size) / strides[i] + 1;
  }

  std::string attributes = "dimension_numbers = #stablehlo.conv<" + layout + ">";
  attributes.append(", window_strides = ").append(Array(strides));
  attributes.append(", padding = ").append(Pairs(padding));
  attributes.append(", lhs_dilation = ").append(Array(lhs_dilation));
  attributes.append(", rhs_dilation = ").append(Array(rhs_dilation));
  attributes.append(", window_reversal = array<i1");
  for (size_t i = 0; i < spatial; ++i) {
    attributes.append(i == 0 ? ": " : ", ").append(Bool(reversal[i]));
  }
  attributes.append(">, feature_group_count = ").append(Int(window.feature_groups));
  attributes.append(", batch_group_count = ").append(Int(window.batch_groups));
  attributes.append(", ").append(PrecisionConfig(precision));
  return EmitOne(kName, {lhs, rhs}, attributes, type);
}

Value Cholesky(Value x, bool lower) {
  constexpr std::string_view kName = "stablehlo.cholesky";
  CheckDefined(kName, {x});
  CheckMatrices(kName, x, {x});
  return EmitOne(kName, {x}, "lower = " + std::string(Bool(lower)), x.type());
}

Value TriangularSolve(Value a, Value b, bool left_side, bool lower, bool unit_diagonal,
                      TransposeA transpose) {
  constexpr std::string_view kName = "stablehlo.triangular_solve";
  constexpr std::string_view kTransposes[] = {"NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"};
  CheckDefined(kName, {a, b});
  CheckMatrices(kName, a, {a, b});
  bool fits =
      a.dtype() == b.dtype() && a.rank() == b.rank() && b.dim(left_side ? -2 : -1) == a.dim(-1);
  for (int i = 0; fits && i < a.rank() - 2; ++i) fits = a.dim(i) == b.dim(i);
  if (!fits) Fail(kName, "operands do not fit", {a, b});
  std::string attributes = "left_side = ";
  attributes.append(Bool(left_side)).append(", lower = ").append(Bool(lower));
  attributes.append(", unit_diagonal = ").append(Bool(unit_diagonal));
  attributes.append(", transpose_a = #stablehlo<transpose ");
  attributes.append(kTransposes[static_cast<int>(transpose)]).append(">");
  return EmitOne(kName, {a, b}, attributes, b.type());
}

Value Fft(Value x, FftKind kind, const std::vector<int64_t>& lengths) {
  constexpr std::string_view kName = "stablehlo.fft";
  constexpr std::string_view kKinds[] = {"FFT", "IFFT", "RFFT", "IRFFT"};
  CheckDefined(kName, {x});
  const bool real_input = kind == FftKind::kRfft;
  if (real_input ? (x.dtype() != DType::kF32 && x.dtype() != DType::kF64) : !IsComplex(x.dtype())) {
    FailDType(kName, "not defined for this dtype", {x});
  }
  const int count = static_cast<int>(lengths.size());
  if (count < 1 || count > 3 || count > x.rank()) {
    Fail(kName, "one to three lengths, not more than dimensions", {x});
  }
  Type type = x.type();
  for (int i = 0; i < count; ++i) {
    const bool last = i == count - 1;
    int64_t& dim = type.dims[x.rank() - count + i];
    const int64_t half = lengths[i] / 2 + 1;
    const int64_t expected = kind == FftKind::kIrfft && last ? half : lengths[i];
    if (dim != expected) Fail(kName, "lengths " + List(lengths) + " do not fit", {x});
    if (last && real_input) dim = half;
    if (last && kind == FftKind::kIrfft) dim = lengths[i];
  }
  if (real_input) type.dtype = ComplexOf(x.dtype());
  if (kind == FftKind::kIrfft) type.dtype = RealOf(x.dtype());
  std::string attributes = "fft_type = #stablehlo<fft_type ";
  attributes.append(kKinds[static_cast<int>(kind)]).append(">, fft_length = ");
  attributes.append(Array(lengths));
  return EmitOne(kName, {x}, attributes, type);
}

}  // namespace torch_tpu::stablehlo
