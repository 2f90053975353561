#include <c10/core/MemoryFormat.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <sstream>

#include "lowering/rule.h"
#include "lowering/taps.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT: rules read like the mathematics

// --- windows

std::vector<int64_t> Expand(std::vector<int64_t> list, int rank,
                            const std::vector<int64_t>& if_empty = {}) {
  if (list.empty()) return if_empty;
  if (list.size() == 1) return std::vector<int64_t>(rank, list[0]);
  return list;
}

// The spatial dimensions are the last `rank` ones; what is before them is batch.
struct Pool {
  int rank;
  std::vector<int64_t> kernel, stride, padding, dilation;
  Dims in, out;  // spatial sizes

  int64_t reach(int i) const { return dilation[i] * (kernel[i] - 1) + 1; }
};

Dims SpatialDims(const Dims& dims, int rank) { return {dims.end() - rank, dims.end()}; }

Pool PoolOf(const Call& c, int rank, const Dims& in, const Dims& out) {
  Pool p{.rank = rank};
  p.kernel = Expand(c.integers("kernel_size"), rank);
  p.stride = Expand(c.integers("stride"), rank, p.kernel);
  p.padding = Expand(c.integers("padding"), rank);
  p.dilation = std::vector<int64_t>(rank, 1);
  if (c.spec().find("dilation")) p.dilation = Expand(c.integers("dilation"), rank);
  p.in = SpatialDims(in, rank);
  p.out = SpatialDims(out, rank);
  return p;
}

// Padding at the end that gives exactly the wanted number of windows.
int64_t PaddingAtEnd(const Pool& p, int i) {
  const int64_t needed = (p.out[i] - 1) * p.stride[i] + p.reach(i) - p.in[i] - p.padding[i];
  return std::max<int64_t>(needed, 0);
}

Window WindowOf(const Pool& p, int tensor_rank) {
  const int batch = tensor_rank - p.rank;
  Window w;
  w.dimensions.assign(tensor_rank, 1);
  w.strides.assign(tensor_rank, 1);
  w.window_dilations.assign(tensor_rank, 1);
  w.padding.assign(tensor_rank, {0, 0});
  for (int i = 0; i < p.rank; ++i) {
    w.dimensions[batch + i] = p.kernel[i];
    w.strides[batch + i] = p.stride[i];
    w.window_dilations[batch + i] = p.dilation[i];
    w.padding[batch + i] = {p.padding[i], PaddingAtEnd(p, i)};
  }
  return w;
}

