#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Exception.h>

#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "lowering/reduction.h"
#include "lowering/rule.h"
#include "lowering/scan.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: Add, Multiply, Reduce, ... read like the mathematics

int NamedDim(Call& c, Value x) { return static_cast<int>(WrapDim(c.integer("dim"), x.rank())); }

Value Finish(Call& c, Value x, int i) {
  return Reshape(Convert(x, c.result(i).dtype), c.result(i).dims);
}

// Does a come before b? NaN is larger than any number, as PyTorch sorts.
Value Before(Value a, Value b, bool descending) {
  Value before = descending ? Gt(a, b) : Lt(a, b);
  if (!IsFloat(a.dtype())) return before;
  Value larger = descending ? a : b, other = descending ? b : a;
  return Or(before, And(IsNan(larger), Not(IsNan(other))));
}

struct Sorted {
  Value values, indices;
};

// Stable. Booleans come back as ui8.
Sorted SortWithIndices(Value x, int dim, bool descending) {
  if (x.dtype() == DType::kPred) x = Convert(x, DType::kU8);
  const DType index_type =
      x.dim(dim) <= std::numeric_limits<int32_t>::max() ? DType::kS32 : DType::kS64;
  Value position = x.builder().Iota({index_type, x.dims()}, dim);
  Values sorted = stablehlo::Sort({x, position}, dim, /*stable=*/true, [&](const Values& v) {
    return Values{Before(v[0], v[1], descending)};
  });
  return {sorted[0], sorted[1]};
}

// --- sort

Values Sort(Call& c) {
  Value x = AtLeast1d(c.tensor("self"));
  Sorted sorted = SortWithIndices(x, NamedDim(c, x), c.boolean("descending"));
  return {Finish(c, sorted.values, 0), Finish(c, sorted.indices, 1)};
}

// The other overload calls this one.
TPU_RULE({.op = "sort.stable", .lower = &Sort});

// --- topk

// What the plugins' own top-k takes: it orders 32-bit floats, equal ones by index.
Sorted LargestOfRows(Value x, int64_t k) {
  Value keys = Convert(x, DType::kF32);
  // Of NaNs only the positive ones count as largest there.
  keys = Select(IsNan(keys), ConstantLike(keys, std::numeric_limits<double>::quiet_NaN()), keys);
  Dims dims = x.dims();
  dims.back() = k;
  Values top = x.builder().Emit("chlo.top_k", {keys}, "k = " + std::to_string(k) + " : i64",
                                {{DType::kF32, dims}, {DType::kS32, dims}});
  return {Convert(top[0], x.dtype()), top[1]};
}

Values TopK(Call& c) {
  if (const Value x = c.tensor("self"); x.rank() == 0) {  // whatever k is
    return {x, ConstantLike(Convert(x, c.result(1).dtype), 0)};
  }
  Value x = AtLeast1d(c.tensor("self"));
  const int dim = NamedDim(c, x);
  const int64_t k = c.integer("k");
  const bool largest = c.boolean("largest");
  if (k == 1 && largest) {
    Extreme extreme = ExtremeOver(x, Reduction::kMax, dim);
    return {Finish(c, extreme.value, 0), Finish(c, extreme.index, 1)};
  }
  const bool fits_f32 =
      x.dtype() == DType::kF32 || x.dtype() == DType::kBF16 || x.dtype() == DType::kF16;
  if (largest && fits_f32 && k > 0 && x.numel() > 0) {
    std::vector<int64_t> swap = AllDims(x);
    std::swap(swap[dim], swap.back());
    Sorted top = LargestOfRows(Transpose(x, swap), k);
    return {Finish(c, Transpose(top.values, swap), 0), Finish(c, Transpose(top.indices, swap), 1)};
  }
  Sorted sorted = SortWithIndices(x, dim, largest);
  return {Finish(c, SliceDim(sorted.values, dim, 0, k), 0),
          Finish(c, SliceDim(sorted.indices, dim, 0, k), 1)};
}

TPU_RULE({.op = "topk", .lower = &TopK});

