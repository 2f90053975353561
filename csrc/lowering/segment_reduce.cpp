// segment_reduce: reductions over consecutive runs of one axis, given by their lengths or offsets.
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Exception.h>

#include <limits>
#include <string>

#include "lowering/indices.h"
#include "lowering/reduction.h"
#include "lowering/rule.h"
#include "lowering/scan.h"
#include "lowering/search.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: Add, Multiply, Reduce, ... read like the mathematics

enum class Kind { kSum, kMean, kProduct, kMax, kMin };

Kind KindNamed(std::string_view reduce) {
  if (reduce == "sum") return Kind::kSum;
  if (reduce == "mean") return Kind::kMean;
  if (reduce == "prod") return Kind::kProduct;
  if (reduce == "max" || reduce == "amax") return Kind::kMax;
  if (reduce == "min" || reduce == "amin") return Kind::kMin;
  TORCH_CHECK(false, "reduce argument must be either sum, prod, mean, amax or amin, got ",
              std::string(reduce));
}

Combine CombineOf(Kind kind) {
  switch (kind) {
    case Kind::kProduct:
      return Combine::kMultiply;
    case Kind::kMax:
      return Combine::kMax;
    case Kind::kMin:
      return Combine::kMin;
    default:
      return Combine::kAdd;
  }
}

// data as [rows, length, features], the segments along its second dimension; segments of all rows
// are numbered through.
struct Segments {
  Value data;  // [rows * length, features] in the compute type
  Value of;    // [rows * length]: the segment an element is in, `count` if it is in none
  Value size;  // [count]: elements of each segment, 32-bit
  int64_t rows, length, features, count;

  Dims per_segment() const { return {count, features}; }
  Value Combined(Value base, Value updates, Combine combine) const {
    return ScatterSlices(base, 0, of, updates, combine);
  }
  // What belongs to each element's segment. Elements of no segment get another's.
  Value OfSegment(Value per_segment) const {
    Value within = Minimum(of, of.builder().ConstantInt(of.type(), count - 1));
    return Take(per_segment, within, 0);
  }
  // i1 like data: the element is in some segment.
  Value Counted() const {
    return BroadcastInDim(Lt(of, of.builder().ConstantInt(of.type(), count)), data.dims(), {0});
  }
};

Segments SegmentsOf(Call& c) {
  Builder& b = c.builder();
  Segments s;
  Value data = c.tensor("data");
  const bool by_offsets = c.has("offsets");
  Value bounds = c.tensor(by_offsets ? "offsets" : "lengths");
  const int axis = bounds.rank() - 1;
  s.rows = 1, s.features = 1;
  for (int d = 0; d < axis; ++d) s.rows *= data.dim(d);
  for (int d = axis + 1; d < data.rank(); ++d) s.features *= data.dim(d);
  s.length = data.dim(axis);
  const int64_t each = bounds.dim(axis) - (by_offsets ? 1 : 0);
  s.count = s.rows * each;
  s.data = Reshape(Convert(data, ComputeType(data.dtype())), {s.rows * s.length, s.features});

  bounds = Reshape(bounds, {s.rows, bounds.dim(axis)});
  Value ends;
  if (by_offsets) {
    ends = bounds;
  } else {
    if (c.spec().find("unsafe") != nullptr && !c.boolean("unsafe")) {
      c.Check(Ge(bounds, ConstantLike(bounds, 0)), "lengths contains negative value!",
              Call::ErrorKind::kRuntime);
      Value total = Reduce(bounds, Reduction::kSum, {1});
      c.Check(Eq(total, b.ConstantInt(total.type(), s.length)),
              "segment_reduce(): Expected all rows of lengths along axis to sum to "
              "data.size(lengths.dim()-1) when !unsafe.",
              Call::ErrorKind::kRuntime);
    }
    Value scanned = InclusiveScan(c, bounds, Reduction::kSum, 1);
    ends = Pad(scanned, ScalarInt(b, scanned.dtype(), 0), {0, 1}, {0, 0});
  }
  Value size = Subtract(SliceDim(ends, 1, 1, each + 1), SliceDim(ends, 1, 0, each));
  s.size = Reshape(Convert(size, DType::kS32), {s.count});

  // The last segment that begins at or before an element, unless none does or all end before it.
  const DType index = s.count < std::numeric_limits<int32_t>::max() ? DType::kS32 : DType::kS64;
  const Dims dims = {s.rows, s.length};
  Value position = b.Iota({ends.dtype(), dims}, 1);
  Value segment = Convert(Search(ends, position, /*right=*/true), index);
  segment = Subtract(segment, ConstantLike(segment, 1));
  Value inside =
      And(Ge(segment, ConstantLike(segment, 0)), Lt(segment, b.ConstantInt(segment.type(), each)));
  Value first = Multiply(b.Iota({index, dims}, 0), b.ConstantInt({index, dims}, each));
  segment = Select(inside, Add(segment, first), b.ConstantInt(segment.type(), s.count));
  s.of = Reshape(segment, {s.rows * s.length});
  return s;
}

