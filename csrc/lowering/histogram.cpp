#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lowering/indices.h"
#include "lowering/linspace.h"
#include "lowering/reduction.h"
#include "lowering/rule.h"
#include "lowering/search.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT

// The ends of the range, given equal ends widened by so much each way.
struct Range {
  Value low, high;
};

Range Widened(Value low, Value high, double by) {
  Value distance = ConstantLike(low, by);
  Value same = Eq(low, high);
  return {Select(same, Subtract(low, distance), low), Select(same, Add(high, distance), high)};
}

Values Histc(Call& c) {
  Builder& b = c.builder();
  const Type& out = c.result();
  const int64_t bins = out.dims[0];
  const DType compute = ComputeType(out.dtype);
  Value x = Convert(c.tensor("self"), compute);
  const int64_t count = x.numel();
  if (count == 0) return {Zeros(b, out)};
  x = Reshape(x, {count});
  Value low = c.scalar("min", compute), high = c.scalar("max", compute);
  // Equal ends ask for the range of the data.
  Value of_data = Eq(low, high);
  low = Select(of_data, Reduce(x, Reduction::kMin, {0}), low);
  high = Select(of_data, Reduce(x, Reduction::kMax, {0}), high);
  if (IsFloat(compute)) {
    c.Check(And(IsFinite(low), IsFinite(high)), "torch.histc: range is not finite",
            Call::ErrorKind::kRuntime);
  }
  c.Check(Le(low, high), "torch.histc: max must be larger than min", Call::ErrorKind::kRuntime);
  const Range range = Widened(low, high, 1);
  low = BroadcastTo(range.low, x.dims());
  high = BroadcastTo(range.high, x.dims());
  Value scaled = Multiply(Subtract(x, low), ConstantLike(x, static_cast<double>(bins)));
  Value place = Convert(Divide(scaled, Subtract(high, low)), DType::kS32);
  // The last bin has its end, too; what is outside of all goes nowhere.
  Value last = b.ConstantInt(place.type(), bins - 1), nowhere = b.ConstantInt(place.type(), bins);
  place = Select(And(Ge(x, low), Le(x, high)), Minimum(place, last), nowhere);
  Value counts = ScatterSlices(Zeros(b, {DType::kS32, {bins}}), 0, place,
                               b.ConstantInt(place.type(), 1), Combine::kAdd);
  return {Convert(counts, out.dtype)};
}

std::vector<ResultSpec> HistcShape(const ShapeCall& s) {
  const c10::ScalarType dtype = s.tensor("self").dtype;
  // Integers as well, which CPU does not take and CUDA does.
  TORCH_CHECK_NOT_IMPLEMENTED(dtype != c10::ScalarType::Bool && !c10::isComplexType(dtype),
                              "\"histogram_cpu\" not implemented for '", dtype, "'");
  const int64_t bins = s.argument("bins").toInt();
  TORCH_CHECK(bins > 0, "torch.histogram(): bins must be > 0, but got ", bins, " for dimension 0");
  const double low = s.argument("min").toScalar().toDouble();
  const double high = s.argument("max").toScalar().toDouble();
  TORCH_CHECK(std::isfinite(low) && std::isfinite(high), "torch.histc: range of [", low, ", ", high,
              "] is not finite");
  TORCH_CHECK(low <= high, "torch.histc: max must be larger than min");
  return {{.dtype = dtype, .sizes = {bins}}};
}
TPU_RULE({.op = "histc", .lower = &Histc, .shape = &HistcShape, .scalars_as_self = true});

// --- histogram, histogramdd: any number of dimensions, the points' coordinates the innermost one

// Edges and bins of one dimension. Both ends belong to a bin.
struct Axis {
  Value edges;  // 1-d, ascending
  int64_t bins() const { return edges.numel() - 1; }
};

// [points, coordinates], in the type the bins are found in.
Value PointsOf(Call& c, int64_t coordinates) {
  Value x = c.tensor("self");
  x = Convert(x, ComputeType(x.dtype()));
  const int64_t points = coordinates == 0 ? 0 : x.numel() / coordinates;
  return Reshape(x, {points, coordinates});
}

Value Coordinate(Value points, int64_t d) {
  return Reshape(SliceDim(points, 1, d, d + 1), {points.dim(0)});
}