// --- order statistics

// A reduction of one dimension to a value and an index.
std::vector<ResultSpec> ValueAndIndexShape(const ShapeCall& c, const char* name) {
  const ShapeTensor& self = c.tensor("self");
  const auto rank = static_cast<int64_t>(self.sizes.size());
  const int64_t dim = c10::maybe_wrap_dim(c.argument("dim").toInt(), rank);
  TORCH_CHECK_INDEX(rank == 0 || self.sizes[dim] != 0, name, "(): Expected reduction dim ", dim,
                    " to have non-zero size.");
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isComplexType(self.dtype), '"', name,
                              "_cpu\" not implemented for '", self.dtype, "'");
  const std::vector<int64_t> sizes =
      ReducedSizes(self.sizes, {dim}, c.argument("keepdim").toBool());
  return {{.dtype = self.dtype, .sizes = sizes}, {.dtype = c10::ScalarType::Long, .sizes = sizes}};
}

void RefuseBool(const ShapeCall& c, const char* name) {
  TORCH_CHECK_NOT_IMPLEMENTED(c.tensor("self").dtype != c10::ScalarType::Bool, '"', name,
                              "_cpu\" not implemented for 'Bool'");
}

Values KthValue(Call& c) {
  Value x = AtLeast1d(c.tensor("self"));
  const int dim = NamedDim(c, x);
  const int64_t k = c.integer("k");
  Sorted sorted = SortWithIndices(x, dim, /*descending=*/false);
  return {Finish(c, SliceDim(sorted.values, dim, k - 1, k), 0),
          Finish(c, SliceDim(sorted.indices, dim, k - 1, k), 1)};
}

std::vector<ResultSpec> KthValueShape(const ShapeCall& c) {
  const ShapeTensor& self = c.tensor("self");
  const auto rank = static_cast<int64_t>(self.sizes.size());
  const int64_t dim = c10::maybe_wrap_dim(c.argument("dim").toInt(), rank);
  std::vector<ResultSpec> results = ValueAndIndexShape(c, "kthvalue");
  RefuseBool(c, "kthvalue");
  const int64_t k = c.argument("k").toInt();
  TORCH_CHECK(k >= 1 && k <= (rank == 0 ? 1 : self.sizes[dim]),
              "kthvalue(): selected number k out of range for dimension ", dim);
  return results;
}

TPU_RULE({.op = "kthvalue", .lower = &KthValue, .shape = &KthValueShape});

// The element at a place of its own in each row: `place` lacks `dim`.
Value ElementAt(Value x, Value place, int dim) {
  Value position = x.builder().Iota({place.dtype(), x.dims()}, dim);
  Value here = Eq(position, BroadcastReduced(place, x.dims(), {dim}));
  return Reduce(Select(here, x, ConstantLike(x, 0)), Reduction::kSum, {dim});
}

// The lower of two middle elements. NaNs sort last: either they are left out, or the first of them
// is the median of a row that has any.
Sorted MedianOf(Value x, int dim, bool ignore_nan) {
  Sorted sorted = SortWithIndices(x, dim, /*descending=*/false);
  const int64_t size = x.dim(dim);
  const int64_t middle = (size - 1) / 2;
  if (!IsFloat(x.dtype())) {
    return {SliceDim(sorted.values, dim, middle, middle + 1),
            SliceDim(sorted.indices, dim, middle, middle + 1)};
  }
  const DType index_type = sorted.indices.dtype();
  Value numbers = Reduce(Convert(Not(IsNan(x)), index_type), Reduction::kSum, {dim});
  Value zero = ConstantLike(numbers, 0);
  Value place;
  if (ignore_nan) {
    Value last = Maximum(Subtract(numbers, ConstantLike(numbers, 1)), zero);
    place = ShiftRightArithmetic(last, ConstantLike(last, 1));
  } else {
    Value all = ConstantLike(numbers, static_cast<double>(size));
    place = Select(Eq(numbers, all), ConstantLike(numbers, static_cast<double>(middle)), numbers);
  }
  return {ElementAt(sorted.values, place, dim), ElementAt(sorted.indices, place, dim)};
}

