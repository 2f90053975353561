#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>

#include "lowering/indices.h"
#include "lowering/linspace.h"
#include "lowering/rule.h"

// Tensors that are made from numbers alone. Their sizes follow from the numbers, so these are part
// of the signature.
namespace torch_tpu::lowering {
using namespace stablehlo;  // NOLINT
using c10::ScalarType;

Value Between(Builder& b, DType compute, int64_t n, Value start, Value end) {
  const Type type{compute, {n}};
  start = BroadcastTo(start, type.dims);
  end = BroadcastTo(end, type.dims);
  if (n == 1) return start;
  const bool complex = IsComplex(compute);
  Value i = b.Iota({complex ? RealOf(compute) : compute, {n}}, 0);
  Value steps = ConstantLike(i, static_cast<double>(n - 1));
  Value first_half = Lt(i, ConstantLike(i, static_cast<double>(n / 2)));
  Value step = Divide(Subtract(end, start), Convert(steps, compute));
  Value rising = Add(start, Multiply(step, Convert(i, compute)));
  Value falling = Subtract(end, Multiply(step, Convert(Subtract(steps, i), compute)));
  return Select(first_half, rising, falling);
}

namespace {

c10::Scalar NumberOf(const Call& c, std::string_view name) {
  return c.spec().argument(name).constant.toScalar();
}
c10::Scalar NumberOf(const ShapeCall& s, std::string_view name) {
  return s.argument(name).toScalar();
}

ScalarType OutType(const ShapeCall& s, ScalarType otherwise) {
  return s.has("out") ? s.tensor("out").dtype : otherwise;
}

// --- arange, range

// start + i * step in the dtypes CPU counts in: int64 for integers, float64 for floats.
Values Progression(Call& c) {
  Builder& b = c.builder();
  const Type& out = c.result();
  const int64_t n = out.numel();
  if (n == 0) return {Zeros(b, out)};
  const c10::Scalar start = NumberOf(c, "start"), step = NumberOf(c, "step");
  const double first = start.toDouble(), stride = step.toDouble();
  const double last = first + stride * static_cast<double>(n);
  const bool integers =
      IsInteger(out.dtype) || (first == std::floor(first) && stride == std::floor(stride));
  const double largest = std::max({std::abs(first), std::abs(last), std::abs(stride)});
  DType compute = DType::kF64;
  if (integers && largest <= std::numeric_limits<int32_t>::max()) {
    compute = DType::kS32;  // exact, and cheap everywhere
  } else if (IsInteger(out.dtype)) {
    compute = DType::kS64;
  }
  const Type type{compute, {n}};
  Value x = b.Iota(type, 0);
  if (compute == DType::kF64) {
    x = Add(Multiply(x, b.Constant(type, stride)), b.Constant(type, first));
  } else {
    x = Add(Multiply(x, b.ConstantInt(type, step.toLong())), b.ConstantInt(type, start.toLong()));
  }
  return {Convert(x, out.dtype)};
}

void CheckRange(double start, double end, double step) {
  TORCH_CHECK(step > 0 || step < 0, "step must be nonzero");
  TORCH_CHECK(std::isfinite(start) && std::isfinite(end), "unsupported range: ", start, " -> ",
              end);
  TORCH_CHECK((step > 0 && end >= start) || (step < 0 && end <= start),
              "upper bound and lower bound inconsistent with step sign");
}

int64_t CheckedSize(double size) {
  TORCH_CHECK(size >= 0 && size <= static_cast<double>(std::numeric_limits<int64_t>::max()),
              "invalid size, possible overflow?");
  return static_cast<int64_t>(size);
}

// Integers if all of the numbers are.
ScalarType RangeType(const ShapeCall& s) {
  for (const char* name : {"start", "end", "step"}) {
    if (!NumberOf(s, name).isIntegral(/*includeBool=*/true)) return ScalarType::Float;
  }
  return ScalarType::Long;
}

void CheckRangeType(ScalarType type, const char* name) {
  TORCH_CHECK_NOT_IMPLEMENTED(type != ScalarType::Bool && !c10::isComplexType(type), "\"", name,
                              "\" not implemented for '", type, "'");
}

std::vector<ResultSpec> ArangeShape(const ShapeCall& s) {
  const c10::Scalar start = NumberOf(s, "start"), end = NumberOf(s, "end"),
                    step = NumberOf(s, "step");
  const ScalarType type = OutType(s, RangeType(s));
  CheckRangeType(type, "arange_cpu");
  CheckRange(start.toDouble(), end.toDouble(), step.toDouble());
  double size;
  if (type == ScalarType::Long) {
    const int64_t xstart = start.toLong(), xend = end.toLong(), xstep = step.toLong();
    TORCH_CHECK_VALUE(xstep != 0, "step must be nonzero");
    size = std::ceil(static_cast<double>((xend - xstart + xstep - (xstep > 0 ? 1 : -1)) / xstep));
  } else {
    size = std::ceil((end.toDouble() - start.toDouble()) / step.toDouble());
  }
  return {{.dtype = type, .sizes = {CheckedSize(size)}}};
}
TPU_RULE({.op = "arange.start_out",
          .lower = &Progression,
          .shape = &ArangeShape,
          .structural = {"start", "end", "step"},
          .any_out_dtype = true});

std::vector<ResultSpec> RangeShape(const ShapeCall& s) {
  const double start = NumberOf(s, "start").toDouble(), end = NumberOf(s, "end").toDouble(),
               step = NumberOf(s, "step").toDouble();
  const ScalarType type = OutType(s, ScalarType::Float);
  CheckRangeType(type, "range_cpu");
  CheckRange(start, end, step);
  return {{.dtype = type, .sizes = {CheckedSize(std::floor((end - start) / step) + 1)}}};
}
TPU_RULE({.op = "range.out",
          .lower = &Progression,
          .shape = &RangeShape,
          .structural = {"start", "end", "step"},
          .any_out_dtype = true});

// --- linspace, logspace

Values Linspace(Call& c) {
  Builder& b = c.builder();
  const Type& out = c.result();
  const int64_t n = out.numel();
  if (n == 0) return {Zeros(b, out)};
  const c10::Scalar start = NumberOf(c, "start"), end = NumberOf(c, "end");
  const bool integers = IsInteger(out.dtype);
  const DType compute = integers ? DType::kF64 : ComputeType(out.dtype);
  const auto value = [&](const c10::Scalar& x) {
    if (IsComplex(compute)) {
      const auto z = x.toComplexDouble();
      return b.ConstantComplex({compute, {}}, z.real(), z.imag());
    }
    // Integers start and end at integers.
    return b.Constant({compute, {}}, integers ? std::trunc(x.toDouble()) : x.toDouble());
  };
  return {Convert(Between(b, compute, n, value(start), value(end)), out.dtype)};
}

std::vector<ResultSpec> StepsShape(const ShapeCall& s, const char* name) {
  const int64_t steps = s.argument("steps").toInt();
  TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
  const ScalarType type = OutType(s, ScalarType::Float);
  TORCH_CHECK_NOT_IMPLEMENTED(type != ScalarType::Bool, "\"", name, "\" not implemented for '",
                              type, "'");
  return {{.dtype = type, .sizes = {steps}}};
}
std::vector<ResultSpec> LinspaceShape(const ShapeCall& s) { return StepsShape(s, "linspace_cpu"); }
std::vector<ResultSpec> LogspaceShape(const ShapeCall& s) { return StepsShape(s, "logspace_cpu"); }
TPU_RULE({.op = "linspace.out",
          .lower = &Linspace,
          .shape = &LinspaceShape,
          .structural = {"start", "end"},
          .any_out_dtype = true});

// Computed here rather than on the device, whose powers are not exact where integers are asked for.
Values Logspace(Call& c) {
  Builder& b = c.builder();
  const Type& out = c.result();
  const int64_t n = out.numel();
  if (n == 0) return {Zeros(b, out)};
  const bool integers = IsInteger(out.dtype);
  const auto whole = [&](std::complex<double> x) {
    return integers ? std::complex<double>(std::trunc(x.real())) : x;
  };
  const auto number = [&](std::string_view name) {
    return whole(std::complex<double>(NumberOf(c, name).toComplexDouble()));
  };
  const std::complex<double> start = number("start"), end = number("end");
  const double base = c.number("base");
  const std::complex<double> step =
      n > 1 ? (end - start) / static_cast<double>(n - 1) : std::complex<double>();
  std::vector<double> real(n), imag(n);
  for (int64_t i = 0; i < n; ++i) {
    const std::complex<double> exponent = i < n / 2 || n == 1
                                              ? start + step * static_cast<double>(i)
                                              : end - step * static_cast<double>(n - 1 - i);
    if (IsComplex(out.dtype)) {
      const std::complex<double> x = std::pow(std::complex<double>(base), exponent);
      real[i] = x.real();
      imag[i] = x.imag();
    } else {
      real[i] = whole(std::pow(base, exponent.real())).real();
    }
  }
  if (!IsComplex(out.dtype)) return {b.ConstantFloats(out, real)};
  const Type part{RealOf(out.dtype), out.dims};
  return {Complex(b.ConstantFloats(part, real), b.ConstantFloats(part, imag))};
}
TPU_RULE({.op = "logspace.out",
          .lower = &Logspace,
          .shape = &LogspaceShape,
          .structural = {"start", "end", "base"},
          .any_out_dtype = true});

// --- eye, tril_indices, triu_indices

Values Eye(Call& c) {
  Builder& b = c.builder();
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(b, out)};
  return {Convert(Eq(b.Iota({DType::kS32, out.dims}, 0), b.Iota({DType::kS32, out.dims}, 1)),
                  out.dtype)};
}

std::vector<ResultSpec> EyeShape(const ShapeCall& s) {
  const int64_t n = s.argument("n").toInt();
  const int64_t m = s.has("m") ? s.argument("m").toInt() : n;
  TORCH_CHECK(n >= 0, "n must be greater or equal to 0, got ", n);
  TORCH_CHECK(m >= 0, "m must be greater or equal to 0, got ", m);
  return {{.dtype = OutType(s, ScalarType::Float), .sizes = {n, m}}};
}
TPU_RULE({.op = "eye.out", .lower = &Eye, .shape = &EyeShape, .any_out_dtype = true});
TPU_RULE({.op = "eye.m_out", .lower = &Eye, .shape = &EyeShape, .any_out_dtype = true});

// The part of a matrix on and below a diagonal: from row `top` on, `growing` rows that have
// `first`, first + 1, ... elements, then rows of `columns` elements.
struct LowerTrapezoid {
  int64_t top = 0, first = 0, growing = 0, columns = 0, rows = 0;

