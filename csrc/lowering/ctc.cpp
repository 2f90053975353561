#include "lowering/ctc.h"

#include <limits>

#include "lowering/indices.h"

namespace torch_tpu::lowering {

using namespace stablehlo;  // NOLINT: Add, Multiply, Reduce, ... read like the mathematics

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Each target with blanks around its labels: "states", 2 * longest + 1 of them.
struct States {
  Dims dims;       // [batch, states]
  Value label;     // the class of each state, 32-bit
  Value exists;    // i1: within the length of its target
  Value may_skip;  // i1: may follow the state two before, over the blank between
  Value emission;  // [time, batch, states]: its log probability, -infinity where none exists
  Value last;      // [batch]: the index of each target's last blank, 32-bit
  Value steps;     // [batch]: the number of time steps, 32-bit

  Value per_state(Value of_batch) const { return BroadcastInDim(of_batch, dims, {0}); }
};

Value Never(Value like) { return ConstantLike(like, -kInfinity); }

// The labels as [batch, longest], without blanks.
Value Labels(const CtcArguments& a, int64_t batch) {
  Builder& b = a.log_probs.builder();
  if (a.targets.rank() == 2) return SliceDim(a.targets, 1, 0, a.longest);
  // Where each sequence begins: the sum of the lengths before it.
  const Dims pairs = {batch, batch};
  Value before = Lt(b.Iota({DType::kS32, pairs}, 1), b.Iota({DType::kS32, pairs}, 0));
  Value lengths = BroadcastInDim(a.target_lengths, pairs, {1});
  Value first = Reduce(Select(before, lengths, ConstantLike(lengths, 0)), Reduction::kSum, {1});
  const Dims dims = {batch, a.longest};
  Value place = Add(BroadcastInDim(first, dims, {0}), b.Iota({first.dtype(), dims}, 1));
  Value end = b.ConstantInt(place.type(), a.targets.numel() - 1);
  return Take(a.targets, NarrowIndices(Minimum(place, end), a.targets.numel()), 0);
}

States StatesOf(const CtcArguments& a) {
  Builder& b = a.log_probs.builder();
  const int64_t time = a.log_probs.dim(0), batch = a.log_probs.dim(1);
  const int64_t classes = a.log_probs.dim(2), count = 2 * a.longest + 1;
  States s;
  s.dims = {batch, count};
  Value blank = ScalarInt(b, DType::kS32, a.blank);
  if (a.longest == 0) {
    s.label = BroadcastTo(blank, s.dims);
  } else {
    Value labels = Convert(Labels(a, batch), DType::kS32);
    // What pads a target may be no class.
    Value top = b.ConstantInt(labels.type(), classes - 1);
    labels = Clamp(ConstantLike(labels, 0), labels, top);
    s.label = Pad(labels, blank, {0, 1}, {0, 1}, {0, 1});
  }
  Value state = b.Iota({DType::kS32, s.dims}, 1);
  s.last = Convert(Add(a.target_lengths, a.target_lengths), DType::kS32);
  s.steps = Convert(a.input_lengths, DType::kS32);
  s.exists = Le(state, s.per_state(s.last));
  Value two_before = Pad(s.label, blank, {0, 2}, {0, -2});
  s.may_skip = And(Ne(s.label, two_before), Ge(state, ConstantLike(state, 2)));

  const Dims all = {time, batch, count};
  Value emission = GatherElements(a.log_probs, 2, BroadcastInDim(s.label, all, {1, 2}));
  s.emission = Select(BroadcastInDim(s.exists, all, {1, 2}), emission, Never(emission));
  return s;
}

// x moved by `distance` states towards the last, or the first if it is negative.
Value Moved(Value x, int64_t distance) {
  return Pad(x, Scalar(x.builder(), x.dtype(), -kInfinity), {0, distance}, {0, -distance});
}

// log(sum(exp(x))) of several values of one shape, elementwise.
Value LogSumExp(const Values& xs) {
  Value largest = xs[0];
  for (size_t i = 1; i < xs.size(); ++i) largest = Maximum(largest, xs[i]);
  // Nothing but -infinity would be subtracted from itself.
  largest = Select(Eq(largest, Never(largest)), ConstantLike(largest, 0), largest);
  Value sum;
  for (Value x : xs) {
    Value term = Exp(Subtract(x, largest));
    sum = sum ? Add(sum, term) : term;
  }
  return Add(Log(sum), largest);
}

// Element `index[i]` of each row i of [batch, n]; -infinity where that is negative.
Value AtState(Value rows, Value index) {
  Value column = Reshape(index, {index.dim(0), 1});
  Value zero = ConstantLike(column, 0);
  Value found = GatherElements(rows, 1, Maximum(column, zero));
  return Reshape(Select(Lt(column, zero), Never(found), found), {index.dim(0)});
}

// Row `t` of the time steps of [time, batch, states].
Value RowAt(Value x, Value t) {
  Value zero = ConstantLike(t, 0);
  Value row = DynamicSlice(x, {t, zero, zero}, {1, x.dim(1), x.dim(2)});
  return Reshape(row, {x.dim(1), x.dim(2)});
}
Value WithRow(Value x, Value row, Value t) {
  Value zero = ConstantLike(t, 0);
  return DynamicUpdateSlice(x, Reshape(row, {1, x.dim(1), x.dim(2)}), {t, zero, zero});
}

}  // namespace

