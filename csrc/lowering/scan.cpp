#include "lowering/scan.h"

#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Exception.h>

#include <limits>

#include "lowering/reduction.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {

using namespace stablehlo;  // NOLINT: Add, Multiply, Reduce, ... read like the mathematics

namespace {

// Elements scanned by one window: every element costs as many operations, every level of blocks a
// pass over what it has left.
constexpr int64_t kBlock = 16;

Value IdentityOf(Builder& builder, Reduction kind, DType dtype) {
  switch (kind) {
    case Reduction::kSum:
      return Scalar(builder, dtype, 0);
    case Reduction::kProduct:
      return Scalar(builder, dtype, 1);
    case Reduction::kMax:
      return MinValue(builder, dtype);
    default:
      return MaxValue(builder, dtype);
  }
}

Value Combine(Reduction kind, Value a, Value b) {
  switch (kind) {
    case Reduction::kSum:
      return Add(a, b);
    case Reduction::kProduct:
      return Multiply(a, b);
    case Reduction::kMax:
      return Maximum(a, b);
    default:
      return Minimum(a, b);
  }
}

// x moved by `distance` places towards the end of a dimension, `fill` coming in.
Value ShiftIn(Value x, Value fill, int dim, int64_t distance) {
  Dims low(x.rank(), 0), high(x.rank(), 0);
  low[dim] = distance;
  high[dim] = -distance;
  return Pad(x, fill, low, high);
}

// log2(n) passes, each combining with the element twice as far away.
template <typename Operation>
Value StepScan(Value x, int dim, const Operation& combine) {
  const int64_t size = x.dim(dim);
  for (int64_t distance = 1; distance < size; distance *= 2) {
    Value moved = combine(SliceDim(x, dim, 0, size - distance), SliceDim(x, dim, distance, size));
    x = Concatenate({SliceDim(x, dim, 0, distance), moved}, dim);
  }
  return x;
}

Value WindowScan(Value x, Reduction kind, int dim) {
  Window window;
  window.dimensions.assign(x.rank(), 1);
  window.dimensions[dim] = x.dim(dim);
  window.padding.assign(x.rank(), {0, 0});
  window.padding[dim] = {x.dim(dim) - 1, 0};
  return ReduceWindow(x, kind, window);
}

// Scans blocks by themselves, then the blocks' totals, and adds the second to the first.
Value BlockScan(Value x, Reduction kind, Value identity, int dim) {
  const int64_t size = x.dim(dim);
  if (size <= 2 * kBlock) return WindowScan(x, kind, dim);
  const int64_t blocks = (size + kBlock - 1) / kBlock;
  Dims none(x.rank(), 0), high(x.rank(), 0);
  high[dim] = blocks * kBlock - size;
  Value padded = high[dim] == 0 ? x : Pad(x, identity, none, high);

  Dims split = x.dims();
  split[dim] = blocks;
  Dims totals_dims = split;
  split.insert(split.begin() + dim + 1, kBlock);
  Value within = WindowScan(Reshape(padded, split), kind, dim + 1);
  Value totals = Reshape(SliceDim(within, dim + 1, kBlock - 1, kBlock), totals_dims);
  Value before = ShiftIn(BlockScan(totals, kind, identity, dim), identity, dim, 1);
  Value scanned = Combine(kind, BroadcastReduced(before, split, {dim + 1}), within);
  return SliceDim(Reshape(scanned, padded.dims()), dim, 0, size);
}

}  // namespace

Value InclusiveScan(Call& c, Value x, Reduction kind, int dim) {
  if (x.numel() == 0 || x.dim(dim) == 1) return x;
  Value identity = IdentityOf(c.builder(), kind, x.dtype());
  // TPU emulates 64-bit numbers, but not in windows.
  if (c.on_tpu() && ByteSize(RealOf(x.dtype())) == 8) {
    return StepScan(x, dim, [&](Value a, Value b) { return Combine(kind, a, b); });
  }
  return BlockScan(x, kind, identity, dim);
}