  // Elements in the first n growing rows.
  int64_t Grown(int64_t n) const { return n * first + n * (n - 1) / 2; }
  int64_t size() const { return Grown(growing) + (rows - top - growing) * columns; }
};

LowerTrapezoid Trapezoid(int64_t rows, int64_t columns, int64_t offset) {
  LowerTrapezoid t{.columns = columns, .rows = rows};
  t.top = std::min(rows, std::max<int64_t>(0, -offset));
  if (t.top == rows || columns == 0) {
    t.top = rows;
    return t;
  }
  t.first = std::min(columns, t.top + 1 + offset);
  t.growing = std::min(rows - t.top, columns - t.first + 1);
  return t;
}

// Row and column of the k-th element, k = 0, 1, ... or counted from the last one.
std::pair<Value, Value> TrapezoidIndices(Builder& b, const LowerTrapezoid& t, bool from_last) {
  const int64_t n = t.size(), grown = t.Grown(t.growing);
  const DType dtype = n < std::numeric_limits<int32_t>::max() / 2 ? DType::kS32 : DType::kS64;
  const Type type{dtype, {n}};
  const auto constant = [&](int64_t value) { return b.ConstantInt(type, value); };
  Value k = b.Iota(type, 0);
  if (from_last) k = Subtract(constant(n - 1), k);

  // Among the growing rows, row r begins at r*first + r(r-1)/2. Solving for r in floating point is
  // off by one at most, which two comparisons of integers put right.
  const DType real = dtype == DType::kS32 ? DType::kF32 : DType::kF64;
  const double slope = 2.0 * static_cast<double>(t.first) - 1;
  Value inside = Minimum(k, constant(std::max<int64_t>(grown - 1, 0)));
  Value x = Convert(inside, real);
  Value root = Sqrt(Add(Multiply(x, ConstantLike(x, 8)), ConstantLike(x, slope * slope)));
  Value row =
      Convert(Multiply(Subtract(root, ConstantLike(x, slope)), ConstantLike(x, 0.5)), dtype);
  row = Clamp(constant(0), row, constant(std::max<int64_t>(t.growing - 1, 0)));
  const auto begin = [&](Value r) {
    Value half = Divide(Multiply(r, Subtract(r, constant(1))), constant(2));
    return Add(Multiply(r, constant(t.first)), half);
  };
  row = Select(Gt(begin(row), inside), Subtract(row, constant(1)), row);
  Value next = Add(row, constant(1));
  row = Select(Le(begin(next), inside), next, row);
  Value column = Subtract(inside, begin(row));

  Value beyond = Ge(k, constant(grown));
  Value rest = Subtract(k, constant(grown));
  Value width = constant(std::max<int64_t>(t.columns, 1));
  row = Select(beyond, Add(Divide(rest, width), constant(t.growing)), row);
  column = Select(beyond, Remainder(rest, width), column);
  return {Add(row, constant(t.top)), column};
}

Values StackRows(Value row, Value column, const Type& out) {
  const Dims line = {1, out.dims[1]};
  return {Concatenate(
      {Reshape(Convert(row, out.dtype), line), Reshape(Convert(column, out.dtype), line)}, 0)};
}

// Turned around, the part above a diagonal is the part below another one.
LowerTrapezoid UpperAsLower(int64_t rows, int64_t columns, int64_t offset) {
  return Trapezoid(rows, columns, columns - rows - offset);
}

Values TrilIndices(Call& c) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  const auto [row, column] = TrapezoidIndices(
      c.builder(), Trapezoid(c.integer("row"), c.integer("col"), c.integer("offset")), false);
  return StackRows(row, column, out);
}

