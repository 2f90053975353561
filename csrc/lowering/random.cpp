#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

#include "lowering/elementwise.h"
#include "lowering/indices.h"
#include "lowering/philox.h"
#include "lowering/reduction.h"
#include "lowering/rule.h"
#include "lowering/scan.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT
using c10::ScalarType;

double Number(const ShapeCall& s, std::string_view name) {
  return s.argument(name).toScalar().toDouble();
}

ScalarType SelfType(const ShapeCall& s) { return s.tensor("self").dtype; }

bool IsFloating(ScalarType type) { return c10::isFloatingType(type); }

// A parameter of a distribution, as `dims` numbers.
Value Parameter(const Call& c, std::string_view name, DType compute, const Dims& dims) {
  return BroadcastTo(c.scalar(name, compute), dims);
}

// --- continuous distributions

// One real draw for each element, or one for each part of a complex element.
Values RealOrComplex(Call& c, const std::function<Value(const Dims&, DType, Stream)>& draw) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  if (!IsComplex(out.dtype)) {
    return {Convert(draw(out.dims, out.dtype, Stream::kGenerator), out.dtype)};
  }
  const DType real = RealOf(out.dtype);
  // complex128 wants four words an element, more than the generator moves on by.
  const Stream stream = real == DType::kF64 ? Stream::kCall : Stream::kGenerator;
  Dims pairs = out.dims;
  pairs.insert(pairs.begin(), 2);
  Value parts = draw(pairs, real, stream);
  return {Complex(Reshape(SliceDim(parts, 0, 0, 1), out.dims),
                  Reshape(SliceDim(parts, 0, 1, 2), out.dims))};
}

Values Uniform(Call& c) {
  const bool unit = c.is("from", 0) && c.is("to", 1);
  return RealOrComplex(c, [&](const Dims& dims, DType dtype, Stream stream) {
    Value x = RandomUniform(c, dims, dtype, stream);
    if (unit) return x;
    Value from = c.scalar("from", x.dtype()), to = c.scalar("to", x.dtype());
    c.Check(Le(from, to), "uniform_ expects to return a [from, to) range, but found from > to",
            Call::ErrorKind::kRuntime);
    return Add(Multiply(x, BroadcastTo(Subtract(to, from), dims)), BroadcastTo(from, dims));
  });
}

std::vector<ResultSpec> UniformShape(const ShapeCall& s) {
  TORCH_CHECK_NOT_IMPLEMENTED(IsFloating(SelfType(s)) || c10::isComplexType(SelfType(s)),
                              "\"check_uniform_bounds\" not implemented for '", SelfType(s), "'");
  const double from = Number(s, "from"), to = Number(s, "to");
  TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from,
              " > to=", to);
  return SelfShape(s);
}
TPU_RULE({.op = "uniform",
          .lower = &Uniform,
          .shape = &UniformShape,
          .specialize = {{"from", {0}}, {"to", {1}}},
          .random = true,
          .draws_per_element = 2});

Values Normal(Call& c) {
  return RealOrComplex(c, [&](const Dims& dims, DType dtype, Stream stream) {
    Value x = RandomNormal(c, dims, dtype, stream);
    // A complex number has the variance that is asked for, its parts half of it each.
    if (IsComplex(c.result().dtype)) x = Multiply(x, ConstantLike(x, std::numbers::sqrt2 / 2));
    if (!c.is("std", 1)) {
      Value std = c.scalar("std", x.dtype());
      c.Check(Ge(std, ConstantLike(std, 0)), "normal expects std >= 0.0",
              Call::ErrorKind::kRuntime);
      x = Multiply(x, BroadcastTo(std, dims));
    }
    return c.is("mean", 0) ? x : Add(x, Parameter(c, "mean", x.dtype(), dims));
  });
}

void CheckStd(double std) {
  TORCH_CHECK(std >= 0, "normal expects std >= 0.0, but found std ", std);
}

void CheckNormalType(ScalarType type) {
  TORCH_CHECK_NOT_IMPLEMENTED(IsFloating(type) || c10::isComplexType(type),
                              "\"normal_kernel_cpu\" not implemented for '", type, "'");
}