// `bins` equal bins over the range asked for, or over that of the data.
Axis EqualBins(Call& c, Value points, int64_t d, int64_t bins, DType dtype) {
  Builder& b = c.builder();
  Value low = Scalar(b, DType::kF64, 0), high = Scalar(b, DType::kF64, 1);
  if (c.has("range")) {
    const Values ends = c.scalars("range", DType::kF64);
    low = ends[2 * d];
    high = ends[2 * d + 1];
  } else if (points.dim(0) > 0) {
    Value x = Coordinate(points, d);
    low = Convert(Reduce(x, Reduction::kMin, {0}), DType::kF64);
    high = Convert(Reduce(x, Reduction::kMax, {0}), DType::kF64);
  }
  const std::string dimension = std::to_string(d);
  c.Check(And(IsFinite(low), IsFinite(high)),
          "torch.histogramdd: dimension " + dimension + "'s range is not finite",
          Call::ErrorKind::kRuntime);
  c.Check(Le(low, high), "torch.histogramdd: min should not exceed max for dimension " + dimension,
          Call::ErrorKind::kRuntime);
  const Range range = Widened(low, high, 0.5);
  const DType compute = IsFloat(dtype) ? ComputeType(dtype) : DType::kF64;
  Value edges =
      Between(b, compute, bins + 1, Convert(range.low, compute), Convert(range.high, compute));
  return {Convert(edges, dtype)};
}

// The histogram of points over bins of known edges.
Value CountInBins(Call& c, Value points, const std::vector<Axis>& axes, const Type& out) {
  Builder& b = c.builder();
  const DType compute = ComputeType(out.dtype);
  const int64_t cells = out.numel(), count = points.dim(0);
  Value histogram = Zeros(b, {compute, {cells}});
  if (count > 0 && cells > 0) {
    const DType index = cells <= std::numeric_limits<int32_t>::max() ? DType::kS32 : DType::kS64;
    Value cell = Zeros(b, {index, {count}});
    Value inside = Not(Zeros(b, {DType::kPred, {count}}));
    for (size_t d = 0; d < axes.size(); ++d) {
      Value x = Coordinate(points, static_cast<int64_t>(d));
      Value edges = Convert(axes[d].edges, compute);
      const int64_t bins = axes[d].bins();
      const auto edge = [&](int64_t i) {
        return BroadcastTo(Reshape(SliceDim(edges, 0, i, i + 1), {}), x.dims());
      };
      // NaN is in no bin.
      inside = And(inside, And(Ge(x, edge(0)), Le(x, edge(bins))));
      Value place = Convert(Search(edges, x, /*right=*/true), index);
      place = Subtract(place, b.ConstantInt(place.type(), 1));
      place = Minimum(place, b.ConstantInt(place.type(), bins - 1));
      cell = Add(Multiply(cell, b.ConstantInt(cell.type(), bins)), place);
    }
    cell = Select(inside, cell, b.ConstantInt(cell.type(), cells));
    if (auto weight = c.optional_tensor("weight")) {
      Value weights = Reshape(Convert(*weight, compute), {count});
      histogram = ScatterSlices(histogram, 0, cell, weights, Combine::kAdd);
    } else {
      // Counted in integers, which do not stop at the largest exact float.
      Value ones = b.ConstantInt({index, {count}}, 1);
      histogram =
          Convert(ScatterSlices(Zeros(b, {index, {cells}}), 0, cell, ones, Combine::kAdd), compute);
    }
  }
  if (c.boolean("density")) {
    Value total = Reduce(histogram, Reduction::kSum, {0});
    histogram = Reshape(Divide(histogram, BroadcastTo(total, histogram.dims())), out.dims);
    for (size_t d = 0; d < axes.size(); ++d) {
      Value edges = Convert(axes[d].edges, compute);
      const int64_t bins = axes[d].bins();
      Value widths = Subtract(SliceDim(edges, 0, 1, bins + 1), SliceDim(edges, 0, 0, bins));
      histogram = Divide(histogram, BroadcastInDim(widths, out.dims, {static_cast<int64_t>(d)}));
    }
  }
  return Reshape(Convert(histogram, out.dtype), out.dims);
}

Values HistogramOfBins(Call& c) {
  Value bins = c.tensor("bins");
  return {CountInBins(c, PointsOf(c, 1), {{bins}}, c.result()), bins};
}

Values HistogramOfCount(Call& c) {
  Value points = PointsOf(c, 1);
  const Axis axis = EqualBins(c, points, 0, c.integer("bins"), c.result().dtype);
  return {CountInBins(c, points, {axis}, c.result()), axis.edges};
}

std::vector<Axis> EqualAxes(Call& c, Value points) {
  std::vector<Axis> axes;
  const DType dtype = c.tensor("self").dtype();
  for (int64_t bins : c.integers("bins")) {
    axes.push_back(EqualBins(c, points, static_cast<int64_t>(axes.size()), bins, dtype));
  }
  return axes;
}

