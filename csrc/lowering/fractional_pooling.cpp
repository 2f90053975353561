// Fractional max pooling (Graham 2014): windows of one size whose starts are spread over the input
// by one random number a plane and dimension.
#include <c10/util/Exception.h>

#include <limits>
#include <numeric>

#include "lowering/indices.h"
#include "lowering/rounding.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: Add, Multiply, Reduce, ... read like the mathematics

int64_t Volume(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

Dims Last(const Dims& dims, int rank) { return {dims.end() - rank, dims.end()}; }

DType IndexType(int64_t size) {
  return size <= std::numeric_limits<int32_t>::max() ? DType::kS32 : DType::kS64;
}

// Where the windows of one dimension start: [planes, out], from one sample a plane, in arithmetic
// that rounds to `dtype` after each step.
Value Starts(Value sample, DType dtype, int64_t in, int64_t out, int64_t window, DType index) {
  Builder& b = sample.builder();
  const Dims dims = {sample.dim(0), out};
  Value last = b.ConstantInt({index, dims}, in - window);
  if (out == 1) return last;
  const auto number = [&](int64_t value) {
    return RoundedTo(b.ConstantInt({sample.dtype(), dims}, value), dtype);
  };
  Value alpha = RoundedTo(Divide(number(in - window), number(out - 1)), dtype);
  Value u = BroadcastInDim(sample, dims, {0});
  Value place = b.Iota({index, dims}, 1);
  Value shifted = RoundedTo(Add(RoundedTo(Convert(place, u.dtype()), dtype), u), dtype);
  Value start = Subtract(Convert(RoundedTo(Multiply(shifted, alpha), dtype), index),
                         Convert(RoundedTo(Multiply(u, alpha), dtype), index));
  return Select(Eq(place, b.ConstantInt(place.type(), out - 1)), last, start);
}

// (value, place) pairs: the larger value wins, NaN over everything; of equals the first, of NaNs
// the last, as in CPU's loop.
Values LargerPair(const Values& v) {
  Value a = v[0], place_a = v[1], b = v[2], place_b = v[3];
  Value a_nan = IsNan(a), b_nan = IsNan(b);
  Value number = Or(Gt(b, a), And(Eq(a, b), Lt(place_b, place_a)));
  Value take_b = Or(And(Not(a_nan), number), And(b_nan, Or(Not(a_nan), Gt(place_b, place_a))));
  return {Select(take_b, b, a), Select(take_b, place_b, place_a)};
}

void CheckSamples(const Type& self, const Type& samples, int rank) {
  TORCH_CHECK(samples.dtype == self.dtype,
              "Expect _random_samples to have the same dtype as input");
  TORCH_CHECK(samples.rank() == 3, "Expect _random_samples to have 3 dimensions, got ",
              samples.rank());
  const bool batched = self.rank() == rank + 2;
  const int64_t batch = batched ? self.dims[0] : 1, channels = self.dims[batched ? 1 : 0];
  TORCH_CHECK(samples.dims[0] >= batch,
              "Expect _random_samples.size(0) no less then input batch size.");
  TORCH_CHECK(samples.dims[1] == channels,
              "Expect _random_samples.size(1) equals to input channel size.");
  TORCH_CHECK(samples.dims[2] == rank, "Expect _random_samples.size(2) equals to ", rank, "; got ",
              samples.dims[2], ".");
}

template <int rank>
Values FractionalMaxPool(Call& c) {
  Builder& b = c.builder();
  Value x = c.tensor("self"), samples = c.tensor("random_samples");
  const Type& out = c.result();
  TORCH_CHECK_NOT_IMPLEMENTED(IsFloat(x.dtype()), "\"fractional_max_pool", rank,
                              "d_out_frame\" not implemented for '", ToScalarType(x.dtype()), "'");
  CheckSamples(x.type(), samples.type(), rank);
  if (out.numel() == 0) return {Zeros(b, out), Zeros(b, c.result(1))};

  const DType compute = ComputeType(x.dtype());
  const Dims in = Last(x.dims(), rank), windows = Last(out.dims, rank);
  const std::vector<int64_t> kernel = c.integers("kernel_size");
  const int64_t plane = Volume(in), planes = x.numel() / plane;
  const DType index = IndexType(x.numel());

  // One number a plane and dimension. In two dimensions the first is that of the width.
  Value numbers = Convert(samples, compute);
  const int64_t batch = x.rank() == rank + 2 ? x.dim(0) : 1;
  numbers = Reshape(SliceDim(numbers, 0, 0, batch), {planes, rank});
  const auto sample = [&](int d) {
    const int column = rank == 2 ? 1 - d : d;
    return Reshape(SliceDim(numbers, 1, column, column + 1), {planes});
  };

  // [planes, windows..., places in a window...]: each element's place in its plane.
  Dims dims = {planes};
  dims.insert(dims.end(), windows.begin(), windows.end());
  dims.insert(dims.end(), kernel.begin(), kernel.end());
  Value place = Zeros(b, {index, dims});
  for (int d = 0; d < rank; ++d) {
    Value start = Starts(sample(d), x.dtype(), in[d], windows[d], kernel[d], index);
    Value at = Add(BroadcastInDim(start, dims, {0, d + 1}), b.Iota({index, dims}, rank + d + 1));
    place = Add(Multiply(place, b.ConstantInt(place.type(), in[d])), at);
  }
  Value first = Multiply(b.Iota({index, dims}, 0), b.ConstantInt({index, dims}, plane));
  Value values = Take(Convert(Reshape(x, {x.numel()}), compute), Add(first, place), 0);

  std::vector<int64_t> within(rank);
  std::iota(within.begin(), within.end(), rank + 1);
  const Values none = {MinValue(b, compute), ScalarInt(b, index, x.numel())};
  const Values best = ReduceGeneric({values, place}, none, within, &LargerPair);
  return {Convert(Reshape(best[0], out.dims), out.dtype),
          Convert(Reshape(best[1], out.dims), DType::kS64)};
}

template <int rank>
Values FractionalMaxPoolBackward(Call& c) {
  Builder& b = c.builder();
  const Type& out = c.result();
  Value grad = c.tensor("grad_output"), indices = c.tensor("indices");
  const int64_t plane = Volume(Last(out.dims, rank));
  if (out.numel() == 0 || grad.numel() == 0) return {Zeros(b, out)};
  const int64_t planes = out.numel() / plane;
  const Dims by_plane = {planes, grad.numel() / planes};
  Value taken =
      CheckedIndices(c, Reshape(indices, by_plane), plane, Negative::kIsError,
                     "index out of range of the pooled planes", Call::ErrorKind::kRuntime);
  Value sum = ScatterElements(Zeros(b, {out.dtype, {planes, plane}}), 1, taken,
                              Reshape(grad, by_plane), Combine::kAdd);
  return {Reshape(sum, out.dims)};
}

void CheckIndices(const ShapeTensor& self, const ShapeTensor& grad, const ShapeTensor& indices,
                  const char* kernel) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isFloatingType(self.dtype), '"', kernel,
                              "\" not implemented for '", self.dtype, "'");
  TORCH_CHECK(indices.dtype == c10::ScalarType::Long, "expected scalar type Long but found ",
              indices.dtype);
  TORCH_CHECK(grad.dtype == self.dtype, "expected scalar type ", self.dtype, " but found ",
              grad.dtype);
}