std::vector<ResultSpec> NormalShape(const ShapeCall& s) {
  CheckNormalType(SelfType(s));
  CheckStd(Number(s, "std"));
  return SelfShape(s);
}
TPU_RULE({.op = "normal_functional",
          .lower = &Normal,
          .shape = &NormalShape,
          .specialize = {{"mean", {0}}, {"std", {1}}},
          .random = true,
          .draws_per_element = 2});

// Mean and standard deviation, each a tensor or a number.
Values NormalOf(Call& c) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  Value x = RandomNormal(c, out.dims, out.dtype);
  Value std = RawOperand(c, "std", x.dtype());
  c.Check(Ge(std, ConstantLike(std, 0)), "normal expects all elements of std >= 0.0",
          Call::ErrorKind::kRuntime);
  Value mean = RawOperand(c, "mean", x.dtype());
  return {Convert(Add(Multiply(x, BroadcastTo(std, out.dims)), BroadcastTo(mean, out.dims)),
                  out.dtype)};
}

std::vector<ResultSpec> NormalTensorFloatShape(const ShapeCall& s) {
  const ShapeTensor& mean = s.tensor("mean");
  CheckNormalType(mean.dtype);
  CheckStd(Number(s, "std"));
  return {{.dtype = mean.dtype, .sizes = mean.sizes}};
}
std::vector<ResultSpec> NormalFloatTensorShape(const ShapeCall& s) {
  const ShapeTensor& std = s.tensor("std");
  CheckNormalType(std.dtype);
  return {{.dtype = std.dtype, .sizes = std.sizes}};
}
std::vector<ResultSpec> NormalTensorTensorShape(const ShapeCall& s) {
  CheckNormalType(s.tensor("mean").dtype);
  ResultSpec result = ElementwiseResult(s, {"mean", "std"}, s.tensor("mean").dtype);
  result.strides.clear();
  return {result};
}
TPU_RULE({.op = "normal.Tensor_float",
          .lower = &NormalOf,
          .shape = &NormalTensorFloatShape,
          .random = true,
          .draws_per_element = 2});
TPU_RULE({.op = "normal.float_Tensor",
          .lower = &NormalOf,
          .shape = &NormalFloatTensorShape,
          .random = true,
          .draws_per_element = 2});
TPU_RULE({.op = "normal.Tensor_Tensor",
          .lower = &NormalOf,
          .shape = &NormalTensorTensorShape,
          .random = true,
          .draws_per_element = 2});

// The parameter `name` of a distribution must be positive.
void CheckPositive(Call& c, std::string_view name, DType compute, const char* message) {
  Value parameter = c.scalar(name, compute);
  c.Check(Gt(parameter, ConstantLike(parameter, 0)), message, Call::ErrorKind::kRuntime);
}

Values Exponential(Call& c) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  Value x = RandomExponential(c, out.dims, out.dtype);
  if (!c.is("lambd", 1)) {
    CheckPositive(c, "lambd", x.dtype(), "exponential_ expects lambda > 0.0");
    x = Divide(x, Parameter(c, "lambd", x.dtype(), out.dims));
  }
  return {Convert(x, out.dtype)};
}

std::vector<ResultSpec> ExponentialShape(const ShapeCall& s) {
  TORCH_CHECK(IsFloating(SelfType(s)),
              "Exponential distribution is a continuous probability distribution. dtype must be a "
              "floating point but you specified ",
              SelfType(s));
  const double lambda = Number(s, "lambd");
  TORCH_CHECK(lambda > 0, "exponential_ expects lambda > 0.0, but found lambda=", lambda);
  return SelfShape(s);
}
TPU_RULE({.op = "exponential",
          .lower = &Exponential,
          .shape = &ExponentialShape,
          .specialize = {{"lambd", {1}}},
          .random = true,
          .draws_per_element = 2});

Values LogNormal(Call& c) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  Value x = RandomNormal(c, out.dims, out.dtype);
  CheckPositive(c, "std", x.dtype(), "log_normal_ expects std > 0.0");
  x = Multiply(x, Parameter(c, "std", x.dtype(), out.dims));
  return {Convert(Exp(Add(x, Parameter(c, "mean", x.dtype(), out.dims))), out.dtype)};
}