Values HistogramddBinEdges(Call& c) {
  Values edges;
  Value points = PointsOf(c, static_cast<int64_t>(c.integers("bins").size()));
  for (const Axis& axis : EqualAxes(c, points)) edges.push_back(axis.edges);
  return edges;
}

Values HistogramddOfCounts(Call& c) {
  Value points = PointsOf(c, c.result().rank());
  return {CountInBins(c, points, EqualAxes(c, points), c.result())};
}

Values HistogramddOfBins(Call& c) {
  std::vector<Axis> axes;
  for (Value bins : c.tensors("bins")) axes.push_back({bins});
  return {CountInBins(c, PointsOf(c, c.result().rank()), axes, c.result())};
}

void CheckDtype(const ShapeTensor& self, const char* kernel) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isFloatingType(self.dtype), '"', kernel,
                              "\" not implemented for '", self.dtype, "'");
}

// The number of bins of each dimension.
void CheckCounts(const std::vector<int64_t>& bins) {
  for (size_t d = 0; d < bins.size(); ++d) {
    TORCH_CHECK(bins[d] > 0, "torch.histogram(): bins must be > 0, but got ", bins[d],
                " for dimension ", d);
  }
}

void CheckRange(const ShapeCall& s, int64_t coordinates) {
  if (!s.has("range")) return;
  const std::vector<double> range = s.argument("range").toDoubleVector();
  const auto length = static_cast<int64_t>(range.size());
  TORCH_CHECK(length == 2 * coordinates, "torch.histogramdd: for a ", coordinates,
              "-dimensional histogram range should have ", 2 * coordinates, " elements, but got ",
              length);
  for (int64_t d = 0; d < coordinates; ++d) {
    const double low = range[2 * d], high = range[2 * d + 1];
    TORCH_CHECK(std::isfinite(low) && std::isfinite(high), "torch.histogramdd: dimension ", d,
                "'s range [", low, ", ", high, "] is not finite");
    TORCH_CHECK(low <= high, "torch.histogramdd: min should not exceed max, but got min ", low,
                " max ", high, " for dimension ", d);
  }
}

// The range of the data is found in numbers of its own dtype, which CPU does for some only.
void CheckDataRange(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  if (s.has("range") || c10::multiply_integers(self.sizes) == 0) return;
  TORCH_CHECK_NOT_IMPLEMENTED(
      self.dtype == c10::ScalarType::Float || self.dtype == c10::ScalarType::Double,
      "\"histogramdd\" not implemented for '", self.dtype, "'");
}

void CheckEdges(const ShapeTensor& self, const std::vector<ShapeTensor>& bins,
                int64_t coordinates) {
  const auto given = static_cast<int64_t>(bins.size());
  TORCH_CHECK(given == coordinates, "torch.histogramdd: expected ", coordinates,
              " sequences of bin edges for a ", coordinates, "-dimensional histogram but got ",
              given);
  for (int64_t d = 0; d < coordinates; ++d) {
    TORCH_CHECK(bins[d].dtype == self.dtype,
                "torch.histogramdd: input tensor and bins tensors should have the same dtype, but "
                "got input with dtype ",
                c10::scalarTypeToTypeMeta(self.dtype), " and bins for dimension ", d,
                " with dtype ", c10::scalarTypeToTypeMeta(bins[d].dtype));
    const std::vector<int64_t>& sizes = bins[d].sizes;
    TORCH_CHECK(sizes.size() == 1,
                "torch.histogramdd: bins tensor should have one dimension, but got ", sizes.size(),
                " dimensions in the bins tensor for dimension ", d);
    TORCH_CHECK(sizes[0] > 0,
                "torch.histogramdd: bins tensor should have at least 1 element, but got ", sizes[0],
                " elements in the bins tensor for dimension ", d);
  }
}

// `points` are self's sizes, the coordinates innermost.
void CheckWeight(const ShapeCall& s, const std::vector<int64_t>& points) {
  const ShapeTensor &self = s.tensor("self"), &weight = s.tensor("weight");
  if (!weight.defined) return;
  TORCH_CHECK(weight.dtype == self.dtype,
              "torch.histogramdd: if weight tensor is provided, input tensor and weight tensor "
              "should have the same dtype, but got input(",
              c10::scalarTypeToTypeMeta(self.dtype), "), and weight(",
              c10::scalarTypeToTypeMeta(weight.dtype), ")");
  const std::vector<int64_t> expected(points.begin(), points.end() - 1);
  TORCH_CHECK(weight.sizes == expected,
              "torch.histogramdd: if weight tensor is provided it should have the same shape as "
              "the input tensor excluding its innermost dimension, but got input with shape ",
              c10::IntArrayRef(points), " and weight with shape ", c10::IntArrayRef(weight.sizes));
}

