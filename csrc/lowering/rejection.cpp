// Distributions drawn by rejection: every element tries again, round after round, until each has
// accepted a proposal. Round r draws from a sequence of its own, so the numbers of an element do
// not depend on how long others take.
#include <c10/util/Exception.h>

#include <functional>
#include <limits>
#include <numbers>

#include "lowering/indices.h"
#include "lowering/philox.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: Add, Multiply, Reduce, ... read like the mathematics

Value Constant(Value like, double number) { return ConstantLike(like, number); }
Value Square(Value x) { return Multiply(x, x); }

// `count` uniform numbers in (0, 1) for each of n elements in one round, [n] float64 each.
Values Uniforms(const Call& c, Value round, int64_t n, int count) {
  // Odd, so that no two rounds of a call have one seed.
  Value step = c.builder().ConstantInt({DType::kU64, {}}, int64_t{0x3C6EF372FE94F82B});
  Value seed = Add(c.seed(), Multiply(Convert(round, DType::kU64), step));
  Value words = RandomWords(seed, c.offset(), 2 * count * n, Stream::kCall);
  words = Convert(Reshape(words, {count, n, 2}), DType::kU64);
  Value high = Reshape(SliceDim(words, 2, 0, 1), {count, n});
  Value low = Reshape(SliceDim(words, 2, 1, 2), {count, n});
  Value bits = Or(ShiftLeft(high, c.builder().ConstantInt(high.type(), 32)), low);
  bits = ShiftRightLogical(bits, c.builder().ConstantInt(bits.type(), 11));
  // 53 digits, half a step away from 0 and 1.
  Value u = Convert(bits, DType::kF64);
  u = Multiply(Add(u, Constant(u, 0.5)), Constant(u, 0x1p-53));
  Values out;
  for (int i = 0; i < count; ++i) out.push_back(Reshape(SliceDim(u, 0, i, i + 1), {n}));
  return out;
}

// Runs rounds until every element is done. `step` takes the round, which elements are done and the
// state of the others, and returns which are done now and their states; a done element keeps its.
using Step = std::function<Values(Value round, Value done, const Values& state)>;
Values Rounds(const Call& c, Value done, const Values& state, const Step& step) {
  // No proposal is rejected so often unless its parameters are not numbers.
  constexpr int64_t kMost = 10000;
  Value most = ScalarInt(c.builder(), DType::kS32, kMost);
  Value one = ScalarInt(c.builder(), DType::kS32, 1);
  Values inits = {ScalarInt(c.builder(), DType::kS32, 0), done};
  inits.insert(inits.end(), state.begin(), state.end());
  Values out = While(
      inits,
      [&](const Values& v) {
        Value all = Reduce(v[1], Reduction::kAnd, {0});
        return Values{And(Not(all), Lt(v[0], most))};
      },
      [&](const Values& v) {
        const Values old(v.begin() + 2, v.end());
        Values now = step(v[0], v[1], old);
        Values next = {Add(v[0], one), Or(v[1], now[0])};
        for (size_t i = 0; i < old.size(); ++i) {
          next.push_back(Select(v[1], old[i], now[i + 1]));
        }
        return next;
      });
  return {out.begin() + 2, out.end()};
}

// --- gamma: G. Marsaglia and W. W. Tsang, "A simple method for generating gamma variables", 2000

Value Gamma(const Call& c, Value alpha) {
  const int64_t n = alpha.numel();
  // Below one: gamma(alpha + 1) u^(1 / alpha).
  Value small = Lt(alpha, Constant(alpha, 1));
  Value d =
      Subtract(Select(small, Add(alpha, Constant(alpha, 1)), alpha), Constant(alpha, 1.0 / 3));
  Value scale = Rsqrt(Multiply(d, Constant(d, 9)));
  Value done = Not(Gt(alpha, Constant(alpha, 0)));  // and not a number
  Value x = Rounds(c, done, {Constant(alpha, 0)}, [&](Value round, Value, const Values&) -> Values {
    const Values u = Uniforms(c, round, n, 4);
    Value radius = Sqrt(Multiply(Log(u[0]), Constant(d, -2)));
    Value normal = Multiply(radius, Cosine(Multiply(u[1], Constant(d, 2 * std::numbers::pi))));
    Value v = Add(Multiply(scale, normal), Constant(d, 1));
    Value positive = Gt(v, Constant(v, 0));
    v = Multiply(v, Square(v));
    Value log_v = Log(Select(positive, v, Constant(v, 1)));
    Value bound = Add(Multiply(Square(normal), Constant(d, 0.5)),
                      Multiply(d, Add(Subtract(Constant(v, 1), v), log_v)));
    Value accepted = And(positive, Lt(Log(u[2]), bound));
    Value boost = Select(small, Power(u[3], Divide(Constant(alpha, 1), alpha)), Constant(alpha, 1));
    return Values{accepted, Multiply(Multiply(d, v), boost)};
  })[0];
  return Select(Eq(alpha, alpha), x, alpha);
}

Value ToResult(Call& c, Value x) { return Reshape(Convert(x, c.result().dtype), c.result().dims); }