template <bool kIgnoreNan>
Values MedianDim(Call& c) {
  Value x = AtLeast1d(c.tensor("self"));
  Sorted median = MedianOf(x, NamedDim(c, x), kIgnoreNan);
  return {Finish(c, median.values, 0), Finish(c, median.indices, 1)};
}

// NaN, or what becomes of NaN when CPU converts it to an integer.
Value MedianOfNothing(Builder& builder, const Type& type) {
  if (IsFloat(type.dtype)) {
    return builder.Constant(type, std::numeric_limits<double>::quiet_NaN());
  }
  if (type.dtype == DType::kS32 || type.dtype == DType::kS64) {
    return BroadcastTo(MinValue(builder, type.dtype), type.dims);
  }
  return builder.ConstantInt(type, 0);
}

template <bool kIgnoreNan>
Values Median(Call& c) {
  Value x = c.tensor("self");
  if (x.numel() == 0) return {MedianOfNothing(c.builder(), c.result())};
  return {Finish(c, MedianOf(Reshape(x, {x.numel()}), 0, kIgnoreNan).values, 0)};
}

std::vector<ResultSpec> MedianDimShape(const ShapeCall& c) {
  std::vector<ResultSpec> results = ValueAndIndexShape(c, "median");
  RefuseBool(c, "median");
  return results;
}

std::vector<ResultSpec> MedianShape(const ShapeCall& c) {
  const c10::ScalarType dtype = c.tensor("self").dtype;
  TORCH_CHECK_NOT_IMPLEMENTED(dtype != c10::ScalarType::Bool && !c10::isComplexType(dtype),
                              "\"median_cpu\" not implemented for '", dtype, "'");
  return {{.dtype = dtype}};
}

TPU_RULE({.op = "median", .lower = &Median<false>, .shape = &MedianShape});
TPU_RULE({.op = "median.dim", .lower = &MedianDim<false>, .shape = &MedianDimShape});
TPU_RULE({.op = "nanmedian", .lower = &Median<true>, .shape = &MedianShape});
TPU_RULE({.op = "nanmedian.dim", .lower = &MedianDim<true>, .shape = &MedianDimShape});

// --- mode

// The most frequent value, the smallest of several, and the last place it stands at. NaN, unequal
// to itself, is the mode only where there is nothing else.
Values Mode(Call& c) {
  Value x = AtLeast1d(c.tensor("self"));
  const int dim = NamedDim(c, x);
  const int64_t size = x.dim(dim);
  if (x.numel() == 0) {
    return {ZeroConstant(c.builder(), c.result(0)), ZeroConstant(c.builder(), c.result(1))};
  }
  Sorted sorted = SortWithIndices(x, dim, /*descending=*/false);
  Value position = c.builder().Iota(sorted.indices.type(), dim);
  // Where the run of equal values that each element is in begins.
  Value begin = ConstantLike(position, 0);
  if (size > 1) {
    Value starts =
        Ne(SliceDim(sorted.values, dim, 1, size), SliceDim(sorted.values, dim, 0, size - 1));
    Value later = SliceDim(position, dim, 1, size);
    begin = Concatenate({SliceDim(begin, dim, 0, 1), Select(starts, later, ConstantLike(later, 0))},
                        dim);
    begin = InclusiveScan(c, begin, Reduction::kMax, dim);
  }
  Value place = ExtremeOver(Subtract(position, begin), Reduction::kMax, dim).index;
  Value at = Convert(place, position.dtype());
  return {Finish(c, ElementAt(sorted.values, at, dim), 0),
          Finish(c, ElementAt(sorted.indices, at, dim), 1)};
}

std::vector<ResultSpec> ModeShape(const ShapeCall& c) { return ValueAndIndexShape(c, "mode"); }

TPU_RULE({.op = "mode", .lower = &Mode, .shape = &ModeShape});

}  // namespace
}  // namespace torch_tpu::lowering