// One dimension: all elements and their weights, in a row.
void CheckFlatWeight(const ShapeCall& s) {
  const ShapeTensor& weight = s.tensor("weight");
  if (!weight.defined) return;
  const int64_t elements = c10::multiply_integers(s.tensor("self").sizes);
  const int64_t weights = c10::multiply_integers(weight.sizes);
  TORCH_CHECK(weights == elements,
              "torch.histogramdd: if weight tensor is provided it should have the same shape as "
              "the input tensor excluding its innermost dimension, but got input with shape [",
              elements, ", 1] and weight with shape [", weights, "]");
  TORCH_CHECK(weight.dtype == s.tensor("self").dtype,
              "torch.histogramdd: if weight tensor is provided, input tensor and weight tensor "
              "should have the same dtype, but got input(",
              c10::scalarTypeToTypeMeta(s.tensor("self").dtype), "), and weight(",
              c10::scalarTypeToTypeMeta(weight.dtype), ")");
}

std::vector<ResultSpec> HistogramOfBinsShape(const ShapeCall& s) {
  const ShapeTensor &self = s.tensor("self"), &bins = s.tensor("bins");
  CheckEdges(self, {bins}, 1);
  CheckFlatWeight(s);
  CheckCounts({bins.sizes[0] - 1});
  CheckDtype(self, "histogram_cpu");
  return {{.dtype = self.dtype, .sizes = {bins.sizes[0] - 1}},
          {.dtype = self.dtype, .sizes = bins.sizes}};
}

std::vector<ResultSpec> HistogramOfCountShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const int64_t bins = s.argument("bins").toInt();
  CheckFlatWeight(s);
  CheckCounts({bins});
  CheckRange(s, 1);
  CheckDataRange(s);
  CheckDtype(self, "histogram_cpu");
  return {{.dtype = self.dtype, .sizes = {bins}}, {.dtype = self.dtype, .sizes = {bins + 1}}};
}

// Checks of a histogram of equal bins in several dimensions; the numbers of bins.
std::vector<int64_t> CheckPoints(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const std::vector<int64_t> bins = s.argument("bins").toIntVector();
  TORCH_CHECK(self.sizes.size() >= 2,
              "torch.histogramdd: input tensor should have at least 2 dimensions");
  TORCH_CHECK(bins.size() == static_cast<size_t>(self.sizes.back()),
              "histogramdd: The size of bins must be equal to the innermost dimension of the "
              "input.");
  CheckCounts(bins);
  CheckRange(s, self.sizes.back());
  return bins;
}

std::vector<ResultSpec> HistogramddBinEdgesShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  std::vector<ResultSpec> edges;
  for (int64_t bins : CheckPoints(s)) edges.push_back({.dtype = self.dtype, .sizes = {bins + 1}});
  CheckDataRange(s);
  return edges;
}

std::vector<ResultSpec> HistogramddOfCountsShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const std::vector<int64_t> bins = CheckPoints(s);
  CheckWeight(s, self.sizes);
  CheckDataRange(s);
  CheckDtype(self, "histogram_cpu");
  return {{.dtype = self.dtype, .sizes = bins}};
}

std::vector<ResultSpec> HistogramddOfBinsShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  TORCH_CHECK(self.sizes.size() >= 2,
              "torch.histogramdd: input tensor should have at least 2 dimensions, but got ",
              self.sizes.size());
  const std::vector<ShapeTensor>& bins = s.tensors("bins");
  CheckEdges(self, bins, self.sizes.back());
  CheckWeight(s, self.sizes);
  std::vector<int64_t> counts;
  for (const ShapeTensor& edges : bins) counts.push_back(edges.sizes[0] - 1);
  CheckCounts(counts);
  CheckDtype(self, "histogram_cpu");
  return {{.dtype = self.dtype, .sizes = counts}};
}

TPU_RULE({.op = "histogram.bins_tensor",
          .lower = &HistogramOfBins,
          .shape = &HistogramOfBinsShape});
TPU_RULE({.op = "histogram.bin_ct", .lower = &HistogramOfCount, .shape = &HistogramOfCountShape});
TPU_RULE({.op = "_histogramdd_bin_edges",
          .lower = &HistogramddBinEdges,
          .shape = &HistogramddBinEdgesShape});
TPU_RULE({.op = "_histogramdd_from_bin_cts",
          .lower = &HistogramddOfCounts,
          .shape = &HistogramddOfCountsShape});
TPU_RULE({.op = "_histogramdd_from_bin_tensors",
          .lower = &HistogramddOfBins,
          .shape = &HistogramddOfBinsShape});

}  // namespace
}  // namespace torch_tpu::lowering