int64_t Volume(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

DType IndexType(int64_t size) {
  return size <= std::numeric_limits<int32_t>::max() ? DType::kS32 : DType::kS64;
}

// Each element's place in its plane (the last `rank` dimensions), row-major.
Value PlaceInPlane(Builder& b, const Dims& dims, int rank) {
  const Dims plane = SpatialDims(dims, rank);
  const int64_t size = Volume(plane);
  Value flat = b.Iota({IndexType(size), {size}}, 0);
  return BroadcastTo(Reshape(flat, plane), dims);
}

// --- maximum

// (value, index) pairs: the larger value wins, NaN over everything; of equals the first, of NaNs
// the last, as in CPU's loop. Associative and commutative.
Values LargerPair(const Values& v) {
  Value a = v[0], ia = v[1], b = v[2], ib = v[3];
  Value take_b;
  if (IsFloat(a.dtype())) {
    Value a_nan = IsNan(a), b_nan = IsNan(b);
    Value equal = And(Eq(a, b), Lt(ib, ia));
    Value later_nan = Or(Not(a_nan), Gt(ib, ia));
    take_b = Or(Or(Gt(b, a), And(Not(a_nan), equal)), And(b_nan, later_nan));
  } else {
    take_b = Or(Gt(b, a), And(Eq(a, b), Lt(ib, ia)));
  }
  return {Select(take_b, b, a), Select(take_b, ib, ia)};
}

// What stands for "nothing": the least value, and an index any other precedes.
Values NoPair(Builder& b, DType dtype, DType index) {
  const int64_t last = index == DType::kS32 ? std::numeric_limits<int32_t>::max()
                                            : std::numeric_limits<int64_t>::max();
  return {MinValue(b, dtype), ScalarInt(b, index, last)};
}

void RefuseBool(Value x, const char* kernel) {
  TORCH_CHECK_NOT_IMPLEMENTED(x.dtype() != DType::kPred, "\"", kernel,
                              "\" not implemented for 'Bool'");
}

template <int rank>
Values MaxPool(Call& c) {
  Value x = c.tensor("self");
  const Type& out = c.result();
  RefuseBool(x, rank == 2 ? "max_pool2d" : "max_pool3d");
  if (out.numel() == 0) {
    return {c.builder().Constant(out, 0), c.builder().Constant(c.result(1), 0)};
  }
  const Pool p = PoolOf(c, rank, x.dims(), out.dims);
  Value place = PlaceInPlane(c.builder(), x.dims(), rank);
  // NaN may lose its payload on the way, so half types travel as float32.
  Value wide = Convert(x, ComputeType(x.dtype()));
  const Values best =
      ReduceWindowGeneric({wide, place}, NoPair(c.builder(), wide.dtype(), place.dtype()),
                          WindowOf(p, x.rank()), &LargerPair);
  return {Convert(best[0], out.dtype), Convert(best[1], DType::kS64)};
}

// source[i] added (or written) at indices[i] of its plane of an otherwise zero result.
enum class Put { kAdd, kReplace };
Value ScatterPlanes(Value source, Value indices, const Dims& dims, int rank, Put how) {
  Builder& b = source.builder();
  const int64_t plane = Volume(SpatialDims(dims, rank));
  const int64_t total = Volume(dims), count = source.numel();
  const int64_t planes = plane == 0 ? 0 : total / plane;
  Value init = b.Constant({source.dtype(), dims}, 0);
  if (total == 0 || count == 0) return init;
  const DType index = IndexType(total);
  const Dims by_plane = {planes, count / planes};
  Value first = Multiply(b.Iota({index, by_plane}, 0), b.ConstantInt({index, by_plane}, plane));
  Value flat = Add(Reshape(Convert(indices, index), by_plane), first);
  ScatterDims scatter;
  scatter.inserted_window_dims = {0};
  scatter.scatter_dims_to_operand_dims = {0};
  scatter.index_vector_dim = 1;
  Value result =
      Scatter(Reshape(init, {total}), Reshape(flat, {count, 1}), Reshape(source, {count}), scatter,
              [how](const Values& v) { return Values{how == Put::kAdd ? Add(v[0], v[1]) : v[1]}; });
  return Reshape(result, dims);
}

// Windows of more elements than this scatter their gradients.
constexpr int64_t kMostSpreads = 64;

// Gradients at the places the windows took their maxima from. For each place in a window, the
// gradients of the windows that took it are spread over the input by interior padding: vectorised,
// where a scatter is one element at a time.
template <int rank>
Values MaxPoolBackward(Call& c) {
  Value grad = c.tensor("grad_output"), indices = c.tensor("indices");
  const Type& out = c.result();
  if (out.numel() == 0 || grad.numel() == 0) return {c.builder().Constant(out, 0)};
  const Pool p = PoolOf(c, rank, out.dims, grad.dims());
  Value wide = Convert(grad, ComputeType(grad.dtype()));
  const int64_t volume = Volume(p.kernel);
  if (volume > kMostSpreads) {
    return {Convert(ScatterPlanes(wide, indices, out.dims, rank, Put::kAdd), out.dtype)};
  }
  Builder& b = c.builder();
  const int batch = out.rank() - rank;
  const DType index = IndexType(Volume(p.in));
  Value taken = Convert(indices, index);
  Value zero = Scalar(b, wide.dtype(), 0);
  Value sum;
  for (int64_t k = 0; k < volume; ++k) {
    // The k-th place: where each window has it in the plane, and how it maps windows to the input.
    Dims low(out.rank(), 0), high(out.rank(), 0), interior(out.rank(), 0);
    Value place = b.ConstantInt({index, p.out}, 0);
    bool reaches = true;
    int64_t rest = k, pitch = 1;
    for (int i = rank - 1; i >= 0; --i) {
      const int64_t shift = rest % p.kernel[i] * p.dilation[i] - p.padding[i];
      rest /= p.kernel[i];
      Value at = Multiply(b.Iota({index, p.out}, i), b.ConstantInt({index, p.out}, p.stride[i]));
      at = Add(at, b.ConstantInt({index, p.out}, shift));
      place = Add(place, Multiply(at, b.ConstantInt({index, p.out}, pitch)));
      pitch *= p.in[i];
      const int64_t spread = (p.out[i] - 1) * p.stride[i] + 1;
      low[batch + i] = shift;
      high[batch + i] = p.in[i] - shift - spread;
      interior[batch + i] = p.stride[i] - 1;
      reaches &= shift < p.in[i] && shift + spread > 0;
    }
    if (!reaches) continue;
    Value mine = Eq(taken, BroadcastTo(place, grad.dims()));
    Value part = Pad(Select(mine, wide, ConstantLike(wide, 0)), zero, low, high, interior);
    sum = sum ? Add(sum, part) : part;
  }
  if (!sum) return {b.Constant(out, 0)};
  return {Convert(sum, out.dtype)};
}

// --- average

// How many elements each window's sum is divided by, along one dimension.
std::vector<int64_t> Counts(const Pool& p, int i, bool include_padding) {
  std::vector<int64_t> counts;
  for (int64_t o = 0; o < p.out[i]; ++o) {
    int64_t start = o * p.stride[i] - p.padding[i];
    int64_t end = std::min(start + p.kernel[i], p.in[i] + p.padding[i]);
    if (!include_padding) {
      start = std::max<int64_t>(start, 0);
      end = std::min(end, p.in[i]);
    }
    counts.push_back(std::max<int64_t>(end - start, 1));
  }
  return counts;
}

// The divisors of all windows, of `like`'s shape.
Value Divisors(Call& c, const Pool& p, Value like) {
  Builder& b = c.builder();
  if (auto divisor = c.optional_integer("divisor_override")) {
    return ConstantLike(like, static_cast<double>(*divisor));
  }
  const bool include_padding = c.boolean("count_include_pad");
  Value product;
  for (int i = 0; i < p.rank; ++i) {
    Value counts = b.ConstantInts({DType::kS32, {p.out[i]}}, Counts(p, i, include_padding));
    counts = BroadcastInDim(Convert(counts, like.dtype()), like.dims(), {like.rank() - p.rank + i});
    product = product ? Multiply(product, counts) : counts;
  }
  return product;
}

template <int rank>
Values AvgPool(Call& c) {
  const Type& out = c.result();
  Value x = Convert(c.tensor("self"), ComputeType(out.dtype));
  if (out.numel() == 0) return {c.builder().Constant(out, 0)};
  const Pool p = PoolOf(c, rank, x.dims(), out.dims);
  Value sum = ReduceWindow(x, Reduction::kSum, WindowOf(p, x.rank()));
  return {Convert(Divide(sum, Divisors(c, p, sum)), out.dtype)};
}

template <int rank>
Values AvgPoolBackward(Call& c) {
  const Type& out = c.result();
  Value grad = Convert(c.tensor("grad_output"), ComputeType(out.dtype));
  if (out.numel() == 0 || grad.numel() == 0) return {c.builder().Constant(out, 0)};
  const Pool p = PoolOf(c, rank, out.dims, grad.dims());
  Value x = Divide(grad, Divisors(c, p, grad));
  // Dimension by dimension: spread by the stride, then sum the windows an input lies in.
  for (int i = 0; i < rank; ++i) {
    const int d = x.rank() - rank + i;
    const int64_t spread = (p.out[i] - 1) * p.stride[i] + 1;
    Dims low(x.rank(), 0), high(x.rank(), 0), interior(x.rank(), 0);
    low[d] = p.kernel[i] - 1 - p.padding[i];
    high[d] = p.in[i] + p.padding[i] - spread;
    interior[d] = p.stride[i] - 1;
    x = Pad(x, Scalar(c.builder(), x.dtype(), 0), low, high, interior);
    Window window;
    window.dimensions.assign(x.rank(), 1);
    window.dimensions[d] = p.kernel[i];
    x = ReduceWindow(x, Reduction::kSum, window);
  }
  return {Convert(x, out.dtype)};
}

// --- adaptive

struct Range {
  int64_t start, end;
};
Range AdaptiveWindow(int64_t i, int64_t in, int64_t out) {
  return {i * in / out, ((i + 1) * in + out - 1) / out};
}

Taps AdaptiveAverage(int64_t in, int64_t out) {
  Taps map{.input_size = in};
  for (int64_t i = 0; i < out; ++i) {
    const Range r = AdaptiveWindow(i, in, out);
    std::vector<Tap> taps;
    for (int64_t j = r.start; j < r.end; ++j) {
      taps.push_back({j, 1.0 / static_cast<double>(r.end - r.start)});
    }
    map.taps.push_back(std::move(taps));
  }
  return map;
}

template <int rank>
Values AdaptiveAvgPool(Call& c) {
  const Type& out = c.result();
  Value x = Convert(c.tensor("self"), ComputeType(out.dtype));
  for (int d = out.rank() - rank; d < out.rank(); ++d) {
    x = Apply(c, x, d, AdaptiveAverage(x.dim(d), out.dims[d]));
  }
  return {Convert(x, out.dtype)};
}

template <int rank>
Values AdaptiveAvgPoolBackward(Call& c) {
  const Type& out = c.result();
  Value x = Convert(c.tensor("grad_output"), ComputeType(out.dtype));
  for (int d = out.rank() - rank; d < out.rank(); ++d) {
    x = Apply(c, x, d, Transposed(AdaptiveAverage(out.dims[d], x.dim(d))));
  }
  return {Convert(x, out.dtype)};
}

template <int rank>
Values AdaptiveMaxPool(Call& c) {
  Value x = c.tensor("self");
  const Type& out = c.result();
  Builder& b = c.builder();
  RefuseBool(x, "adaptive_max_pool");
  if (out.numel() == 0) return {b.Constant(out, 0), b.Constant(c.result(1), 0)};
  Value value = Convert(x, ComputeType(x.dtype()));
  Value place = PlaceInPlane(b, x.dims(), rank);
  const Values none = NoPair(b, value.dtype(), place.dtype());
  // Windows of dimension d become [windows, elements]; then one reduction over the elements.
  for (int i = 0; i < rank; ++i) {
    const int d = out.rank() - rank + i;
    const int64_t in = value.dim(d), windows = out.dims[d];
    int64_t longest = 0;
    for (int64_t o = 0; o < windows; ++o) {
      const Range r = AdaptiveWindow(o, in, windows);
      longest = std::max(longest, r.end - r.start);
    }
    std::vector<int64_t> index, used;
    for (int64_t o = 0; o < windows; ++o) {
      const Range r = AdaptiveWindow(o, in, windows);
      for (int64_t j = r.start; j < r.start + longest; ++j) {
        index.push_back(std::min(j, in - 1));
        used.push_back(j < r.end);
      }
    }
    Value table = b.ConstantInts({DType::kS32, {windows, longest}}, index);
    Value valid = b.ConstantInts({DType::kPred, {windows, longest}}, used);
    value = Take(value, table, d);
    place = Take(place, table, d);
    Value spread = BroadcastInDim(valid, value.dims(), {d, d + 1});
    value = Select(spread, value, BroadcastTo(none[0], value.dims()));
    place = Select(spread, place, BroadcastTo(none[1], place.dims()));
    const Values best = ReduceGeneric({value, place}, none, {d + 1}, &LargerPair);
    value = best[0];
    place = best[1];
  }
  return {Convert(value, out.dtype), Convert(place, DType::kS64)};
}

template <int rank>
Values AdaptiveMaxPoolBackward(Call& c) {
  const Type& out = c.result();
  Value grad = Convert(c.tensor("grad_output"), ComputeType(out.dtype));
  return {Convert(ScatterPlanes(grad, c.tensor("indices"), out.dims, rank, Put::kAdd), out.dtype)};
}

template <int rank>
Values MaxUnpool(Call& c) {
  Value x = c.tensor("self"), indices = c.tensor("indices");
  const Type& out = c.result();
  const Dims plane = SpatialDims(out.dims, rank);
  Value wide = Convert(indices, DType::kS64);
  Value ok = And(Ge(wide, ConstantLike(wide, 0)),
                 Lt(wide, c.builder().ConstantInt(wide.type(), Volume(plane))));
  std::ostringstream volume;
  for (size_t i = 0; i < plane.size(); ++i) volume << (i ? "x" : "") << plane[i];
  c.Check(ok, "Found an invalid max index (output volumes are of size " + volume.str() + ")",
          Call::ErrorKind::kRuntime);
  return {ScatterPlanes(x, indices, out.dims, rank, Put::kReplace)};
}

// --- shapes of the operators that are not structured

std::vector<int64_t> WithSpatial(const std::vector<int64_t>& sizes,
                                 const std::vector<int64_t>& spatial) {
  std::vector<int64_t> result(sizes.begin(), sizes.end() - spatial.size());
  result.insert(result.end(), spatial.begin(), spatial.end());
  return result;
}

// Channels-last if `like` is.
std::vector<int64_t> LayoutLike(const ShapeTensor& like, const std::vector<int64_t>& sizes) {
  if (sizes.size() == 4 && c10::is_channels_last_strides_2d(like.sizes, like.strides)) {
    return c10::get_channels_last_strides_2d(sizes);
  }
  if (sizes.size() == 5 && c10::is_channels_last_strides_3d(like.sizes, like.strides)) {
    return c10::get_channels_last_strides_3d(sizes);
  }
  return {};
}

template <int rank>
std::vector<ResultSpec> AdaptiveAvgPoolShape(const ShapeCall& s) {
  const ShapeTensor& x = s.tensor("self");
  const std::vector<int64_t> size = s.argument("output_size").toIntVector();
  const std::string name = "adaptive_avg_pool" + std::to_string(rank) + "d";
  const int dims = static_cast<int>(x.sizes.size());
  TORCH_CHECK(size.size() == rank, name, ": output_size must be ", rank);
  TORCH_CHECK(dims == rank + 1 || dims == rank + 2, name, "(): Expected ", rank + 1, "D or ",
              rank + 2, "D tensor, but got ", c10::IntArrayRef(x.sizes));
  for (int i = dims - rank; i < dims; ++i) {
    TORCH_CHECK(x.sizes[i] > 0, name,
                "(): Expected input to have non-zero size for non-batch dimensions, but input has "
                "sizes ",
                c10::IntArrayRef(x.sizes), " with dimension ", i, " being empty");
  }
  if (rank == 2) {
    TORCH_CHECK(size[0] >= 0 && size[1] >= 0,
                "adaptive_avg_pool2d: elements of output_size must be greater than or equal to 0 "
                "but received {",
                size[0], ", ", size[1], "}");
  }
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isFloatingType(x.dtype), "\"", name, "\" not implemented for '",
                              x.dtype, "'");
  std::vector<int64_t> sizes = WithSpatial(x.sizes, size);
  auto strides = rank == 2 ? LayoutLike(x, sizes) : std::vector<int64_t>();
  return {{.dtype = x.dtype, .sizes = std::move(sizes), .strides = std::move(strides)}};
}

