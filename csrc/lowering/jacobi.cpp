#include "lowering/jacobi.h"

#include <cmath>
#include <limits>

#include "lowering/indices.h"
#include "lowering/matrices.h"

namespace torch_tpu::lowering {
using namespace stablehlo;  // NOLINT

namespace {

// Quadratic convergence needs six to ten sweeps; more mean that rounding errors keep it going.
constexpr int kMostSweeps = 30;

bool IsWide(DType dtype) { return RealOf(dtype) == DType::kF64; }
double Epsilon(DType dtype) {
  return IsWide(dtype) ? std::numeric_limits<double>::epsilon()
                       : std::numeric_limits<float>::epsilon();
}

Value SumOfSquares(Value x) {
  const int last = x.rank() - 1;
  if (!IsComplex(x.dtype())) return Reduce(Multiply(x, x), Reduction::kSum, {last});
  Value re = Real(x), im = Imag(x);
  return Reduce(Add(Multiply(re, re), Multiply(im, im)), Reduction::kSum, {last});
}

// Halves [b, h, l] of the rows; row i of one and row i of the other are a pair.
struct Halves {
  Value top, bottom;
};

// New halves and whether any pair was not orthogonal yet (0-d i1). Only the first `length` elements
// of the rows count, the others are rotated along. Rutishauser's formulas.
std::pair<Halves, Value> Rotate(const Halves& x, int64_t length) {
  const DType dtype = x.top.dtype(), real = RealOf(dtype);
  Value a = FirstColumns(x.top, length), b = FirstColumns(x.bottom, length);
  Value aa = SumOfSquares(a), bb = SumOfSquares(b);
  Value ab = Reduce(Multiply(a, Conj(b)), Reduction::kSum, {2});
  Value size = Abs(ab);

  const double smallest = NegligibleNorm(real) * NegligibleNorm(real);
  const double tolerance = Epsilon(real) * std::sqrt(std::max<double>(length, 16));
  Value limit = Multiply(Multiply(Sqrt(aa), Sqrt(bb)), ConstantLike(aa, tolerance));
  Value rotate = And(Gt(size, ConstantLike(size, 0)),
                     And(Gt(aa, ConstantLike(aa, smallest)), Gt(bb, ConstantLike(bb, smallest))));
  Value one = ConstantLike(aa, 1), zero = ConstantLike(aa, 0);
  Value product = Select(rotate, size, one);
  Value zeta = Divide(Subtract(bb, aa), Multiply(product, ConstantLike(aa, 2)));
  Value root = Add(Abs(zeta), Sqrt(Add(one, Multiply(zeta, zeta))));
  Value tangent = Divide(Select(Lt(zeta, zero), ConstantLike(aa, -1), one), root);
  tangent = Select(rotate, tangent, zero);
  Value cosine = Divide(one, Sqrt(Add(one, Multiply(tangent, tangent))));
  Value sine = Multiply(cosine, tangent);
  // The cosine as one minus what it lacks: products with a rounded cosine would let the rows' norms
  // drift, the more the more sweeps.
  Value lack = Divide(Multiply(sine, sine), Add(one, cosine));
  Value phase = Divide(ab, Convert(product, dtype));
  Value turn = Multiply(Convert(sine, dtype), phase);
  Halves result{Subtract(x.top, Add(ScaleRows(x.bottom, turn), ScaleRows(x.top, lack))),
                Add(x.bottom, Subtract(ScaleRows(x.top, Conj(turn)), ScaleRows(x.bottom, lack)))};
  return {result, Reduce(And(rotate, Gt(size, limit)), Reduction::kOr, {0, 1})};
}

// The next pairs of a round robin tournament, which brings all together in 2h - 1 rounds and then
// starts anew: the first of `top` keeps its place, the others move round by one.
Halves NextPairs(const Halves& x) {
  const int64_t h = x.top.dim(1);
  if (h == 1) return x;
  return {
      Concatenate(
          {SliceDim(x.top, 1, 0, 1), SliceDim(x.bottom, 1, 0, 1), SliceDim(x.top, 1, 1, h - 1)}, 1),
      Concatenate({SliceDim(x.bottom, 1, 1, h), SliceDim(x.top, 1, h - 1, h)}, 1)};
}

// All pairs once.
std::pair<Halves, Value> Sweep(const Halves& x, int64_t length) {
  Builder& b = x.top.builder();
  const int64_t rounds = 2 * x.top.dim(1) - 1;
  const Values end = While(
      {ScalarInt(b, DType::kS32, 0), ScalarInt(b, DType::kPred, 0), x.top, x.bottom},
      [&](const Values& v) { return Values{Lt(v[0], ScalarInt(b, DType::kS32, rounds))}; },
      [&](const Values& v) {
        const auto [rotated, any] = Rotate({v[2], v[3]}, length);
        const Halves next = NextPairs(rotated);
        return Values{Add(v[0], ScalarInt(b, DType::kS32, 1)), Or(v[1], any), next.top,
                      next.bottom};
      });
  return {{end[2], end[3]}, end[1]};
}

}  // namespace

double NegligibleNorm(DType dtype) {
  const double smallest =
      IsWide(dtype) ? std::numeric_limits<double>::min() : std::numeric_limits<float>::min();
  return std::sqrt(smallest / Epsilon(dtype));
}

// Hestenes (1958), with the parallel ordering of Brent and Luk (1985): each round rotates n / 2
// pairs at once. Only angles up to 45 degrees are used, which makes it converge.
OrthogonalRows OrthogonalizeRows(Value x, bool want_rotations) {
  Builder& b = x.builder();
  const int64_t n = x.dim(-2), length = x.dim(-1), batch = x.numel() / (n * length);
  const int64_t h = (n + 1) / 2, width = length + (want_rotations ? n : 0);
  Value all = Reshape(x, {batch, n, length});
  if (want_rotations) {
    all = Concatenate({all, Identity(b, {x.dtype(), {batch, n, n}})}, 2);
  }
  if (n > 1) {
    // A row of zeros makes their number even and is never rotated.
    all = PadTo(all, 2 * h, width);
    const Values end = While(
        {ScalarInt(b, DType::kS32, 0), ScalarInt(b, DType::kPred, 1), SliceDim(all, 1, 0, h),
         SliceDim(all, 1, h, 2 * h)},
        [&](const Values& v) {
          return Values{And(v[1], Lt(v[0], ScalarInt(b, DType::kS32, kMostSweeps)))};
        },
        [&](const Values& v) {
          const auto [halves, any] = Sweep({v[2], v[3]}, length);
          return Values{Add(v[0], ScalarInt(b, DType::kS32, 1)), any, halves.top, halves.bottom};
        });
    all = FirstRows(Concatenate({end[2], end[3]}, 1), n);
  }
  OrthogonalRows result;
  Value rows = FirstColumns(all, length);
  Dims norms = x.dims();
  norms.pop_back();
  result.rows = Reshape(rows, x.dims());
  result.norms = Reshape(Sqrt(SumOfSquares(rows)), norms);
  if (want_rotations) {
    Dims square = x.dims();
    square.back() = n;
    result.rotations = Reshape(SliceDim(all, 2, length, width), square);
  }
  return result;
}

Value DescendingOrder(Value keys) {
  const int last = keys.rank() - 1;
  Value places = Positions(keys.builder(), keys.dims(), last);
  return Sort({keys, places}, last, /*stable=*/true,
              [](const Values& v) { return Values{Gt(v[0], v[1])}; })[1];
}

Value InOrder(Value x, Value order, bool rows) {
  if (!rows) return GatherElements(x, x.rank() - 1, order);
  std::vector<int64_t> to(order.rank());
  for (int i = 0; i < order.rank(); ++i) to[i] = i;
  return GatherElements(x, x.rank() - 2, BroadcastInDim(order, x.dims(), to));
}

}  // namespace torch_tpu::lowering