std::vector<ResultSpec> LogNormalShape(const ShapeCall& s) {
  TORCH_CHECK_NOT_IMPLEMENTED(IsFloating(SelfType(s)), "\"log_normal_cpu\" not implemented for '",
                              SelfType(s), "'");
  const double std = Number(s, "std");
  TORCH_CHECK(std > 0, "log_normal_ expects std > 0.0, but found std=", std);
  return SelfShape(s);
}
TPU_RULE({.op = "log_normal",
          .lower = &LogNormal,
          .shape = &LogNormalShape,
          .random = true,
          .draws_per_element = 2});

Values Cauchy(Call& c) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  Value u = RandomOpenUniform(c, out.dims, out.dtype);
  CheckPositive(c, "sigma", u.dtype(), "cauchy_ expects sigma > 0.0");
  Value angle = Multiply(Subtract(u, ConstantLike(u, 0.5)), ConstantLike(u, std::numbers::pi));
  Value x =
      Multiply(Divide(Sine(angle), Cosine(angle)), Parameter(c, "sigma", u.dtype(), out.dims));
  return {Convert(Add(x, Parameter(c, "median", u.dtype(), out.dims)), out.dtype)};
}

std::vector<ResultSpec> CauchyShape(const ShapeCall& s) {
  TORCH_CHECK(IsFloating(SelfType(s)),
              "Cauchy distribution is a continuous probability distribution. dtype must be a "
              "floating point but you specified ",
              SelfType(s));
  const double sigma = Number(s, "sigma");
  TORCH_CHECK(sigma > 0, "cauchy_ expects sigma > 0.0, but found sigma=", sigma);
  return SelfShape(s);
}
TPU_RULE({.op = "cauchy",
          .lower = &Cauchy,
          .shape = &CauchyShape,
          .random = true,
          .draws_per_element = 2});

// --- discrete distributions

Values Geometric(Call& c) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  Value u = RandomOpenUniform(c, out.dims, out.dtype == DType::kF64 ? DType::kF64 : DType::kF32);
  Value x = Divide(Log(u), ConstantLike(u, std::log1p(-c.number("p"))));
  return {Convert(Ceil(x), out.dtype)};
}

std::vector<ResultSpec> GeometricShape(const ShapeCall& s) {
  TORCH_CHECK_NOT_IMPLEMENTED(SelfType(s) != ScalarType::Bool && !c10::isComplexType(SelfType(s)),
                              "\"geometric_cpu\" not implemented for '", SelfType(s), "'");
  const double p = Number(s, "p");
  TORCH_CHECK(0 < p && p < 1, "geometric_ expects p to be in (0, 1), but got p=", p);
  return SelfShape(s);
}
TPU_RULE({.op = "geometric",
          .lower = &Geometric,
          .shape = &GeometricShape,
          .structural = {"p"},
          .random = true,
          .draws_per_element = 2});

void CheckProbability(double p) {
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
}

// i1: true with probability p.
Value Trials(const Call& c, const Dims& dims, Value p) {
  Value u = RandomUniform(c, dims, p.dtype());
  return Lt(u, BroadcastTo(p, dims));
}

Values BernoulliNumber(Call& c) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  Value p = stablehlo::Scalar(c.builder(), DType::kF32, c.number("p"));
  return {Convert(Trials(c, out.dims, p), out.dtype)};
}

void CheckBernoulliType(ScalarType type, const char* name) {
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isComplexType(type), "\"", name, "\" not implemented for '",
                              type, "'");
}

// PyTorch's functional form gives contiguous results.
std::vector<ResultSpec> BernoulliNumberShape(const ShapeCall& s) {
  CheckBernoulliType(SelfType(s), "bernoulli_scalar_cpu_");
  CheckProbability(Number(s, "p"));
  return {{.dtype = SelfType(s), .sizes = s.tensor("self").sizes}};
}
TPU_RULE({.op = "bernoulli.p",
          .lower = &BernoulliNumber,
          .shape = &BernoulliNumberShape,
          .structural = {"p"},
          .random = true,
          .draws_per_element = 2});