namespace {

int ScanDim(Call& c, Value x) { return static_cast<int>(WrapDim(c.integer("dim"), x.rank())); }

template <Reduction kKind>
Values Cumulate(Call& c) {
  const Type& out = c.result();
  Value x = Convert(AtLeast1d(c.tensor("self")), out.dtype);
  const DType compute = out.dtype == DType::kPred ? DType::kS32 : ComputeType(out.dtype);
  x = InclusiveScan(c, Convert(x, compute), kKind, ScanDim(c, x));
  return {Reshape(Convert(x, out.dtype), out.dims)};
}

TPU_RULE({.op = "cumsum",
          .lower = &Cumulate<Reduction::kSum>,
          .kinds = kFloat | kComplex | kInteger});
TPU_RULE({.op = "cumprod",
          .lower = &Cumulate<Reduction::kProduct>,
          .kinds = kFloat | kComplex | kInteger});

// An element sets the record if it equals the extreme so far (or is NaN, which no number follows);
// the index is the latest record's.
template <Reduction kKind>
Values CumulateExtreme(Call& c) {
  Value x = AtLeast1d(c.tensor("self"));
  if (x.dtype() == DType::kPred) x = Convert(x, DType::kU8);
  const int dim = ScanDim(c, x);
  Value extreme = InclusiveScan(c, x, kKind, dim);
  Value record = Eq(x, extreme);
  if (IsFloat(x.dtype())) record = Or(record, IsNan(x));
  const DType index_type =
      x.dim(dim) <= std::numeric_limits<int32_t>::max() ? DType::kS32 : DType::kS64;
  Value position = c.builder().Iota({index_type, x.dims()}, dim);
  Value index =
      InclusiveScan(c, Select(record, position, ConstantLike(position, 0)), Reduction::kMax, dim);
  return {Reshape(Convert(extreme, c.result(0).dtype), c.result(0).dims),
          Reshape(Convert(index, c.result(1).dtype), c.result(1).dims)};
}

template <bool kMax>
std::vector<ResultSpec> CumulateExtremeShape(const ShapeCall& c) {
  const ShapeTensor& self = c.tensor("self");
  c10::maybe_wrap_dim(c.argument("dim").toInt(), static_cast<int64_t>(self.sizes.size()));
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isComplexType(self.dtype), kMax ? "\"cummax" : "\"cummin",
                              "_cpu\" not implemented for '", self.dtype, "'");
  return {{.dtype = self.dtype, .sizes = self.sizes},
          {.dtype = c10::ScalarType::Long, .sizes = self.sizes}};
}

TPU_RULE({.op = "cummax",
          .lower = &CumulateExtreme<Reduction::kMax>,
          .shape = &CumulateExtremeShape<true>});
TPU_RULE({.op = "cummin",
          .lower = &CumulateExtreme<Reduction::kMin>,
          .shape = &CumulateExtremeShape<false>});

// log(exp(a) + exp(b)) without overflow.
Value LogAddExp(Value a, Value b) {
  if (IsComplex(a.dtype())) {
    Value largest = Maximum(Real(a), Real(b));
    largest = Select(IsFinite(largest), largest, ConstantLike(largest, 0));
    Value shift = Convert(largest, a.dtype());
    return Add(Log(Add(Exp(Subtract(a, shift)), Exp(Subtract(b, shift)))), shift);
  }
  Value low = Minimum(a, b), high = Maximum(a, b);
  // Two equal infinities have no difference.
  Value same_infinity = And(Eq(low, high), Not(IsFinite(low)));
  return Select(same_infinity, high, Add(high, Log1p(Exp(Subtract(low, high)))));
}

Values LogCumSumExp(Call& c) {
  const Type& out = c.result();
  Value x = AtLeast1d(c.tensor("self"));
  x = Convert(x, ComputeType(x.dtype()));
  if (x.numel() > 0) x = StepScan(x, ScanDim(c, x), &LogAddExp);
  return {Reshape(Convert(x, out.dtype), out.dims)};
}

std::vector<ResultSpec> LogCumSumExpShape(const ShapeCall& c) {
  const ShapeTensor& self = c.tensor("self");
  c10::maybe_wrap_dim(c.argument("dim").toInt(), static_cast<int64_t>(self.sizes.size()));
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isFloatingType(self.dtype) || c10::isComplexType(self.dtype),
                              "\"logcumsumexp_out_cpu\" not implemented for '", self.dtype, "'");
  return {{.dtype = self.dtype, .sizes = self.sizes}};
}

TPU_RULE({.op = "logcumsumexp", .lower = &LogCumSumExp, .shape = &LogCumSumExpShape});
TPU_RULE({.op = "_logcumsumexp", .lower = &LogCumSumExp, .shape = &LogCumSumExpShape});

}  // namespace
}  // namespace torch_tpu::lowering
