// grid_sample: reads between the points of an image at places that a grid gives, and its gradients.
#include <c10/util/Exception.h>

#include <numeric>

#include "lowering/indices.h"
#include "lowering/reduction.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT
using c10::IntArrayRef;

enum Interpolation : int64_t { kBilinear = 0, kNearest = 1, kBicubic = 2 };
enum Padding : int64_t { kZeros = 0, kBorder = 1, kReflection = 2 };

// A place along one dimension of the image, and its derivative by the grid's coordinate.
struct Place {
  Value at, slope;
};

// One point of the image along one dimension that a place is read from.
struct Tap {
  Value index;   // within bounds, 32-bit
  Value weight;  // 0 where the point is out of bounds
  Value slope;   // of the weight, by the place
};

struct Sampling {
  int64_t interpolation, padding;
  bool align_corners;
};

Value Like(Value x, double value) { return ConstantLike(x, value); }

// From [-1, 1] to points of the image.
Place Unnormalize(Value grid, int64_t size, const Sampling& s) {
  const double n = static_cast<double>(size);
  const double scale = s.align_corners ? (n - 1) / 2 : n / 2;
  Value from_left = Add(grid, Like(grid, 1));
  Value at = s.align_corners ? Multiply(Divide(from_left, Like(grid, 2)), Like(grid, n - 1))
                             : Divide(Subtract(Multiply(from_left, Like(grid, n)), Like(grid, 1)),
                                      Like(grid, 2));
  return {at, Like(grid, scale)};
}

// NaN goes to the first point.
Place Clip(Place place, int64_t size) {
  Value low = Like(place.at, 0), high = Like(place.at, static_cast<double>(size - 1));
  Value inside = And(Gt(place.at, low), Lt(place.at, high));
  Value at = Minimum(Maximum(place.at, low), high);
  at = Select(IsNan(at), low, at);
  return {at, Select(inside, place.slope, Like(place.slope, 0))};
}

// Mirrored at the image's edges as often as it takes.
Place Reflect(Place place, int64_t size, bool align_corners) {
  const double low = align_corners ? 0 : -0.5;
  const double span = static_cast<double>(align_corners ? size - 1 : size);
  if (span == 0) return {Like(place.at, 0), Like(place.slope, 0)};
  Value from_low = Subtract(place.at, Like(place.at, low));
  Value negative = Lt(from_low, Like(from_low, 0));
  Value distance = Abs(from_low);
  Value extra = Remainder(distance, Like(distance, span));
  Value flips = Floor(Divide(distance, Like(distance, span)));
  Value even = Eq(Remainder(flips, Like(flips, 2)), Like(flips, 0));
  Value at = Select(even, Add(extra, Like(extra, low)),
                    Add(Subtract(Like(extra, span), extra), Like(extra, low)));
  return {at, Select(Xor(negative, even), place.slope, Negate(place.slope))};
}

Place Padded(Place place, int64_t size, const Sampling& s) {
  if (s.padding == kReflection) place = Reflect(place, size, s.align_corners);
  return s.padding == kZeros ? place : Clip(place, size);
}

// The tap at a whole-numbered position; nothing is read out of bounds.
Tap TapAt(Value position, Value weight, Value slope, int64_t size) {
  Value low = Like(position, 0), high = Like(position, static_cast<double>(size - 1));
  Value inside = And(Ge(position, low), Le(position, high));
  Value zero = Like(weight, 0);
  Value safe = Select(inside, position, low);
  return {Convert(safe, DType::kS32), Select(inside, weight, zero), Select(inside, slope, zero)};
}

