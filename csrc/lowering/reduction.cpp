#include "lowering/reduction.h"

#include <c10/core/DefaultDtype.h>
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lowering/rule.h"

namespace torch_tpu::lowering {

using namespace stablehlo;  // NOLINT: Add, Multiply, Reduce, ... read like the mathematics

Value AtLeast1d(Value x) { return x.rank() == 0 ? Reshape(x, {1}) : x; }

std::vector<int64_t> AllDims(Value x) {
  std::vector<int64_t> dims(x.rank());
  std::iota(dims.begin(), dims.end(), int64_t{0});
  return dims;
}

int64_t CountOver(const Dims& sizes, const std::vector<int64_t>& dims) {
  int64_t count = 1;
  for (int64_t dim : dims) count *= sizes[dim];
  return count;
}

Value BroadcastReduced(Value reduced, const Dims& sizes, const std::vector<int64_t>& dims) {
  std::vector<int64_t> kept;
  for (int64_t dim = 0; dim < static_cast<int64_t>(sizes.size()); ++dim) {
    if (std::find(dims.begin(), dims.end(), dim) == dims.end()) kept.push_back(dim);
  }
  return BroadcastInDim(reduced, sizes, kept);
}

Value MeanOver(Value x, const std::vector<int64_t>& dims) {
  Value sum = Reduce(x, Reduction::kSum, dims);
  return Divide(sum, ConstantLike(sum, static_cast<double>(CountOver(x.dims(), dims))));
}

Moments MomentsOver(Value x, const std::vector<int64_t>& dims) {
  Value mean = MeanOver(x, dims);
  Value distance = Subtract(x, BroadcastReduced(mean, x.dims(), dims));
  Value square;
  if (IsComplex(x.dtype())) {
    Value real = Real(distance), imag = Imag(distance);
    square = Add(Multiply(real, real), Multiply(imag, imag));
  } else {
    square = Multiply(distance, distance);
  }
  return {mean, Reduce(square, Reduction::kSum, dims)};
}

namespace {

// Max and min of booleans are or and and.
Value ReduceExtreme(Value x, Reduction kind, const std::vector<int64_t>& dims) {
  if (x.dtype() == DType::kPred) kind = kind == Reduction::kMax ? Reduction::kOr : Reduction::kAnd;
  return Reduce(x, kind, dims);
}

}  // namespace

Extreme ExtremeOver(Value x, Reduction kind, int dim) {
  const int64_t size = x.dim(dim);
  const DType index_type = size <= std::numeric_limits<int32_t>::max() ? DType::kS32 : DType::kS64;
  Value extreme = ReduceExtreme(x, kind, {dim});
  // Two single-operand reductions: XLA vectorizes them, unlike one over (value, index) pairs.
  Value found = Eq(x, BroadcastReduced(extreme, x.dims(), {dim}));
  if (IsFloat(x.dtype())) found = Or(found, IsNan(x));
  const Type index_shape{index_type, x.dims()};
  Value position = x.builder().Iota(index_shape, dim);
  Value absent = x.builder().ConstantInt(index_shape, std::max<int64_t>(size - 1, 0));
  return {extreme, Reduce(Select(found, position, absent), Reduction::kMin, {dim})};
}

std::vector<int64_t> WrapReducedDims(const std::vector<int64_t>& dims, int64_t rank) {
  std::vector<int64_t> wrapped;
  for (int64_t dim : dims) {
    const int64_t d = c10::maybe_wrap_dim(dim, rank);
    TORCH_CHECK(std::find(wrapped.begin(), wrapped.end(), d) == wrapped.end(), "dim ", d,
                " appears multiple times in the list of dims");
    wrapped.push_back(d);
  }
  return wrapped;
}

std::vector<int64_t> ReducedSizes(const std::vector<int64_t>& sizes,
                                  const std::vector<int64_t>& dims, bool keepdim) {
  const auto rank = static_cast<int64_t>(sizes.size());
  const std::vector<int64_t> wrapped = WrapReducedDims(dims, rank);
  std::vector<int64_t> left;
  for (int64_t dim = 0; dim < rank; ++dim) {
    const bool reduced =
        wrapped.empty() || std::find(wrapped.begin(), wrapped.end(), dim) != wrapped.end();
    if (!reduced) {
      left.push_back(sizes[dim]);
    } else if (keepdim) {
      left.push_back(1);
    }
  }
  return left;
}

namespace {

// A result in the dtype and shape PyTorch announced. Kept dimensions have size one, so that keepdim
// is a reshape whatever was reduced.
Value Finish(Call& c, Value x, int i = 0) {
  const Type& out = c.result(i);
  return Reshape(Convert(x, out.dtype), out.dims);
}

// Dimensions named by the argument `dim` of any kind; none named means all.
std::vector<int64_t> ReducedDims(Call& c, Value x) {
  const ArgumentSpec* dim = c.spec().find("dim");
  if (dim == nullptr || dim->kind == ArgumentSpec::Kind::kNone) return AllDims(x);
  if (dim->constant.isInt()) return {WrapDim(c.integer("dim"), x.rank())};
  return WrapDims(c.integers("dim"), x.rank(), true);
}

std::vector<int64_t> IntList(const ShapeCall& c, std::string_view name) {
  return c.has(name) ? c.argument(name).toIntVector() : std::vector<int64_t>{};
}

// --- sums, products, means

// The sum of a boolean tensor counts at most numel elements, mostly within 32 bits.
Value CountTrue(Value x, const std::vector<int64_t>& dims) {
  const bool narrow = x.numel() <= std::numeric_limits<int32_t>::max();
  return Convert(Reduce(Convert(x, narrow ? DType::kS32 : DType::kS64), Reduction::kSum, dims),
                 DType::kS64);
}

// PyTorch casts to the result's dtype first, and accumulates in a wider one.
Value SumAs(Value x, DType dtype, const std::vector<int64_t>& dims) {
  if (x.dtype() == DType::kPred && dtype == DType::kS64) return CountTrue(x, dims);
  x = Convert(x, dtype);
  if (dtype == DType::kPred) return Reduce(x, Reduction::kOr, dims);
  return Reduce(Convert(x, ComputeType(dtype)), Reduction::kSum, dims);
}

Values Sum(Call& c) {
  Value x = AtLeast1d(c.tensor("self"));
  return {Finish(c, SumAs(x, c.result().dtype, ReducedDims(c, x)))};
}

Values NanSum(Call& c) {
  Value x = AtLeast1d(c.tensor("self"));
  if (IsFloat(x.dtype())) x = Select(IsNan(x), ConstantLike(x, 0), x);
  return {Finish(c, SumAs(x, c.result().dtype, ReducedDims(c, x)))};
}

Values Mean(Call& c) {
  Value x = AtLeast1d(c.tensor("self"));
  const DType dtype = c.result().dtype;
  x = Convert(Convert(x, dtype), ComputeType(dtype));
  return {Finish(c, MeanOver(x, ReducedDims(c, x)))};
}

Values Prod(Call& c) {
  Value x = AtLeast1d(c.tensor("self"));
  const DType dtype = c.result().dtype;
  const std::vector<int64_t> dims = ReducedDims(c, x);
  x = Convert(x, dtype);
  if (dtype == DType::kPred) return {Finish(c, Reduce(x, Reduction::kAnd, dims))};
  return {Finish(c, Reduce(Convert(x, ComputeType(dtype)), Reduction::kProduct, dims))};
}

// Integers and booleans are summed and multiplied in int64.
c10::ScalarType SumType(const ShapeCall& c) {
  if (c.has("dtype")) return c.argument("dtype").toScalarType();
  const c10::ScalarType dtype = c.tensor("self").dtype;
  return c10::isIntegralType(dtype, /*includeBool=*/true) ? c10::ScalarType::Long : dtype;
}

std::vector<ResultSpec> SumShape(const ShapeCall& c) { return {{.dtype = SumType(c)}}; }

std::vector<ResultSpec> NanSumShape(const ShapeCall& c) {
  const ShapeTensor& self = c.tensor("self");
  TORCH_CHECK(!c10::isComplexType(self.dtype), "nansum on CPU does not support complex inputs");
  return {{.dtype = SumType(c),
           .sizes = ReducedSizes(self.sizes, IntList(c, "dim"), c.argument("keepdim").toBool())}};
}

std::vector<ResultSpec> MeanShape(const ShapeCall& c) {
  const bool asked = c.has("dtype");
  const c10::ScalarType dtype = asked ? c.argument("dtype").toScalarType() : c.tensor("self").dtype;
  TORCH_CHECK(c10::isFloatingType(dtype) || c10::isComplexType(dtype),
              "mean(): could not infer output dtype. ", asked ? "Optional" : "Input",
              " dtype must be either a floating point or complex dtype. Got: ", dtype);
  return {{.dtype = dtype}};
}

TPU_RULE({.op = "sum", .lower = &Sum, .shape = &SumShape});
TPU_RULE({.op = "sum.dim_IntList", .lower = &Sum});
TPU_RULE({.op = "nansum", .lower = &NanSum, .shape = &NanSumShape});
TPU_RULE({.op = "mean", .lower = &Mean, .shape = &MeanShape});
TPU_RULE({.op = "mean.dim", .lower = &Mean});
TPU_RULE({.op = "prod", .lower = &Prod, .shape = &SumShape});
TPU_RULE({.op = "prod.dim_int", .lower = &Prod});

// --- extremes

template <Reduction kKind>
Values ExtremeValue(Call& c) {
  Value x = AtLeast1d(c.tensor("self"));
  return {Finish(c, ReduceExtreme(x, kKind, ReducedDims(c, x)))};
}

Values MinAndMax(Call& c) {
  Value x = AtLeast1d(c.tensor("self"));
  const std::vector<int64_t> dims = ReducedDims(c, x);
  return {Finish(c, ReduceExtreme(x, Reduction::kMin, dims), 0),
          Finish(c, ReduceExtreme(x, Reduction::kMax, dims), 1)};
}

template <Reduction kKind>
Values ExtremeAndIndex(Call& c) {
  Value x = AtLeast1d(c.tensor("self"));
  const auto dim = static_cast<int>(WrapDim(c.integer("dim"), x.rank()));
  Extreme extreme = ExtremeOver(x, kKind, dim);
  return {Finish(c, extreme.value, 0), Finish(c, extreme.index, 1)};
}

template <Reduction kKind>
Values ArgExtreme(Call& c) {
  Value x = AtLeast1d(c.tensor("self"));
  const std::optional<int64_t> dim = c.optional_integer("dim");
  if (!dim) x = Reshape(x, {x.numel()});
  return {
      Finish(c, ExtremeOver(x, kKind, dim ? static_cast<int>(WrapDim(*dim, x.rank())) : 0).index)};
}

template <bool kMax>
std::vector<ResultSpec> FullExtremeShape(const ShapeCall& c) {
  const ShapeTensor& self = c.tensor("self");
  const char* name = kMax ? "max" : "min";
  TORCH_CHECK(std::find(self.sizes.begin(), self.sizes.end(), 0) == self.sizes.end(), name,
              "(): Expected reduction dim to be specified for input.numel() == 0. Specify the "
              "reduction dim with the 'dim' argument.");
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isComplexType(self.dtype), '"', name,
                              "_all\" not implemented for '", self.dtype, "'");
  return {{.dtype = self.dtype}};
}

TPU_RULE({.op = "max", .lower = &ExtremeValue<Reduction::kMax>, .shape = &FullExtremeShape<true>});
TPU_RULE({.op = "min", .lower = &ExtremeValue<Reduction::kMin>, .shape = &FullExtremeShape<false>});
TPU_RULE({.op = "amax", .lower = &ExtremeValue<Reduction::kMax>});
TPU_RULE({.op = "amin", .lower = &ExtremeValue<Reduction::kMin>});
TPU_RULE({.op = "aminmax", .lower = &MinAndMax});
TPU_RULE({.op = "max.dim", .lower = &ExtremeAndIndex<Reduction::kMax>});
TPU_RULE({.op = "min.dim", .lower = &ExtremeAndIndex<Reduction::kMin>});
TPU_RULE({.op = "argmax", .lower = &ArgExtreme<Reduction::kMax>});
TPU_RULE({.op = "argmin", .lower = &ArgExtreme<Reduction::kMin>});

// --- logic

template <Reduction kKind>
Values Logic(Call& c) {
  Value x = Convert(AtLeast1d(c.tensor("self")), DType::kPred);
  return {Finish(c, Reduce(x, kKind, ReducedDims(c, x)))};
}

// Only here does an empty list of dimensions reduce nothing.
template <Reduction kKind>
Values LogicDims(Call& c) {
  if (c.optional_integers("dim") != std::vector<int64_t>{}) return Logic<kKind>(c);
  return {Finish(c, Convert(c.tensor("self"), DType::kPred))};
}

TPU_RULE({.op = "any", .lower = &Logic<Reduction::kOr>, .any_out_dtype = true});
TPU_RULE({.op = "any.dim", .lower = &Logic<Reduction::kOr>, .any_out_dtype = true});
TPU_RULE({.op = "any.dims", .lower = &LogicDims<Reduction::kOr>, .any_out_dtype = true});
TPU_RULE({.op = "all", .lower = &Logic<Reduction::kAnd>, .any_out_dtype = true});
TPU_RULE({.op = "all.dim", .lower = &Logic<Reduction::kAnd>, .any_out_dtype = true});
TPU_RULE({.op = "all.dims", .lower = &LogicDims<Reduction::kAnd>, .any_out_dtype = true});

Values CountNonzero(Call& c) {
  Value x = Convert(AtLeast1d(c.tensor("self")), DType::kPred);
  return {Finish(c, CountTrue(x, ReducedDims(c, x)))};
}

std::vector<ResultSpec> CountNonzeroShape(const ShapeCall& c) {
  return {{.dtype = c10::ScalarType::Long,
           .sizes = ReducedSizes(c.tensor("self").sizes, IntList(c, "dim"), false)}};
}

TPU_RULE({.op = "count_nonzero.dim_IntList", .lower = &CountNonzero, .shape = &CountNonzeroShape});

// --- variance

struct VarianceAndMean {
  Value variance, mean;
};

VarianceAndMean Variance(Call& c) {
  Value x = AtLeast1d(c.tensor("self"));
  x = Convert(x, ComputeType(x.dtype()));
  const std::vector<int64_t> dims = ReducedDims(c, x);
  Moments moments = MomentsOver(x, dims);
  const DType real = moments.squares.dtype();
  const auto count = static_cast<double>(CountOver(x.dims(), dims));
  Value freedom;
  if (!c.has("correction")) {
    freedom = Scalar(c.builder(), real, std::max(count - 1, 0.0));
  } else if (const std::optional<double> correction = c.known("correction")) {
    freedom = Scalar(c.builder(), real, std::max(count - *correction, 0.0));
  } else {
    Value rest = Subtract(Scalar(c.builder(), real, count), c.scalar("correction", real));
    freedom = Maximum(rest, ConstantLike(rest, 0));
  }
  return {Divide(moments.squares, BroadcastTo(freedom, moments.squares.dims())), moments.mean};
}

template <bool kRoot, bool kWithMean>
Values Spread(Call& c) {
  VarianceAndMean result = Variance(c);
  Values out = {Finish(c, kRoot ? Sqrt(result.variance) : result.variance, 0)};
  if (kWithMean) out.push_back(Finish(c, result.mean, 1));
  return out;
}

template <bool kRoot, bool kWithMean>
std::vector<ResultSpec> SpreadShape(const ShapeCall& c) {
  const ShapeTensor& self = c.tensor("self");
  const char* name = !kWithMean ? "std and var" : kRoot ? "std_mean" : "var_mean";
  TORCH_CHECK(c10::isFloatingType(self.dtype) || c10::isComplexType(self.dtype), name,
              " only support floating point and complex dtypes");
  const std::vector<int64_t> sizes =
      ReducedSizes(self.sizes, IntList(c, "dim"), c.argument("keepdim").toBool());
  std::vector<ResultSpec> out = {{.dtype = c10::toRealValueType(self.dtype), .sizes = sizes}};
  if (kWithMean) out.push_back({.dtype = self.dtype, .sizes = sizes});
  return out;
}

TPU_RULE({.op = "var.correction",
          .lower = &Spread<false, false>,
          .shape = &SpreadShape<false, false>,
          .specialize = {{"correction", {0.0, 1.0}}}});
TPU_RULE({.op = "std.correction",
          .lower = &Spread<true, false>,
          .shape = &SpreadShape<true, false>,
          .specialize = {{"correction", {0.0, 1.0}}}});
TPU_RULE({.op = "var_mean.correction",
          .lower = &Spread<false, true>,
          .shape = &SpreadShape<false, true>,
          .specialize = {{"correction", {0.0, 1.0}}}});
TPU_RULE({.op = "std_mean.correction",
          .lower = &Spread<true, true>,
          .shape = &SpreadShape<true, true>,
          .specialize = {{"correction", {0.0, 1.0}}}});

// --- norms

Value SquaredMagnitude(Value x) {
  if (!IsComplex(x.dtype())) return Multiply(x, x);
  Value real = Real(x), imag = Imag(x);
  return Add(Multiply(real, real), Multiply(imag, imag));
}

Value VectorNorm(Value x, double p, const std::vector<int64_t>& dims) {
  if (p == 2) return Sqrt(Reduce(SquaredMagnitude(x), Reduction::kSum, dims));
  Value magnitude = Abs(x);
  if (p == 0) {
    Value nonzero = Ne(magnitude, ConstantLike(magnitude, 0));
    return Reduce(Convert(nonzero, magnitude.dtype()), Reduction::kSum, dims);
  }
  if (p == 1) return Reduce(magnitude, Reduction::kSum, dims);
  if (std::isinf(p)) return Reduce(magnitude, p > 0 ? Reduction::kMax : Reduction::kMin, dims);
  Value sum = Reduce(Power(magnitude, ConstantLike(magnitude, p)), Reduction::kSum, dims);
  return Power(sum, ConstantLike(sum, 1 / p));
}

Values Norm(Call& c, double p) {
  Value x = AtLeast1d(c.tensor("self"));
  if (c.has("dtype")) x = Convert(x, *c.dtype("dtype"));
  x = Convert(x, ComputeType(x.dtype()));
  return {Finish(c, VectorNorm(x, p, ReducedDims(c, x)))};
}

Values LinalgVectorNorm(Call& c) { return Norm(c, c.number("ord")); }
Values LegacyNorm(Call& c) { return Norm(c, c.optional_number("p").value_or(2)); }

TPU_RULE({.op = "linalg_vector_norm", .lower = &LinalgVectorNorm, .structural = {"ord"}});
TPU_RULE({.op = "norm.ScalarOpt_dim", .lower = &LegacyNorm, .structural = {"p"}});
TPU_RULE({.op = "norm.ScalarOpt_dim_dtype", .lower = &LegacyNorm, .structural = {"p"}});

// --- logsumexp

Values LogSumExp(Call& c) {
  Value x = AtLeast1d(c.tensor("self"));
  const std::vector<int64_t> dims = ReducedDims(c, x);
  x = Convert(x, ComputeType(c.result().dtype));
  Value real = IsComplex(x.dtype()) ? Real(x) : x;
  Value largest = Reduce(real, Reduction::kMax, dims);
  // Infinite maxima are not subtracted: inf - inf is NaN.
  largest = Select(IsInf(largest), ConstantLike(largest, 0), largest);
  largest = Convert(largest, x.dtype());
  Value shifted = Subtract(x, BroadcastReduced(largest, x.dims(), dims));
  return {Finish(c, Add(Log(Reduce(Exp(shifted), Reduction::kSum, dims)), largest))};
}

std::vector<ResultSpec> LogSumExpShape(const ShapeCall& c) {
  const ShapeTensor& self = c.tensor("self");
  return {{.dtype = c10::isIntegralType(self.dtype, /*includeBool=*/true)
                        ? c10::get_default_dtype_as_scalartype()
                        : self.dtype,
           .sizes = ReducedSizes(self.sizes, IntList(c, "dim"), c.argument("keepdim").toBool())}};
}

TPU_RULE({.op = "logsumexp", .lower = &LogSumExp, .shape = &LogSumExpShape});

// --- trace

Values Trace(Call& c) {
  Value x = c.tensor("self");
  const Type positions{DType::kS32, x.dims()};
  Value diagonal = Eq(c.builder().Iota(positions, 0), c.builder().Iota(positions, 1));
  return {Finish(c, SumAs(Select(diagonal, x, ConstantLike(x, 0)), c.result().dtype, {0, 1}))};
}

std::vector<ResultSpec> TraceShape(const ShapeCall& c) {
  const ShapeTensor& self = c.tensor("self");
  TORCH_CHECK(self.sizes.size() == 2, "trace: expected a matrix, but got tensor with dim ",
              self.sizes.size());
  TORCH_CHECK_NOT_IMPLEMENTED(self.dtype != c10::ScalarType::Bool,
                              "\"trace\" not implemented for 'Bool'");
  return {{.dtype = c10::isIntegralType(self.dtype, /*includeBool=*/false) ? c10::ScalarType::Long
                                                                           : self.dtype}};
}

TPU_RULE({.op = "trace", .lower = &Trace, .shape = &TraceShape});

}  // namespace
}  // namespace torch_tpu::lowering