Value Flat(Value x) { return Reshape(Convert(x, DType::kF64), {x.numel()}); }

// The smallest positive normal number, below which a sample of gamma is rounded up: its logarithm
// is to be finite.
double Tiny(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return std::numeric_limits<double>::min();
    case DType::kF16:
      return 0x1p-14;
    default:
      return std::numeric_limits<float>::min();
  }
}

Values StandardGamma(Call& c) {
  if (c.result().numel() == 0) return {Zeros(c.builder(), c.result())};
  Value x = Gamma(c, Flat(c.tensor("self")));
  return {ToResult(c, Maximum(x, Constant(x, Tiny(c.result().dtype))))};
}

Values SampleDirichlet(Call& c) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  Value x = Gamma(c, Flat(c.tensor("self")));
  x = Reshape(Maximum(x, Constant(x, Tiny(DType::kF64))), out.dims);
  const int last = static_cast<int>(out.dims.size()) - 1;
  Dims kept = out.dims;
  kept[last] = 1;
  Value sum = BroadcastTo(Reshape(Reduce(x, Reduction::kSum, {last}), kept), out.dims);
  x = Divide(x, sum);
  return {Convert(Maximum(x, Constant(x, Tiny(out.dtype))), out.dtype)};
}

// --- Poisson: below 10 by counting uniform factors of exp(-rate); from there by transformed
// rejection, W. Hoermann, "The transformed rejection method for generating Poisson random
// variables", 1993, algorithm PTRS

Values Poisson(Call& c) {
  if (c.result().numel() == 0) return {Zeros(c.builder(), c.result())};
  Value rate = Flat(c.tensor("self"));
  const int64_t n = rate.numel();
  auto k_of = [&](double number) { return Constant(rate, number); };
  Value valid = Ge(rate, k_of(0));
  c.Check(valid, "invalid Poisson rate, expected rate to be non-negative",
          Call::ErrorKind::kRuntime);
  Value small = Lt(rate, k_of(10));
  Value limit = Exp(stablehlo::Negate(rate));
  // Harmless numbers where the other method counts.
  Value mean = Select(small, k_of(10), rate);
  Value log_mean = Log(mean);
  Value b = Add(Multiply(Sqrt(mean), k_of(2.53)), k_of(0.931));
  Value a = Add(Multiply(b, k_of(0.02483)), k_of(-0.059));
  Value log_inverse_alpha = Log(Add(Divide(k_of(1.1328), Subtract(b, k_of(3.4))), k_of(1.1239)));
  Value quick = Subtract(k_of(0.9277), Divide(k_of(3.6224), Subtract(b, k_of(2))));
  const Values state = {k_of(0), k_of(1)};  // count, product of factors
  Value count = Rounds(
      c, Not(And(valid, Gt(rate, k_of(0)))), state, [&](Value round, Value, const Values& s) {
        const Values u = Uniforms(c, round, n, 2);
        Value product = Multiply(s[1], u[0]);
        Value stops = Not(Gt(product, limit));
        Value counted = Select(stops, s[0], Add(s[0], k_of(1)));

        Value centred = Subtract(u[0], k_of(0.5));
        Value room = Subtract(k_of(0.5), Abs(centred));
        Value slope = Add(Divide(Multiply(a, k_of(2)), room), b);
        Value k = Floor(Add(Add(Multiply(slope, centred), mean), k_of(0.43)));
        Value at_once = And(Ge(room, k_of(0.07)), Le(u[1], quick));
        Value refused = Or(Lt(k, k_of(0)), And(Lt(room, k_of(0.013)), Gt(u[1], room)));
        Value height =
            Subtract(Add(Log(u[1]), log_inverse_alpha), Log(Add(Divide(a, Square(room)), b)));
        Value density = Subtract(Subtract(Multiply(k, log_mean), mean),
                                 Lgamma(Add(Maximum(k, k_of(0)), k_of(1))));
        Value accepted = Or(at_once, And(Not(refused), Le(height, density)));
        return Values{Select(small, stops, accepted), Select(small, counted, k), product};
      })[0];
  return {ToResult(c, count)};
}

// --- binomial: with a small mean by adding geometric waiting times until they exceed the count
// (L. Devroye, "Non-uniform random variate generation", 1986, chapter X.4); else by transformed
// rejection, W. Hoermann, "The generation of binomial random variates", 1993, algorithm BTRS