template <int rank>
std::vector<ResultSpec> AdaptiveAvgPoolBackwardShape(const ShapeCall& s) {
  const ShapeTensor &grad = s.tensor("grad_output"), &x = s.tensor("self");
  const std::string name =
      "adaptive_avg_pool" + std::to_string(rank) + "d_backward_out_cpu_template";
  TORCH_CHECK(grad.sizes.size() == x.sizes.size(), name, ": Expected dimensions ", x.sizes.size(),
              " for `grad_output` but got dimensions ", grad.sizes.size());
  TORCH_CHECK(grad.dtype == x.dtype, name, ": Expected dtype ",
              caffe2::TypeMeta::fromScalarType(x.dtype), " for `grad_output` but got dtype ",
              caffe2::TypeMeta::fromScalarType(grad.dtype));
  auto strides = rank == 2 ? LayoutLike(x, x.sizes) : std::vector<int64_t>();
  return {{.dtype = x.dtype, .sizes = x.sizes, .strides = std::move(strides)}};
}

struct Triple {
  int64_t t, h, w;
  int64_t operator[](int i) const { return i == 0 ? t : i == 1 ? h : w; }
};
Triple TripleOf(const ShapeCall& s, const char* name, const char* message) {
  const std::vector<int64_t> list = s.argument(name).toIntVector();
  TORCH_CHECK(list.size() == 1 || list.size() == 3, "max_pool3d: ", name, message);
  return list.size() == 1 ? Triple{list[0], list[0], list[0]} : Triple{list[0], list[1], list[2]};
}