// Keys' cubic convolution of |t| in [0, 1] and [1, 2], and derivatives by t.
constexpr double kA = -0.75;
Value Polynomial(Value t, double c3, double c2, double c1, double c0) {
  Value sum = Add(Multiply(Like(t, c3), t), Like(t, c2));
  sum = Add(Multiply(sum, t), Like(t, c1));
  return Add(Multiply(sum, t), Like(t, c0));
}
Value Near(Value t) { return Polynomial(t, kA + 2, -(kA + 3), 0, 1); }
Value NearSlope(Value t) { return Polynomial(t, 0, 3 * (kA + 2), -2 * (kA + 3), 0); }
Value Far(Value t) { return Polynomial(t, kA, -5 * kA, 8 * kA, -4 * kA); }
Value FarSlope(Value t) { return Polynomial(t, 0, 3 * kA, -10 * kA, 8 * kA); }

struct Dimension {
  std::vector<Tap> taps;
  Value slope;  // of the place, by the grid
};

Dimension TapsOf(Value grid, int64_t size, const Sampling& s) {
  Place place = Unnormalize(grid, size, s);
  if (s.interpolation == kBicubic) {
    Value floor = Floor(place.at);
    Value t = Subtract(place.at, floor), one = Like(t, 1);
    Value rest = Subtract(one, t);
    const Value weights[] = {Far(Add(t, one)), Near(t), Near(rest), Far(Add(rest, one))};
    const Value slopes[] = {FarSlope(Add(t, one)), NearSlope(t), Negate(NearSlope(rest)),
                            Negate(FarSlope(Add(rest, one)))};
    Dimension dimension{{}, place.slope};
    for (int i = 0; i < 4; ++i) {
      // Here it is the points that are padded.
      Value point = Add(floor, Like(floor, i - 1));
      point = Padded({point, point}, size, s).at;
      dimension.taps.push_back(TapAt(point, weights[i], slopes[i], size));
    }
    return dimension;
  }
  place = Padded(place, size, s);
  Value one = Like(place.at, 1), zero = Like(place.at, 0);
  if (s.interpolation == kNearest) {
    return {{TapAt(RoundNearestEven(place.at), one, zero, size)}, zero};
  }
  Value floor = Floor(place.at);
  Value next = Add(floor, one);
  return {{TapAt(floor, Subtract(next, place.at), Like(one, -1), size),
           TapAt(next, Subtract(place.at, floor), one, size)},
          place.slope};
}

// The image as [N, C, points], the grid as [N, places] a dimension, outermost first.
struct Problem {
  Sampling sampling;
  Dims spatial;  // of the image
  int64_t batch, channels, points, places;
  std::vector<Dimension> dimensions;
  DType compute;
};

Problem Prepare(Call& c) {
  Problem p;
  p.sampling = {c.integer("interpolation_mode"), c.integer("padding_mode"),
                c.boolean("align_corners")};
  const Dims& image = c.tensor("input").dims();
  p.batch = image[0];
  p.channels = image[1];
  p.spatial.assign(image.begin() + 2, image.end());
  p.points = std::accumulate(p.spatial.begin(), p.spatial.end(), int64_t{1}, std::multiplies<>());
  p.compute = ComputeType(c.tensor("input").dtype());
  Value grid = Convert(c.tensor("grid"), p.compute);
  const int rank = static_cast<int>(p.spatial.size());
  p.places = grid.numel() / std::max<int64_t>(p.batch * rank, 1);
  grid = Reshape(grid, {p.batch, p.places, rank});
  for (int d = 0; d < rank; ++d) {
    // The grid names the innermost dimension first.
    Value along = SliceDim(grid, 2, rank - 1 - d, rank - d);
    p.dimensions.push_back(TapsOf(Reshape(along, {p.batch, p.places}), p.spatial[d], p.sampling));
  }
  return p;
}

// Calls visit(index [N, places], taps) for each combination of taps, one a dimension.
template <class Visit>
void ForEachCorner(const Problem& p, const Visit& visit) {
  std::vector<const Tap*> corner(p.dimensions.size());
  const auto descend = [&](const auto& self, size_t d, Value index) -> void {
    if (d == p.dimensions.size()) {
      visit(index, corner);
      return;
    }
    for (const Tap& tap : p.dimensions[d].taps) {
      corner[d] = &tap;
      Value next =
          d == 0 ? tap.index
                 : Add(Multiply(index, index.builder().ConstantInt(index.type(), p.spatial[d])),
                       tap.index);
      self(self, d + 1, next);
    }
  };
  descend(descend, 0, Value());
}