Values Binomial(Call& c) {
  if (c.result().numel() == 0) return {Zeros(c.builder(), c.result())};
  const Dims& dims = c.result().dims;
  Value trials = Flat(BroadcastTo(c.tensor("count"), dims));
  Value p = Flat(BroadcastTo(c.tensor("prob"), dims));
  const int64_t n = trials.numel();
  auto k_of = [&](double number) { return Constant(trials, number); };
  Value valid = And(Eq(trials, trials), Eq(p, p));
  Value flipped = Gt(p, k_of(0.5));
  Value q = Select(flipped, Subtract(k_of(1), p), p);
  Value certain = Not(And(And(Gt(trials, k_of(0)), Gt(q, k_of(0))), valid));
  Value small = Lt(Multiply(trials, q), k_of(10));

  Value log_miss = Log(Subtract(k_of(1), Select(certain, k_of(0.25), q)));
  // Harmless numbers where the other method counts.
  Value large = Not(Or(small, certain));
  Value m_trials = Select(large, trials, k_of(40)), m_q = Select(large, q, k_of(0.25));
  Value deviation = Sqrt(Multiply(Multiply(m_trials, m_q), Subtract(k_of(1), m_q)));
  Value b = Add(Multiply(deviation, k_of(2.53)), k_of(1.15));
  Value a = Add(Add(Multiply(b, k_of(0.0248)), Multiply(m_q, k_of(0.01))), k_of(-0.0873));
  Value centre = Add(Multiply(m_trials, m_q), k_of(0.5));
  Value quick = Subtract(k_of(0.92), Divide(k_of(4.2), b));
  Value alpha = Multiply(Add(Divide(k_of(5.1), b), k_of(2.83)), deviation);
  Value log_odds = Log(Divide(m_q, Subtract(k_of(1), m_q)));
  Value mode = Floor(Multiply(Add(m_trials, k_of(1)), m_q));
  auto log_ways = [&](Value k) {  // -log(k! (trials - k)!)
    Value rest = Subtract(m_trials, k);
    return stablehlo::Negate(Add(Lgamma(Add(k, k_of(1))), Lgamma(Add(rest, k_of(1)))));
  };
  Value at_mode = log_ways(mode);

  const Values state = {k_of(0), k_of(0)};  // successes, trials they took
  Value hits = Rounds(c, certain, state, [&](Value round, Value, const Values& s) {
    const Values u = Uniforms(c, round, n, 2);
    Value wait = Add(s[1], Maximum(Ceil(Divide(Log(u[0]), log_miss)), k_of(1)));
    Value stops = Gt(wait, trials);
    Value counted = Select(stops, s[0], Add(s[0], k_of(1)));

    Value centred = Subtract(u[0], k_of(0.5));
    Value room = Subtract(k_of(0.5), Abs(centred));
    Value slope = Add(Divide(Multiply(a, k_of(2)), room), b);
    Value k = Floor(Add(Multiply(slope, centred), centre));
    Value inside = And(Ge(k, k_of(0)), Le(k, m_trials));
    Value at_once = And(Ge(room, k_of(0.07)), Le(u[1], quick));
    Value height = Log(Divide(Multiply(u[1], alpha), Add(Divide(a, Square(room)), b)));
    Value safe = Select(inside, k, mode);
    Value density =
        Add(Subtract(log_ways(safe), at_mode), Multiply(Subtract(safe, mode), log_odds));
    Value accepted = Or(at_once, And(inside, Le(height, density)));
    return Values{Select(small, stops, accepted), Select(small, counted, k), wait};
  })[0];
  hits = Select(certain, k_of(0), hits);
  hits = Select(flipped, Subtract(trials, hits), hits);
  hits = Select(Gt(trials, k_of(0)), hits, k_of(0));
  return {ToResult(c, Select(valid, hits, k_of(std::numeric_limits<double>::quiet_NaN())))};
}

// --- shapes

std::vector<ResultSpec> FloatingShape(const ShapeTensor& self, const char* kernel) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isFloatingType(self.dtype), '"', kernel,
                              "\" not implemented for '", self.dtype, "'");
  return {{.dtype = self.dtype, .sizes = self.sizes}};
}

std::vector<ResultSpec> GammaShape(const ShapeCall& s) {
  return FloatingShape(s.tensor("self"), "gamma");
}

std::vector<ResultSpec> DirichletShape(const ShapeCall& s) {
  TORCH_CHECK_INDEX(!s.tensor("self").sizes.empty(),
                    "Dimension specified as -1 but tensor has no dimensions");
  return FloatingShape(s.tensor("self"), "dirichlet");
}

std::vector<ResultSpec> PoissonShape(const ShapeCall& s) {
  return FloatingShape(s.tensor("self"), "poisson_cpu");
}

std::vector<ResultSpec> BinomialShape(const ShapeCall& s) {
  const ShapeTensor &count = s.tensor("count"), &prob = s.tensor("prob");
  FloatingShape(count, "binomial_cpu");
  TORCH_CHECK(count.dtype == prob.dtype, "Found dtype ", prob.dtype, " but expected ", count.dtype);
  return {{.dtype = count.dtype, .sizes = BroadcastShapes(count.sizes, prob.sizes)}};
}

TPU_RULE({.op = "_standard_gamma", .lower = &StandardGamma, .shape = &GammaShape, .random = true});
TPU_RULE({.op = "_sample_dirichlet",
          .lower = &SampleDirichlet,
          .shape = &DirichletShape,
          .kinds = kFloat,
          .random = true});
TPU_RULE({.op = "poisson", .lower = &Poisson, .shape = &PoissonShape, .random = true});
TPU_RULE({.op = "binomial", .lower = &Binomial, .shape = &BinomialShape, .random = true});

}  // namespace
}  // namespace torch_tpu::lowering