double StartOf(Kind kind) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  switch (kind) {
    case Kind::kProduct:
      return 1;
    case Kind::kMax:
      return -kInfinity;
    case Kind::kMin:
      return kInfinity;
    default:
      return 0;
  }
}

Value Sizes(const Segments& s) {
  return BroadcastInDim(Convert(s.size, s.data.dtype()), s.per_segment(), {0});
}

Values SegmentReduce(Call& c) {
  Builder& b = c.builder();
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(b, out)};
  const Segments s = SegmentsOf(c);
  const Kind kind = KindNamed(c.string("reduce"));
  const Type type{s.data.dtype(), s.per_segment()};
  const bool initial = c.has("initial");
  Value start = initial ? BroadcastTo(c.scalar("initial", type.dtype), type.dims)
                        : b.Constant(type, StartOf(kind));
  Value result = s.Combined(start, s.data, CombineOf(kind));
  if (kind == Kind::kMean) {
    Value size = Sizes(s);
    Value empty = Eq(size, ConstantLike(size, 0));
    Value none = initial ? start : b.Constant(type, std::numeric_limits<double>::quiet_NaN());
    result = Select(empty, none, Divide(result, size));
  }
  return {Reshape(Convert(result, out.dtype), out.dims)};
}

// Products of the other elements of each element's segment. Dividing the product by the element
// does for all but zeros and NaNs, whose share is built from the product of the rest.
Value OtherProducts(Call& c, const Segments& s, Value product) {
  Value x = s.data;
  Value zero = ConstantLike(x, 0), one = ConstantLike(x, 1);
  Value is_zero = Eq(x, zero), is_nan = IsNan(x);
  const Type type{x.dtype(), s.per_segment()};
  Value start = c.has("initial") ? BroadcastTo(c.scalar("initial", type.dtype), type.dims)
                                 : c.builder().Constant(type, 1);
  Value rest = s.Combined(start, Select(Or(is_zero, is_nan), one, x), Combine::kMultiply);
  const auto count = [&](Value which) {
    Value sum = s.Combined(Zeros(c.builder(), type), Convert(which, type.dtype), Combine::kAdd);
    return s.OfSegment(sum);
  };
  Value zeros = Subtract(count(is_zero), Convert(is_zero, x.dtype()));
  Value nans = Subtract(count(is_nan), Convert(is_nan, x.dtype()));
  rest = s.OfSegment(rest);
  rest = Select(Gt(zeros, zero), Multiply(rest, zero), rest);
  rest = Select(Gt(nans, zero), ConstantLike(x, std::numeric_limits<double>::quiet_NaN()), rest);
  return Select(Or(is_zero, is_nan), rest, Divide(s.OfSegment(product), x));
}

