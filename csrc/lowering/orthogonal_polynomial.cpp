// Chebyshev polynomials of the four kinds, Hermite, Laguerre and Legendre polynomials, of a degree
// that is a tensor: the recurrence runs up to the largest degree, elements drop out at theirs.

#include <limits>

#include "lowering/elementwise.h"
#include "lowering/reduction.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: rules read like the mathematics

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Value One(Value like) { return ConstantLike(like, 1); }
Value Twice(Value x) { return Add(x, x); }

struct Operands {
  Value x;
  Value n;  // a whole number of x's dtype; -1 for what no int64 holds
};

// The degree is cut off towards zero. CPU casts it to int64, where NaN and what lies outside become
// negative.
Operands OperandsOf(const Call& c) {
  const DType dtype = ResultComputeType(c);
  const Value x = Operand(c, "x", dtype), n = Trunc(Operand(c, "n", dtype));
  const Value fits = Lt(Abs(n), ConstantLike(n, 0x1p63));
  return {x, Select(fits, n, ConstantLike(n, -1))};
}

Value IsEven(Value n) {
  const Value half = Multiply(n, ConstantLike(n, 0.5));
  return Eq(half, Floor(half));
}

// 1 for even n, -1 for odd n.
Value Alternating(Value n) { return Select(IsEven(n), One(n), ConstantLike(n, -1)); }

// The polynomial of degree n by p_0 = 1, p_1 = first and p_(k+1) = step(k, p_k, p_(k-1)). An
// element whose value has become NaN needs no more steps, so that overflow ends a loop over a huge
// degree.
template <typename Step>
Value Recurrence(Value n, Value first, Step step) {
  Builder& builder = n.builder();
  // 64 bits: a float32 would stop counting.
  const auto counter = [&](int64_t value) { return ScalarInt(builder, DType::kS64, value); };
  const auto spread = [&](Value k) { return BroadcastTo(Convert(k, n.dtype()), n.dims()); };
  const Values last = While(
      {counter(1), first, One(n)},
      [&](const Values& v) -> Values {
        const Value unfinished = And(Lt(spread(v[0]), n), Eq(v[1], v[1]));
        return {Reduce(unfinished, Reduction::kOr, AllDims(unfinished))};
      },
      [&](const Values& v) -> Values {
        const Value k = spread(v[0]), more = Lt(k, n);
        return {Add(v[0], counter(1)), Select(more, step(k, v[1], v[2]), v[1]),
                Select(more, v[1], v[2])};
      });
  const Value zero = ConstantLike(n, 0);
  return Select(Lt(n, zero), zero, Select(Eq(n, zero), One(n), last[1]));
}

// --- Chebyshev polynomials, DLMF 18.3 and 18.9: of all four kinds p_(k+1) = 2 x p_k - p_(k-1).

enum class Kind { kT, kU, kV, kW };

// The trigonometric form, DLMF 18.5.1-4, for |x| < 1.
Value Trigonometric(Kind kind, Value x, Value n) {
  const Value half = ConstantLike(x, 0.5), angle = Acos(x);
  const Value half_angle = Multiply(angle, half);
  switch (kind) {
    case Kind::kT:
      return Cosine(Multiply(n, angle));
    case Kind::kU:
      return Divide(Sine(Multiply(Add(n, One(n)), angle)), Sine(angle));
    case Kind::kV: {
      // Next to -1 the quotient says nothing any more.
      const Value limit = Multiply(Alternating(n), Add(Twice(n), One(n)));
      const Value quotient = Divide(Cosine(Multiply(Add(n, half), angle)), Cosine(half_angle));
      return Select(Eq(Sine(half_angle), One(x)), limit, quotient);
    }
    case Kind::kW:
      return Divide(Sine(Multiply(Add(n, half), angle)), Sine(half_angle));
  }
  return Value();
}

Value ValueAtOne(Kind kind, Value n) {
  switch (kind) {
    case Kind::kT:
    case Kind::kV:
      return One(n);
    case Kind::kU:
      return Add(n, One(n));
    case Kind::kW:
      return Add(Twice(n), One(n));
  }
  return Value();
}

Value FirstDegree(Kind kind, Value x) {
  switch (kind) {
    case Kind::kT:
      return x;
    case Kind::kU:
      return Twice(x);
    case Kind::kV:
      return Subtract(Twice(x), One(x));
    case Kind::kW:
      return Add(Twice(x), One(x));
  }
  return Value();
}

// Above degree `highest` the trigonometric form, elsewhere and outside of (-1, 1) the recurrence.
Value ChebyshevPolynomial(Kind kind, Value x, Value n, int highest) {
  const Value zero = ConstantLike(x, 0), one = One(x), magnitude = Abs(x);
  const Value at_end = And(Eq(magnitude, one), Ge(n, zero));
  const Value high = And(Gt(n, ConstantLike(n, highest)), Lt(magnitude, one));
  const Value twice = Twice(x);
  const Value recurrence =
      Recurrence(Select(Or(at_end, high), zero, n), FirstDegree(kind, x),
                 [&](Value, Value p, Value q) { return Subtract(Multiply(twice, p), q); });
  // p_n(-x) = (-1)^n p_n(x), with V and W exchanged.
  const Kind mirrored = kind == Kind::kV ? Kind::kW : kind == Kind::kW ? Kind::kV : kind;
  const Value end =
      Select(Gt(x, zero), ValueAtOne(kind, n), Multiply(Alternating(n), ValueAtOne(mirrored, n)));
  return Select(at_end, end, Select(high, Trigonometric(kind, x, n), recurrence));
}