Values TriuIndices(Call& c) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  const int64_t rows = c.integer("row"), columns = c.integer("col");
  const auto [row, column] = TrapezoidIndices(
      c.builder(), UpperAsLower(rows, columns, c.integer("offset")), /*from_last=*/true);
  return StackRows(Subtract(ConstantLike(row, static_cast<double>(rows - 1)), row),
                   Subtract(ConstantLike(column, static_cast<double>(columns - 1)), column), out);
}

std::vector<ResultSpec> TriangleShape(const ShapeCall& s, bool lower) {
  const int64_t rows = s.argument("row").toInt(), columns = s.argument("col").toInt();
  const int64_t offset = s.argument("offset").toInt();
  TORCH_CHECK(rows >= 0, "row must be non-negative, got", rows);
  TORCH_CHECK(columns >= 0, "col must be non-negative, got", columns);
  const c10::IValue& dtype = s.argument("dtype");
  const ScalarType type = dtype.isNone() ? ScalarType::Long : dtype.toScalarType();
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isIntegralType(type, /*includeBool=*/false), "\"",
                              lower ? "tril_indices" : "triu_indices", "\" not implemented for '",
                              type, "'");
  const LowerTrapezoid t =
      lower ? Trapezoid(rows, columns, offset) : UpperAsLower(rows, columns, offset);
  return {{.dtype = type, .sizes = {2, t.size()}}};
}
std::vector<ResultSpec> TrilIndicesShape(const ShapeCall& s) { return TriangleShape(s, true); }
std::vector<ResultSpec> TriuIndicesShape(const ShapeCall& s) { return TriangleShape(s, false); }
TPU_RULE({.op = "tril_indices", .lower = &TrilIndices, .shape = &TrilIndicesShape});
TPU_RULE({.op = "triu_indices", .lower = &TriuIndices, .shape = &TriuIndicesShape});

}  // namespace
}  // namespace torch_tpu::lowering