Value PerChannel(const Problem& p, Value x) {
  return BroadcastInDim(x, {p.batch, p.channels, p.places}, {0, 2});
}

// image[n, :, index[n, p]] as [N, C, places].
Value TakePoints(const Problem& p, Value image, Value index) {
  GatherDims dims;
  dims.offset_dims = {1};
  dims.collapsed_slice_dims = {2};
  dims.operand_batching_dims = {0};
  dims.start_indices_batching_dims = {0};
  dims.start_index_map = {2};
  dims.index_vector_dim = 2;
  return Gather(image, Reshape(index, {p.batch, p.places, 1}), dims, {1, p.channels, 1});
}

Value AddToPoints(const Problem& p, Value image, Value index, Value updates) {
  ScatterDims dims;
  dims.update_window_dims = {1};
  dims.inserted_window_dims = {2};
  dims.input_batching_dims = {0};
  dims.scatter_indices_batching_dims = {0};
  dims.scatter_dims_to_operand_dims = {2};
  dims.index_vector_dim = 2;
  return Scatter(image, Reshape(index, {p.batch, p.places, 1}), updates, dims,
                 CombineRegion(Combine::kAdd, image.dtype()));
}

Value WeightOf(const std::vector<const Tap*>& corner) {
  Value weight;
  for (const Tap* tap : corner) weight = weight ? Multiply(weight, tap->weight) : tap->weight;
  return weight;
}

Values GridSample(Call& c) {
  const Type& out = c.result();
  if (out.numel() == 0) return {ZeroConstant(c.builder(), out)};
  const Problem p = Prepare(c);
  Value image = Reshape(Convert(c.tensor("input"), p.compute), {p.batch, p.channels, p.points});
  Value sum;
  ForEachCorner(p, [&](Value index, const std::vector<const Tap*>& corner) {
    Value weight = PerChannel(p, WeightOf(corner));
    // Out of bounds counts as 0 whatever is read instead, NaN too.
    Value value = Select(Eq(weight, Like(weight, 0)), Like(weight, 0),
                         Multiply(TakePoints(p, image, index), weight));
    sum = sum ? Add(sum, value) : value;
  });
  return {Reshape(Convert(sum, out.dtype), out.dims)};
}

Values GridSampleBackward(Call& c) {
  const Type &by_input = c.result(0), &by_grid = c.result(1);
  const Value grad_output = c.tensor("grad_output");
  Values results(2);
  if (grad_output.numel() == 0) {
    if (c.wants(0)) results[0] = ZeroConstant(c.builder(), by_input);
    results[1] = ZeroConstant(c.builder(), by_grid);
    return results;
  }
  const Problem p = Prepare(c);
  Value grad = Reshape(Convert(grad_output, p.compute), {p.batch, p.channels, p.places});
  if (c.wants(0)) {
    Value sum = ZeroConstant(c.builder(), {p.compute, {p.batch, p.channels, p.points}});
    ForEachCorner(p, [&](Value index, const std::vector<const Tap*>& corner) {
      sum = AddToPoints(p, sum, index, Multiply(grad, PerChannel(p, WeightOf(corner))));
    });
    results[0] = Reshape(Convert(sum, by_input.dtype), by_input.dims);
  }
  if (p.sampling.interpolation == kNearest) {
    results[1] = ZeroConstant(c.builder(), by_grid);
    return results;
  }
  Value image = Reshape(Convert(c.tensor("input"), p.compute), {p.batch, p.channels, p.points});
  const size_t rank = p.dimensions.size();
  Values slopes(rank);
  ForEachCorner(p, [&](Value index, const std::vector<const Tap*>& corner) {
    Value through = Reduce(Multiply(TakePoints(p, image, index), grad), Reduction::kSum, {1});
    for (size_t d = 0; d < rank; ++d) {
      Value slope = corner[d]->slope;
      for (size_t other = 0; other < rank; ++other) {
        if (other != d) slope = Multiply(slope, corner[other]->weight);
      }
      Value term = Multiply(through, slope);
      slopes[d] = slopes[d] ? Add(slopes[d], term) : term;
    }
  });
  Values along;
  for (size_t d = rank; d-- > 0;) {
    along.push_back(Reshape(Multiply(slopes[d], p.dimensions[d].slope), {p.batch, p.places, 1}));
  }
  results[1] = Reshape(Convert(Concatenate(along, 2), by_grid.dtype), by_grid.dims);
  return results;
}