CtcResult CtcLoss(const CtcArguments& a) {
  Builder& b = a.log_probs.builder();
  const int64_t time = a.log_probs.dim(0), batch = a.log_probs.dim(1);
  const DType dtype = a.log_probs.dtype();
  const Dims alpha_dims = {batch, time, 2 * a.longest + 1};
  Value no_labels = Eq(a.target_lengths, ConstantLike(a.target_lengths, 0));
  Value nothing = b.Constant({dtype, {batch}}, 0), never = b.Constant({dtype, {batch}}, kInfinity);
  // No time at all is enough for no labels.
  Value of_no_time = Select(no_labels, nothing, never);
  if (time == 0 || batch == 0) return {of_no_time, b.Constant({dtype, alpha_dims}, -kInfinity)};

  const States s = StatesOf(a);
  Value state = b.Iota({DType::kS32, s.dims}, 1);
  Value first = SliceDim(s.emission, 0, 0, 1);
  first = Reshape(first, s.dims);
  first = Select(Le(state, ConstantLike(state, 1)), first, Never(first));
  Value t = ScalarInt(b, DType::kS32, 0);
  Value one = ScalarInt(b, DType::kS32, 1), end = ScalarInt(b, DType::kS32, time);
  const Values loop = While(
      {one, first, WithRow(Never(s.emission), first, t)},
      [&](const Values& v) { return Values{Lt(v[0], end)}; },
      [&](const Values& v) {
        Value alpha = v[1];
        Value skipped = Select(s.may_skip, Moved(alpha, 2), Never(alpha));
        alpha = Add(LogSumExp({alpha, Moved(alpha, 1), skipped}), RowAt(s.emission, v[0]));
        return Values{Add(v[0], one), alpha, WithRow(v[2], alpha, v[0])};
      });
  Value log_alpha = Transpose(loop[2], {1, 0, 2});

  // At the last time step of each sequence, in its last label or the blank after it.
  Value zero = ConstantLike(s.steps, 0), ones = ConstantLike(s.steps, 1);
  Value step = Maximum(Subtract(s.steps, ones), zero);
  const Dims one_step = {batch, 1, s.dims[1]};
  Value at_end = GatherElements(log_alpha, 1, BroadcastInDim(step, one_step, {0}));
  at_end = Reshape(at_end, s.dims);
  Value likelihood = LogSumExp({AtState(at_end, s.last), AtState(at_end, Subtract(s.last, ones))});
  return {Select(Eq(s.steps, zero), of_no_time, Negate(likelihood)), log_alpha};
}

Value CtcLossGradient(const CtcArguments& a, Value grad, const CtcResult& forward,
                      bool zero_infinity) {
  Builder& b = a.log_probs.builder();
  const Type& type = a.log_probs.type();
  const int64_t time = type.dims[0], batch = type.dims[1];
  if (type.numel() == 0) return b.Constant(type, 0);
  const States s = StatesOf(a);

  // The log probabilities of the rests of the targets: backwards in time from each sequence's last
  // step, where only its last label and the blank after it may stand.
  Value state = b.Iota({DType::kS32, s.dims}, 1);
  Value last = s.per_state(s.last);
  Value final = And(s.exists, Ge(state, Subtract(last, ConstantLike(last, 1))));
  Value last_step = s.per_state(Subtract(s.steps, ConstantLike(s.steps, 1)));
  Value one = ScalarInt(b, DType::kS32, 1), zero = ScalarInt(b, DType::kS32, 0);
  const Values loop = While(
      {ScalarInt(b, DType::kS32, time - 1), b.Constant({type.dtype, s.dims}, -kInfinity),
       Never(s.emission)},
      [&](const Values& v) { return Values{Ge(v[0], zero)}; },
      [&](const Values& v) {
        Value beta = v[1];
        Value skipped = Moved(Select(s.may_skip, beta, Never(beta)), -2);
        Value later = LogSumExp({beta, Moved(beta, -1), skipped});
        Value begins = Eq(BroadcastTo(v[0], s.dims), last_step);
        Value start = Select(final, ConstantLike(beta, 0), Never(beta));
        beta = Add(Select(begins, start, later), RowAt(s.emission, v[0]));
        return Values{Subtract(v[0], one), beta, WithRow(v[2], beta, v[0])};
      });

  // The probability of each state at each time step, given the target. Both factors have the
  // emission in them.
  Value alpha = Transpose(forward.log_alpha, {1, 0, 2}), beta = loop[2];
  Value both = Add(alpha, beta);
  Value loss = BroadcastInDim(forward.loss, both.dims(), {1});
  Value posterior = Exp(Add(Subtract(both, s.emission), loss));
  posterior = Select(Gt(both, Never(both)), posterior, ConstantLike(posterior, 0));
  Value label = BroadcastInDim(s.label, both.dims(), {1, 2});
  Value of_class = ScatterElements(b.Constant(type, 0), 2, label, posterior, Combine::kAdd);

  Value result = Subtract(Exp(a.log_probs), of_class);
  // A target that cannot be has no gradient, nor has what has no probability.
  loss = BroadcastInDim(forward.loss, type.dims, {1});
  Value infinite = Eq(loss, ConstantLike(loss, kInfinity));
  Value undefined = Or(infinite, Eq(a.log_probs, Never(a.log_probs)));
  result =
      Select(undefined, ConstantLike(result, std::numeric_limits<double>::quiet_NaN()), result);
  result = Multiply(result, BroadcastInDim(grad, type.dims, {1}));
  Value step = b.Iota({DType::kS32, type.dims}, 0);
  Value counted = Lt(step, BroadcastInDim(s.steps, type.dims, {1}));
  if (zero_infinity) counted = And(counted, Not(infinite));
  return Select(counted, result, ConstantLike(result, 0));
}

}  // namespace torch_tpu::lowering