int64_t PooledSize(int64_t in, int64_t kernel, int64_t pad, int64_t stride, int64_t dilation,
                   bool ceil_mode) {
  TORCH_CHECK(stride != 0, "stride should not be zero");
  TORCH_CHECK(pad >= 0, "pad must be non-negative, but got pad: ", pad);
  TORCH_CHECK(pad <= ((kernel - 1) * dilation + 1) / 2,
              "pad should be at most half of effective kernel size, but got pad=", pad,
              ", kernel_size=", kernel, " and dilation=", dilation);
  const int64_t span = in + 2 * pad - dilation * (kernel - 1) - 1 + (ceil_mode ? stride - 1 : 0);
  int64_t out = span / stride - (span % stride != 0 && (span < 0) != (stride < 0)) + 1;
  // A window that starts in the padding after the input is dropped.
  if (ceil_mode && (out - 1) * stride >= in + pad) --out;
  return out;
}

// Checks the arguments of max_pool3d and gives the result's sizes.
std::vector<int64_t> MaxPool3dSizes(const ShapeCall& s, const char* function) {
  constexpr const char* kMust = " must either be a single int, or a tuple of three ints";
  const ShapeTensor& x = s.tensor("self");
  const Triple kernel = TripleOf(s, "kernel_size", kMust);
  const auto strides = s.argument("stride").toIntVector();
  const Triple stride =
      strides.empty() ? kernel
                      : TripleOf(s, "stride",
                                 " must either be omitted, a single int, or a tuple of three ints");
  const Triple padding = TripleOf(s, "padding", kMust);
  const Triple dilation =
      TripleOf(s, "dilation", " must be either a single int, or a tuple of three ints");
  const int dims = static_cast<int>(x.sizes.size());
  TORCH_CHECK(dims == 4 || dims == 5, "non-empty 4D or 5D (batch mode) tensor expected for input");
  const bool ceil_mode = s.argument("ceil_mode").toBool();
  std::vector<int64_t> out;
  for (int i = 0; i < 3; ++i) {
    out.push_back(PooledSize(x.sizes[dims - 3 + i], kernel[i], padding[i], stride[i], dilation[i],
                             ceil_mode));
  }
  TORCH_CHECK(kernel.t > 0 && kernel.h > 0 && kernel.w > 0,
              "kernel size should be greater than zero, but got kT: ", kernel.t, " kH: ", kernel.h,
              " kW: ", kernel.w);
  TORCH_CHECK(stride.t > 0 && stride.h > 0 && stride.w > 0,
              "stride should be greater than zero, but got dT: ", stride.t, " dH: ", stride.h,
              " dW: ", stride.w);
  TORCH_CHECK(dilation.t > 0 && dilation.h > 0 && dilation.w > 0,
              "dilation should be greater than zero, but got dilationT: ", dilation.t,
              " dilationH: ", dilation.h, " dilationW: ", dilation.w);
  for (int i = dims - 4; i < dims; ++i) {
    TORCH_CHECK(x.sizes[i] > 0, function,
                ": Expected input's non-batch dimensions to have positive length, but input has a "
                "shape of ",
                c10::IntArrayRef(x.sizes), " and non-batch dimension ", x.sizes[i],
                " has length zero!");
  }
  const int64_t* in = &x.sizes[dims - 4];
  TORCH_CHECK(out[0] >= 1 && out[1] >= 1 && out[2] >= 1, "Given input size: (", in[0], "x", in[1],
              "x", in[2], "x", in[3], "). Calculated output size: (", in[0], "x", out[0], "x",
              out[1], "x", out[2], "). Output size is too small");
  return WithSpatial(x.sizes, out);
}