template <Kind kKind, int kHighest>
Values LowerChebyshev(Call& c) {
  const auto [x, n] = OperandsOf(c);
  return Result(c, ChebyshevPolynomial(kKind, x, n, kHighest));
}

// On [0, 1] instead of [-1, 1].
template <Kind kKind, int kHighest>
Values LowerShiftedChebyshev(Call& c) {
  const auto [x, n] = OperandsOf(c);
  return Result(c, ChebyshevPolynomial(kKind, Subtract(Twice(x), One(x)), n, kHighest));
}

TPU_RULE({.op = "special_chebyshev_polynomial_t",
          .lower = &LowerChebyshev<Kind::kT, 6>,
          .kinds = kFloat});
TPU_RULE({.op = "special_chebyshev_polynomial_u",
          .lower = &LowerChebyshev<Kind::kU, 8>,
          .kinds = kFloat});
TPU_RULE({.op = "special_chebyshev_polynomial_v",
          .lower = &LowerChebyshev<Kind::kV, 8>,
          .kinds = kFloat});
TPU_RULE({.op = "special_chebyshev_polynomial_w",
          .lower = &LowerChebyshev<Kind::kW, 8>,
          .kinds = kFloat});
TPU_RULE({.op = "special_shifted_chebyshev_polynomial_t",
          .lower = &LowerShiftedChebyshev<Kind::kT, 6>,
          .kinds = kFloat});
TPU_RULE({.op = "special_shifted_chebyshev_polynomial_u",
          .lower = &LowerShiftedChebyshev<Kind::kU, 6>,
          .kinds = kFloat});
TPU_RULE({.op = "special_shifted_chebyshev_polynomial_v",
          .lower = &LowerShiftedChebyshev<Kind::kV, 6>,
          .kinds = kFloat});
TPU_RULE({.op = "special_shifted_chebyshev_polynomial_w",
          .lower = &LowerShiftedChebyshev<Kind::kW, 4>,
          .kinds = kFloat});

// --- Hermite, Laguerre and Legendre polynomials, DLMF 18.9.1-2

// A recurrence up to the degrees that CPU computes, NaN above.
template <typename Step>
Value LimitedRecurrence(Value n, Value first, Step step) {
  const Value too_high = Gt(n, ConstantLike(n, n.dtype() == DType::kF64 ? 512 : 128));
  const Value value = Recurrence(Select(too_high, One(n), n), first, step);
  return Select(too_high, ConstantLike(n, kNan), value);
}

Values LowerHermite(Call& c) {
  const auto [x, n] = OperandsOf(c);
  const Value twice = Twice(x);
  const auto step = [&](Value k, Value p, Value q) {
    return Subtract(Multiply(twice, p), Multiply(Twice(k), q));
  };
  return Result(c, LimitedRecurrence(n, twice, step));
}

Values LowerProbabilistHermite(Call& c) {
  const auto [x, n] = OperandsOf(c);
  const auto step = [&](Value k, Value p, Value q) {
    return Subtract(Multiply(x, p), Multiply(k, q));
  };
  return Result(c, LimitedRecurrence(n, x, step));
}

Values LowerLaguerre(Call& c) {
  const auto [x, n] = OperandsOf(c);
  const Value zero = ConstantLike(x, 0), rest = Subtract(One(x), x);
  const Value at_zero = And(Eq(x, zero), Ge(n, zero));  // 1 whatever the degree
  const auto step = [&](Value k, Value p, Value q) {
    const Value product = Multiply(Add(Twice(k), rest), p);
    return Divide(Subtract(product, Multiply(k, q)), Add(k, One(k)));
  };
  return Result(c, Recurrence(Select(at_zero, zero, n), rest, step));
}

Values LowerLegendre(Call& c) {
  const auto [x, n] = OperandsOf(c);
  const Value zero = ConstantLike(x, 0), one = One(x);
  const Value at_end = And(Eq(Abs(x), one), Ge(n, zero));
  const auto step = [&](Value k, Value p, Value q) {
    const Value product = Multiply(Multiply(Add(Twice(k), one), x), p);
    return Divide(Subtract(product, Multiply(k, q)), Add(k, one));
  };
  const Value value = Recurrence(Select(at_end, zero, n), x, step);
  const Value end = Select(Gt(x, zero), one, Alternating(n));
  return Result(c, Select(at_end, end, value));
}

TPU_RULE({.op = "special_hermite_polynomial_h", .lower = &LowerHermite, .kinds = kFloat});
TPU_RULE({.op = "special_hermite_polynomial_he",
          .lower = &LowerProbabilistHermite,
          .kinds = kFloat});
TPU_RULE({.op = "special_laguerre_polynomial_l", .lower = &LowerLaguerre, .kinds = kFloat});
TPU_RULE({.op = "special_legendre_polynomial_p", .lower = &LowerLegendre, .kinds = kFloat});

}  // namespace
}  // namespace torch_tpu::lowering