Values BernoulliTensor(Call& c, Value p) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  p = Convert(p, p.dtype() == DType::kF64 ? DType::kF64 : DType::kF32);
  c.Check(And(Ge(p, ConstantLike(p, 0)), Le(p, ConstantLike(p, 1))),
          "Expected p_in >= 0 && p_in <= 1 to be true, but got false.", Call::ErrorKind::kRuntime);
  return {Convert(Trials(c, out.dims, p), out.dtype)};
}

Values BernoulliOfTensor(Call& c) { return BernoulliTensor(c, c.tensor("p")); }
Values BernoulliOfSelf(Call& c) { return BernoulliTensor(c, c.tensor("self")); }

void CheckProbabilityTensor(const ShapeTensor& p) {
  TORCH_CHECK_NOT_IMPLEMENTED(IsFloating(p.dtype),
                              "\"bernoulli_tensor_cpu_p_\" not implemented for '", p.dtype, "'");
}

std::vector<ResultSpec> BernoulliOfTensorShape(const ShapeCall& s) {
  CheckBernoulliType(SelfType(s), "bernoulli_tensor_cpu_self_");
  CheckProbabilityTensor(s.tensor("p"));
  const auto& sizes = s.tensor("self").sizes;
  const auto& from = s.tensor("p").sizes;
  for (size_t i = 0; i < from.size(); ++i) {
    const bool exists = i < sizes.size();
    const int64_t have = from[from.size() - 1 - i];
    const int64_t want = exists ? sizes[sizes.size() - 1 - i] : 0;
    TORCH_CHECK(exists, "The number of sizes provided (", sizes.size(),
                ") must be greater or equal to the number of dimensions in the tensor (",
                from.size(), ")");
    TORCH_CHECK(have == want || have == 1, "The expanded size of the tensor (", want,
                ") must match the existing size (", have, ") at non-singleton dimension ",
                sizes.size() - 1 - i, ".  Target sizes: ", c10::IntArrayRef(sizes),
                ".  Tensor sizes: ", c10::IntArrayRef(from));
  }
  return SelfShape(s);
}
TPU_RULE({.op = "bernoulli.Tensor",
          .lower = &BernoulliOfTensor,
          .shape = &BernoulliOfTensorShape,
          .random = true,
          .draws_per_element = 2});

std::vector<ResultSpec> BernoulliOfSelfShape(const ShapeCall& s) {
  CheckProbabilityTensor(s.tensor("self"));
  return {{.dtype = SelfType(s), .sizes = s.tensor("self").sizes}};
}
TPU_RULE({.op = "bernoulli",
          .lower = &BernoulliOfSelf,
          .shape = &BernoulliOfSelfShape,
          .random = true,
          .draws_per_element = 2});

// --- integers

// The largest integer up to which all integers have a place in `type`.
int64_t LargestExact(ScalarType type) {
  switch (type) {
    case ScalarType::Bool:
      return 1;
    case ScalarType::Byte:
      return 255;
    case ScalarType::Char:
      return 127;
    case ScalarType::Short:
      return 32767;
    case ScalarType::UInt16:
      return 65535;
    case ScalarType::Int:
      return std::numeric_limits<int32_t>::max();
    case ScalarType::UInt32:
      return std::numeric_limits<uint32_t>::max();
    case ScalarType::Half:
      return int64_t{1} << 11;
    case ScalarType::BFloat16:
      return int64_t{1} << 8;
    case ScalarType::Float:
      return int64_t{1} << 24;
    case ScalarType::Double:
      return int64_t{1} << 53;
    default:
      return std::numeric_limits<int64_t>::max();
  }
}