std::vector<ResultSpec> MaxPool3dShape(const ShapeCall& s) {
  const ShapeTensor& x = s.tensor("self");
  const auto sizes = MaxPool3dSizes(s, "max_pool3d_with_indices_out_cpu_template()");
  const auto strides = LayoutLike(x, sizes);
  return {{.dtype = x.dtype, .sizes = sizes, .strides = strides},
          {.dtype = c10::ScalarType::Long, .sizes = sizes, .strides = strides}};
}

std::vector<ResultSpec> MaxPool3dBackwardShape(const ShapeCall& s) {
  const ShapeTensor &x = s.tensor("self"), &grad = s.tensor("grad_output");
  const auto sizes = MaxPool3dSizes(s, "max_pool3d_with_indices_backward_out_cpu_template()");
  TORCH_CHECK(grad.dtype == x.dtype, "Expected dtype ", x.dtype, " for `gradOutput` but got dtype ",
              grad.dtype);
  for (size_t i = 0; i < sizes.size(); ++i) {
    TORCH_CHECK(grad.sizes.size() == sizes.size() && grad.sizes[i] == sizes[i],
                "Expected a tensor of dimension ", sizes.size(), " and tensor.size[", i,
                "] == ", sizes[i], " but got: dimension ", grad.sizes.size(), " and tensor.size[",
                i, "] = ", i < grad.sizes.size() ? grad.sizes[i] : 0);
  }
  return {{.dtype = x.dtype, .sizes = x.sizes, .strides = LayoutLike(x, x.sizes)}};
}