void CheckSampling(const ShapeCall& s, size_t rank) {
  const ShapeTensor &input = s.tensor("input"), &grid = s.tensor("grid");
  const IntArrayRef sizes = input.sizes, places = grid.sizes;
  const bool shaped = sizes.size() == rank && places.size() == rank;
  TORCH_CHECK(!sizes.empty() && !places.empty() && sizes[0] == places[0],
              "grid_sampler(): expected grid and input to have same batch size, but got input with "
              "sizes ",
              sizes, " and grid with sizes ", places);
  const auto coordinates = static_cast<int64_t>(sizes.size()) - 2;
  TORCH_CHECK(places.back() == coordinates, "grid_sampler(): expected grid to have size ",
              coordinates, " in last dimension, but got grid with sizes ", places);
  for (size_t d = 2; d < sizes.size(); ++d) {
    TORCH_CHECK(sizes[d] > 0,
                "grid_sampler(): expected input to have non-empty spatial dimensions, but input "
                "has sizes ",
                sizes, " with dimension ", d, " being empty");
  }
  TORCH_CHECK(shaped, "grid_sampler(): expected ", rank,
              "D input and grid with same number of dimensions, but got input with sizes ", sizes,
              " and grid with sizes ", places);
  TORCH_CHECK(rank == 4 || s.argument("interpolation_mode").toInt() != kBicubic,
              "grid_sampler(): bicubic interpolation only supports 4D input");
  TORCH_CHECK(input.dtype == grid.dtype, "expected scalar type ", input.dtype, " but found ",
              grid.dtype);
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isFloatingType(input.dtype), "\"grid_sampler_", rank - 2,
                              "d_cpu\" not implemented for '", input.dtype, "'");
}

template <size_t kRank>
std::vector<ResultSpec> GridSampleShape(const ShapeCall& s) {
  CheckSampling(s, kRank);
  const ShapeTensor &input = s.tensor("input"), &grid = s.tensor("grid");
  std::vector<int64_t> sizes{input.sizes[0], input.sizes[1]};
  sizes.insert(sizes.end(), grid.sizes.begin() + 1, grid.sizes.end() - 1);
  return {{.dtype = input.dtype, .sizes = sizes}};
}

template <size_t kRank>
std::vector<ResultSpec> GridSampleBackwardShape(const ShapeCall& s) {
  CheckSampling(s, kRank);
  const ShapeTensor &input = s.tensor("input"), &grid = s.tensor("grid");
  const bool by_input = s.argument("output_mask").toListRef()[0].toBool();
  return {{.dtype = input.dtype, .sizes = input.sizes, .defined = by_input},
          {.dtype = grid.dtype, .sizes = grid.sizes}};
}

TPU_RULE({.op = "grid_sampler_2d", .lower = &GridSample, .shape = &GridSampleShape<4>});
TPU_RULE({.op = "grid_sampler_3d", .lower = &GridSample, .shape = &GridSampleShape<5>});
TPU_RULE({.op = "grid_sampler_2d_backward",
          .lower = &GridSampleBackward,
          .shape = &GridSampleBackwardShape<4>});
TPU_RULE({.op = "grid_sampler_3d_backward",
          .lower = &GridSampleBackward,
          .shape = &GridSampleBackwardShape<5>});

}  // namespace
}  // namespace torch_tpu::lowering