// `count` values from `from` on; 0 stands for 2^64.
Values RandomIntegers(Call& c, int64_t from, uint64_t count) {
  Builder& b = c.builder();
  const Type& out = c.result();
  const int64_t n = out.numel();
  if (n == 0) return {Zeros(b, out)};
  const bool one_word = count != 0 && count <= uint64_t{1} << 32;
  Value x;
  if (one_word) {
    x = RandomWords(c.seed(), c.offset(), n, Stream::kGenerator);
    if (count < uint64_t{1} << 32) {
      x = Remainder(x, b.ConstantInt(x.type(), static_cast<int64_t>(count)));
    }
  } else {
    Value words = RandomWords(c.seed(), c.offset(), 2 * n, Stream::kGenerator);
    Value high = Convert(SliceDim(words, 0, 0, n), DType::kU64);
    Value low = Convert(SliceDim(words, 0, n, 2 * n), DType::kU64);
    x = Or(ShiftLeft(high, ConstantLike(high, 32)), low);
    if (count != 0) x = Remainder(x, b.ConstantInt(x.type(), static_cast<int64_t>(count)));
  }
  // 32-bit where the values fit; otherwise 64-bit, where the addition wraps around as it should.
  constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
  const bool narrow =
      one_word && from >= 0 && from <= kInt32Max && static_cast<int64_t>(count) <= kInt32Max - from;
  x = narrow ? Convert(x, DType::kS32)
             : (one_word ? Convert(x, DType::kS64) : BitcastConvert(x, DType::kS64));
  if (from != 0) x = Add(x, b.ConstantInt(x.type(), from));
  return {Reshape(Convert(x, out.dtype), out.dims)};
}

Values Random(Call& c) {
  const int64_t largest = LargestExact(ToScalarType(c.result().dtype));
  return RandomIntegers(c, 0, static_cast<uint64_t>(largest) + 1);
}

Values RandomTo(Call& c) { return RandomIntegers(c, 0, static_cast<uint64_t>(c.integer("to"))); }

Values RandomFrom(Call& c) {
  const int64_t from = c.integer("from");
  const auto to = c.optional_integer("to");
  if (to) return RandomIntegers(c, from, static_cast<uint64_t>(*to) - static_cast<uint64_t>(from));
  const int64_t largest = LargestExact(ToScalarType(c.result().dtype));
  return RandomIntegers(c, from, static_cast<uint64_t>(largest) - static_cast<uint64_t>(from) + 1);
}

const char* CppName(ScalarType type) {
  switch (type) {
    case ScalarType::Bool:
      return "bool";
    case ScalarType::Byte:
      return "unsigned char";
    case ScalarType::Char:
      return "signed char";
    case ScalarType::Short:
      return "short";
    case ScalarType::Int:
      return "int";
    case ScalarType::Half:
      return "c10::Half";
    default:
      return c10::toString(type);
  }
}

// Integers (and float16, whose range they can leave) must hold what may be drawn.
void CheckBound(int64_t bound, const char* name, ScalarType type) {
  if (type == ScalarType::Long || type == ScalarType::UInt64) return;
  double low = -std::numeric_limits<double>::infinity(), high = -low;
  if (c10::isIntegralType(type, true)) {
    high = static_cast<double>(LargestExact(type));
    const bool is_signed =
        type == ScalarType::Char || type == ScalarType::Short || type == ScalarType::Int;
    low = is_signed ? -high - 1 : 0;
  } else if (type == ScalarType::Half) {
    high = 65504;
    low = -high;
  }
  const double value = static_cast<double>(bound);
  TORCH_CHECK(low <= value && value <= high, name, " is out of bounds for ", CppName(type));
}

void CheckRandomType(ScalarType type) {
  TORCH_CHECK(!c10::isComplexType(type),
              "check_random_bounds handles only integral, floating-point and boolean types");
}

std::vector<ResultSpec> CheckedRandom(const ShapeCall& s, int64_t from, std::optional<int64_t> to) {
  const ScalarType type = SelfType(s);
  CheckRandomType(type);
  CheckBound(from, "from", type);
  if (to) {
    TORCH_CHECK(from < *to, "random_ expects 'from' to be less than 'to', but got from=", from,
                " >= to=", *to);
    CheckBound(*to - 1, "to - 1", type);
  }
  return SelfShape(s);
}