template <int rank>
std::vector<ResultSpec> MaxUnpoolShape(const ShapeCall& s) {
  const ShapeTensor &x = s.tensor("self"), &indices = s.tensor("indices");
  const std::vector<int64_t> size = s.argument("output_size").toIntVector();
  const int dims = static_cast<int>(x.sizes.size());
  TORCH_CHECK(indices.dtype == c10::ScalarType::Long,
              "elements in indices should be type int64 but got: ", indices.dtype);
  TORCH_CHECK(size.size() == rank, "There should be exactly ", rank == 2 ? "two" : "three",
              " elements ", rank == 2 ? "(height, width)" : "(depth, height, width)",
              " in output_size, but got ", size.size(), " elements.");
  TORCH_CHECK(dims == rank + 1 || dims == rank + 2, "Input to max_unpooling", rank,
              "d should be a ", rank + 1, "d or ", rank + 2, "d Tensor, but got a tensor with ",
              dims, " dimensions.");
  TORCH_CHECK(x.sizes == indices.sizes,
              "Expected shape of indices to be same as that of the input tensor (",
              c10::IntArrayRef(x.sizes),
              ") but got indices tensor with shape: ", c10::IntArrayRef(indices.sizes));
  for (int i = 1; i < dims; ++i) {
    TORCH_CHECK(x.sizes[i] > 0, "max_unpooling", rank,
                "d(): Expected input to have non-zero size for non-batch dimensions, but got ",
                c10::IntArrayRef(x.sizes), " with dimension ", i, " being empty.");
  }
  std::vector<int64_t> sizes = WithSpatial(x.sizes, size);
  auto strides = rank == 2 ? LayoutLike(x, sizes) : std::vector<int64_t>();
  return {{.dtype = x.dtype, .sizes = std::move(sizes), .strides = std::move(strides)}};
}