template <int rank>
std::vector<ResultSpec> FractionalMaxPoolBackwardShape(const ShapeCall& s) {
  const ShapeTensor &self = s.tensor("self"), &grad = s.tensor("grad_output");
  const std::vector<int64_t> size = s.argument("output_size").toIntVector();
  TORCH_CHECK(self.sizes.size() == rank + 1 || self.sizes.size() == rank + 2,
              "Dimension out of range (expected a tensor of ", rank + 1, " or ", rank + 2,
              " dimensions, but got ", self.sizes.size(), ")");
  std::vector<int64_t> expected(self.sizes.begin(), self.sizes.end() - rank);
  expected.insert(expected.end(), size.begin(), size.end());
  TORCH_CHECK(grad.sizes == expected && s.tensor("indices").sizes == expected,
              rank == 2 ? "fractional_max_pool2d_backward(): gradOutput sizes unexpected"
                        : "fractional_max_pool3d_backward_out(): gradOutput sizes unexpected");
  CheckIndices(self, grad, s.tensor("indices"),
               rank == 2 ? "fractional_max_pool2d_backward_out_frame"
                         : "fractional_max_pool3d_backward_out_frame");
  return {{.dtype = self.dtype, .sizes = self.sizes}};
}

TPU_RULE({.op = "fractional_max_pool2d", .lower = &FractionalMaxPool<2>});
TPU_RULE({.op = "fractional_max_pool3d", .lower = &FractionalMaxPool<3>});
TPU_RULE({.op = "fractional_max_pool2d_backward",
          .lower = &FractionalMaxPoolBackward<2>,
          .shape = &FractionalMaxPoolBackwardShape<2>});
TPU_RULE({.op = "fractional_max_pool3d_backward",
          .lower = &FractionalMaxPoolBackward<3>,
          .shape = &FractionalMaxPoolBackwardShape<3>});

}  // namespace
}  // namespace torch_tpu::lowering