std::vector<ResultSpec> RandomShape(const ShapeCall& s) {
  CheckRandomType(SelfType(s));
  return SelfShape(s);
}
std::vector<ResultSpec> RandomToShape(const ShapeCall& s) {
  return CheckedRandom(s, 0, s.argument("to").toInt());
}
std::vector<ResultSpec> RandomFromShape(const ShapeCall& s) {
  const c10::IValue& to = s.argument("to");
  return CheckedRandom(s, s.argument("from").toInt(),
                       to.isNone() ? std::nullopt : std::optional<int64_t>(to.toInt()));
}
TPU_RULE({.op = "random",
          .lower = &Random,
          .shape = &RandomShape,
          .random = true,
          .draws_per_element = 2});
TPU_RULE({.op = "random.to",
          .lower = &RandomTo,
          .shape = &RandomToShape,
          .random = true,
          .draws_per_element = 2});
TPU_RULE({.op = "random.from",
          .lower = &RandomFrom,
          .shape = &RandomFromShape,
          .random = true,
          .draws_per_element = 2});

// --- choices

// Positions sorted by 64-bit random keys.
Values Randperm(Call& c) {
  const Type& out = c.result();
  const int64_t n = out.numel();
  if (n == 0) return {Zeros(c.builder(), out)};
  Value words = RandomWords(c.seed(), c.offset(), 2 * n, Stream::kGenerator);
  const Values sorted =
      Sort({SliceDim(words, 0, 0, n), SliceDim(words, 0, n, 2 * n), Positions(c.builder(), {n}, 0)},
           0, /*stable=*/true, [](const Values& v) -> Values {
             return {Or(Lt(v[0], v[1]), And(Eq(v[0], v[1]), Lt(v[2], v[3])))};
           });
  return {Convert(sorted[2], out.dtype)};
}

std::vector<ResultSpec> RandpermShape(const ShapeCall& s) {
  const int64_t n = s.argument("n").toInt();
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  const ScalarType type = s.has("out") ? s.tensor("out").dtype : ScalarType::Long;
  if (IsFloating(type)) {
    const int64_t limit = LargestExact(type) + 1;
    TORCH_CHECK(n <= limit, "n cannot be greater than ", limit, " for ", type, " type.");
  }
  return {{.dtype = type, .sizes = {n}}};
}
TPU_RULE({.op = "randperm.generator_out",
          .lower = &Randperm,
          .shape = &RandpermShape,
          .random = true,
          .draws_per_element = 2,
          .any_out_dtype = true});

// Rows of `samples` categories by inversion of the cumulative distribution.
Value SampleWithReplacement(Call& c, Value p, int64_t samples) {
  Builder& b = c.builder();
  const int64_t rows = p.dim(0), categories = p.dim(1);
  Value cumulative = InclusiveScan(c, p, Reduction::kSum, 1);
  Value total = Reshape(SliceDim(cumulative, 1, categories - 1, categories), {rows});
  Value u = RandomUniform(c, {rows, samples}, p.dtype(), Stream::kCall);
  u = Multiply(u, BroadcastInDim(total, {rows, samples}, {0}));

  // The first category with a probability whose cumulative one is above u, else (by rounding) the
  // last one with a probability.
  Value possible = Gt(p, ConstantLike(p, 0));
  Value position = Positions(b, p.dims(), 1);
  Value last = Reduce(Select(possible, position, ConstantLike(position, 0)), Reduction::kMax, {1});
  const Dims cube = {rows, samples, categories};
  Value above = Gt(BroadcastInDim(cumulative, cube, {0, 2}), BroadcastInDim(u, cube, {0, 1}));
  above = And(above, BroadcastInDim(possible, cube, {0, 2}));
  Value candidates =
      Select(above, BroadcastInDim(position, cube, {0, 2}), BroadcastInDim(last, cube, {0}));
  return Reduce(candidates, Reduction::kMin, {2});
}