TPU_RULE({.op = "max_pool2d_with_indices", .lower = &MaxPool<2>});
TPU_RULE({.op = "max_pool3d_with_indices", .lower = &MaxPool<3>, .shape = &MaxPool3dShape});
TPU_RULE({.op = "max_pool2d_with_indices_backward", .lower = &MaxPoolBackward<2>});
TPU_RULE({.op = "max_pool3d_with_indices_backward",
          .lower = &MaxPoolBackward<3>,
          .shape = &MaxPool3dBackwardShape});
TPU_RULE({.op = "avg_pool2d", .lower = &AvgPool<2>});
TPU_RULE({.op = "avg_pool3d", .lower = &AvgPool<3>});
TPU_RULE({.op = "avg_pool2d_backward", .lower = &AvgPoolBackward<2>});
TPU_RULE({.op = "avg_pool3d_backward", .lower = &AvgPoolBackward<3>});
TPU_RULE({.op = "_adaptive_avg_pool2d",
          .lower = &AdaptiveAvgPool<2>,
          .shape = &AdaptiveAvgPoolShape<2>});
TPU_RULE({.op = "_adaptive_avg_pool3d",
          .lower = &AdaptiveAvgPool<3>,
          .shape = &AdaptiveAvgPoolShape<3>});
TPU_RULE({.op = "_adaptive_avg_pool2d_backward",
          .lower = &AdaptiveAvgPoolBackward<2>,
          .shape = &AdaptiveAvgPoolBackwardShape<2>});
TPU_RULE({.op = "_adaptive_avg_pool3d_backward",
          .lower = &AdaptiveAvgPoolBackward<3>,
          .shape = &AdaptiveAvgPoolBackwardShape<3>});
TPU_RULE({.op = "adaptive_max_pool2d", .lower = &AdaptiveMaxPool<2>});
TPU_RULE({.op = "adaptive_max_pool3d", .lower = &AdaptiveMaxPool<3>});
TPU_RULE({.op = "adaptive_max_pool2d_backward", .lower = &AdaptiveMaxPoolBackward<2>});
TPU_RULE({.op = "adaptive_max_pool3d_backward", .lower = &AdaptiveMaxPoolBackward<3>});
TPU_RULE({.op = "max_unpool2d", .lower = &MaxUnpool<2>, .shape = &MaxUnpoolShape<2>});
TPU_RULE({.op = "max_unpool3d", .lower = &MaxUnpool<3>, .shape = &MaxUnpoolShape<3>});

}  // namespace
}  // namespace torch_tpu::lowering