Values SegmentReduceBackward(Call& c) {
  Builder& b = c.builder();
  const Type& out = c.result();
  if (out.numel() == 0 || c.tensor("grad").numel() == 0) return {Zeros(b, out)};
  const Segments s = SegmentsOf(c);
  const Kind kind = KindNamed(c.string("reduce"));
  const DType compute = s.data.dtype();
  Value grad = Convert(Reshape(c.tensor("grad"), s.per_segment()), compute);
  Value output = Convert(Reshape(c.tensor("output"), s.per_segment()), compute);
  Value result;
  switch (kind) {
    case Kind::kSum:
      result = s.OfSegment(grad);
      break;
    case Kind::kMean:
      result = s.OfSegment(Divide(grad, Sizes(s)));
      break;
    case Kind::kProduct:
      result = Multiply(s.OfSegment(grad), OtherProducts(c, s, output));
      break;
    default: {
      // Elements that are the extreme, or NaN, share its gradient; CPU gives each all of a negative
      // one.
      Value extreme = Or(IsNan(s.data), Eq(s.data, s.OfSegment(output)));
      Value shares = s.Combined(Zeros(b, grad.type()), Convert(extreme, compute), Combine::kAdd);
      Value even = Divide(grad, Maximum(shares, ConstantLike(shares, 1)));
      Value share = s.OfSegment(Select(Gt(grad, ConstantLike(grad, 0)), even, grad));
      result = Select(extreme, share, ConstantLike(share, 0));
    }
  }
  result = Select(s.Counted(), result, ConstantLike(result, 0));
  return {Reshape(Convert(result, out.dtype), out.dims)};
}

// The checks of both, and how many bounds a row has.
const ShapeTensor& CheckBounds(const ShapeCall& s, const char* kernel) {
  const ShapeTensor& data = s.tensor("data");
  const auto rank = static_cast<int64_t>(data.sizes.size());
  const int64_t axis = c10::maybe_wrap_dim(s.argument("axis").toInt(), rank);
  const ShapeTensor &lengths = s.tensor("lengths"), &offsets = s.tensor("offsets");
  TORCH_CHECK(lengths.defined || offsets.defined,
              "segment_reduce(): Either lengths or offsets must be defined.");
  const ShapeTensor& bounds = offsets.defined ? offsets : lengths;
  const char* name = offsets.defined ? "offsets" : "lengths";
  const auto bounds_rank = static_cast<int64_t>(bounds.sizes.size());
  TORCH_CHECK(axis == bounds_rank - 1,
              "segment_reduce(): Expected axis to be the last dimension of ", name, " but got ",
              axis, ".");
  TORCH_CHECK(rank >= bounds_rank, "Expected data.dim() >= ", name,
              "_value.dim() to be true, but got false.");
  for (int64_t d = 0; d < axis; ++d) {
    TORCH_CHECK(bounds.sizes[d] == data.sizes[d], "segment_reduce(): Expected ", name,
                " to have the sizes of data before axis, but got ", c10::IntArrayRef(bounds.sizes),
                " and data of ", c10::IntArrayRef(data.sizes));
  }
  TORCH_CHECK(!offsets.defined || bounds.sizes.back() > 0,
              "Trying to create tensor with negative dimension -1");
  TORCH_CHECK_NOT_IMPLEMENTED(
      bounds.dtype == c10::ScalarType::Long || bounds.dtype == c10::ScalarType::Int,
      "\"_segment_reduce_lengths_cpu_kernel1\" not implemented for '", bounds.dtype, "'");
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isFloatingType(data.dtype), '"', kernel,
                              "\" not implemented for '", data.dtype, "'");
  KindNamed(s.argument("reduce").toStringRef());
  return bounds;
}

std::vector<ResultSpec> SegmentReduceShape(const ShapeCall& s) {
  TORCH_CHECK(!s.tensor("indices").defined,
              "segment_reduce(): indices based reduction is not supported yet.");
  const ShapeTensor& bounds = CheckBounds(s, "_segment_reduce_cpu");
  const ShapeTensor& data = s.tensor("data");
  std::vector<int64_t> sizes = bounds.sizes;
  if (s.tensor("offsets").defined) --sizes.back();
  sizes.insert(sizes.end(), data.sizes.begin() + static_cast<ptrdiff_t>(bounds.sizes.size()),
               data.sizes.end());
  return {{.dtype = data.dtype, .sizes = std::move(sizes)}};
}

std::vector<ResultSpec> SegmentReduceBackwardShape(const ShapeCall& s) {
  CheckBounds(s, "_segment_reduce_cpu");
  const ShapeTensor& data = s.tensor("data");
  return {{.dtype = data.dtype, .sizes = data.sizes}};
}

TPU_RULE({.op = "segment_reduce", .lower = &SegmentReduce, .shape = &SegmentReduceShape});
TPU_RULE({.op = "_segment_reduce_backward",
          .lower = &SegmentReduceBackward,
          .shape = &SegmentReduceBackwardShape});

}  // namespace
}  // namespace torch_tpu::lowering