Values Multinomial(Call& c) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  Value p = c.tensor("self");
  p = Convert(p, ComputeType(p.dtype()));
  const int64_t categories = p.dim(-1), rows = p.numel() / categories;
  const int64_t samples = c.integer("num_samples");
  p = Reshape(p, {rows, categories});
  Value zero = ConstantLike(p, 0);
  c.Check(And(IsFinite(p), Ge(p, zero)),
          "probability tensor contains either `inf`, `nan` or element < 0",
          Call::ErrorKind::kRuntime);
  c.Check(Reduce(Gt(p, zero), Reduction::kOr, {1}),
          "invalid multinomial distribution (sum of probabilities <= 0)",
          Call::ErrorKind::kRuntime);
  Value chosen;
  if (c.boolean("replacement") && samples > 1) {
    chosen = SampleWithReplacement(c, p, samples);
  } else {
    // A race of exponential clocks: the first to ring are a sample without replacement.
    Value speed = Divide(p, RandomExponential(c, p.dims(), p.dtype(), Stream::kCall));
    if (samples == 1) {
      chosen = ExtremeOver(speed, Reduction::kMax, 1).index;
    } else {
      const Values sorted = Sort({speed, Positions(c.builder(), p.dims(), 1)}, 1, /*stable=*/true,
                                 [](const Values& v) -> Values { return {Gt(v[0], v[1])}; });
      chosen = SliceDim(sorted[1], 1, 0, samples);
    }
  }
  return {Reshape(Convert(chosen, out.dtype), out.dims)};
}

std::vector<ResultSpec> MultinomialShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const int64_t samples = s.argument("num_samples").toInt();
  TORCH_CHECK(self.sizes.size() == 1 || self.sizes.size() == 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(IsFloating(self.dtype),
              "multinomial only supports floating-point dtypes for input, got: ", self.dtype);
  TORCH_CHECK(samples > 0, "cannot sample n_sample <= 0 samples");
  const int64_t categories = self.sizes.back();
  TORCH_CHECK(s.argument("replacement").toBool() || samples <= categories,
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  TORCH_CHECK(categories <= int64_t{1} << 24, "number of categories cannot exceed 2^24");
  ResultSpec result{.dtype = ScalarType::Long, .sizes = self.sizes};
  result.sizes.back() = samples;
  return {result};
}
TPU_RULE({.op = "multinomial",
          .lower = &Multinomial,
          .shape = &MultinomialShape,
          .random = true,
          .draws_per_element = 2});

// --- dropout

bool DropoutDraws(const CallSpec& spec) {
  const ArgumentSpec& train = spec.argument("train");
  if (train.kind == ArgumentSpec::Kind::kConstant && !train.constant.toBool()) return false;
  const double p = spec.argument("p").constant.toDouble();
  return p != 0 && p != 1;
}

Values NativeDropout(Call& c) {
  Builder& b = c.builder();
  Value input = c.tensor("input");
  const Type& out = c.result();
  const Type mask_type{DType::kPred, out.dims};
  const bool train = !c.has("train") || c.boolean("train");
  if (!train || out.numel() == 0) return {input, b.ConstantInt(mask_type, 1)};
  const double keep = 1 - c.number("p");
  const DType compute = ComputeType(out.dtype);
  Value mask;
  if (keep == 1) {
    mask = b.ConstantInt(mask_type, 1);
  } else if (keep == 0) {
    mask = b.ConstantInt(mask_type, 0);
  } else {
    mask = Trials(c, out.dims, stablehlo::Scalar(b, DType::kF32, keep));
  }
  // Dropped elements are multiplied by zero, so that their infinities and NaNs show as on CPU.
  Value scale = Select(mask, b.Constant({compute, out.dims}, keep == 0 ? 0 : 1 / keep),
                       b.Constant({compute, out.dims}, 0));
  return {Convert(Multiply(Convert(input, compute), scale), out.dtype), mask};
}

std::vector<ResultSpec> NativeDropoutShape(const ShapeCall& s) {
  const ShapeTensor& input = s.tensor("input");
  const c10::IValue& train = s.argument("train");
  if (train.isNone() || train.toBool()) {
    CheckProbability(1 - Number(s, "p"));
    TORCH_CHECK(IsFloating(input.dtype) || c10::isComplexType(input.dtype),
                "result type Float can't be cast to the desired output type ", input.dtype);
  }
  ResultSpec result = ElementwiseResult(s, {"input"}, input.dtype);
  ResultSpec mask = result;
  mask.dtype = ScalarType::Bool;
  return {result, mask};
}
TPU_RULE({.op = "native_dropout",
          .lower = &NativeDropout,
          .shape = &NativeDropoutShape,
          .structural = {"p"},
          .random = true,
          .draws = &DropoutDraws});

Values NativeDropoutBackward(Call& c) {
  const Type& out = c.result();
  const DType compute = ComputeType(out.dtype);
  Value grad = BroadcastTo(Convert(c.tensor("grad_output"), compute), out.dims);
  Value mask = BroadcastTo(Convert(c.tensor("mask"), compute), out.dims);
  Value scale = BroadcastTo(c.scalar("scale", compute), out.dims);
  return {Convert(Multiply(Multiply(grad, mask), scale), out.dtype)};
}

std::vector<ResultSpec> NativeDropoutBackwardShape(const ShapeCall& s) {
  return {
      ElementwiseResult(s, {"grad_output", "mask"}, FloatingType(s.tensor("grad_output").dtype))};
}
TPU_RULE({.op = "native_dropout_backward",
          .lower = &NativeDropoutBackward,
          .shape = &NativeDropoutBackwardShape});

// --- leaky ReLU with a random slope

// In training each element that is not positive has a slope of its own, kept in `noise` for the
// backward; positive ones have 1. In evaluation all have the mean slope, and `noise` stays as it
// is.
Values RreluWithNoise(Call& c) {
  const Type& out = c.result();
  const DType compute = ComputeType(out.dtype);
  Value x = Convert(c.tensor("self"), compute);
  Value lower = c.scalar("lower", compute), upper = c.scalar("upper", compute);
  Value kept = Gt(x, ConstantLike(x, 0));
  if (!c.boolean("training")) {
    Value mean = Multiply(Add(lower, upper), ConstantLike(lower, 0.5));
    return {Convert(Select(kept, x, Multiply(x, BroadcastTo(mean, out.dims))), out.dtype),
            c.tensor("noise")};
  }
  Value slope = Multiply(RandomUniform(c, out.dims, out.dtype),
                         BroadcastTo(Subtract(upper, lower), out.dims));
  slope = Add(slope, BroadcastTo(lower, out.dims));
  Value noise = Select(kept, ConstantLike(slope, 1), slope);
  Value y = Select(kept, x, Multiply(x, slope));
  return {Convert(y, out.dtype), Convert(noise, c.tensor("noise").dtype())};
}

bool InTraining(const CallSpec& spec) { return spec.argument("training").constant.toBool(); }

void CheckRrelu(const ShapeCall& s) {
  const ShapeTensor &self = s.tensor("self"), &noise = s.tensor("noise");
  TORCH_CHECK(self.sizes == noise.sizes, "noise tensor shape must match self tensor shape. Got ",
              "self.shape = ", c10::IntArrayRef(self.sizes),
              " noise.shape = ", c10::IntArrayRef(noise.sizes));
  TORCH_CHECK_NOT_IMPLEMENTED(IsFloating(self.dtype), "\"rrelu_with_noise_out_cpu\" not ",
                              "implemented for '", self.dtype, "'");
}

std::vector<ResultSpec> RreluShape(const ShapeCall& s) {
  CheckRrelu(s);
  const ShapeTensor& self = s.tensor("self");
  return {{.dtype = self.dtype, .sizes = self.sizes}};
}
std::vector<ResultSpec> RreluFunctionalShape(const ShapeCall& s) {
  std::vector<ResultSpec> results = RreluShape(s);
  const ShapeTensor& noise = s.tensor("noise");
  results.push_back({.dtype = noise.dtype, .sizes = noise.sizes, .strides = noise.strides});
  return results;
}
TPU_RULE({.op = "rrelu_with_noise",
          .lower = &RreluWithNoise,
          .shape = &RreluShape,
          .random = true,
          .draws_per_element = 2,
          .draws = &InTraining,
          .also_writes = {"noise"}});
TPU_RULE({.op = "rrelu_with_noise_functional",
          .lower = &RreluWithNoise,
          .shape = &RreluFunctionalShape,
          .random = true,
          .draws_per_element = 2,
          .draws = &InTraining});

}  // namespace
}  // namespace torch_tpu::lowering
