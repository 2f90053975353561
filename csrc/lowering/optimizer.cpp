#include <c10/util/Exception.h>

#include <optional>
#include <string>

#include "lowering/elementwise.h"
#include "lowering/rule.h"

// Whole optimizer steps and gradient scaling. Every rule returns the new value of each tensor its
// operator writes, in the order of the schema.
namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT: rules read like the mathematics

// x times or over a 0-d value.
Value Times(Value x, Value factor) {
  return Multiply(x, BroadcastTo(Convert(factor, x.dtype()), x.dims()));
}
Value Over(Value x, Value divisor) {
  return Divide(x, BroadcastTo(Convert(divisor, x.dtype()), x.dims()));
}
Value Plus(Value x, Value number) {
  return Add(x, BroadcastTo(Convert(number, x.dtype()), x.dims()));
}
Value OneMinus(Value x) { return Subtract(ConstantLike(x, 1), x); }

Value AsScalar(Value x) { return Reshape(x, {}); }

// What the fused optimizers have in common: gradients arrive scaled by grad_scale, and a step with
// infinite gradients (found_inf) changes nothing.
class Step {
 public:
  explicit Step(Call& c) : c_(c), maximize_(c.boolean("maximize")) {
    if (auto scale = c.optional_tensor("grad_scale")) grad_scale_ = AsScalar(*scale);
    if (auto found = c.optional_tensor("found_inf")) {
      Value count = AsScalar(*found);
      skip_ = Eq(count, ConstantLike(count, 1));
    }
  }

  // A number in the type the update is computed in.
  Value number(const char* name, DType dtype) const { return c_.scalar(name, dtype); }
  Value learning_rate(DType dtype) const {
    const ArgumentSpec& lr = c_.spec().argument("lr");
    if (lr.kind != ArgumentSpec::Kind::kTensor) return c_.scalar("lr", dtype);
    return Convert(AsScalar(c_.tensor("lr")), dtype);
  }

  // The gradient without its scale, which is also written back.
  Value Unscaled(Value grad, DType dtype) const {
    Value g = Convert(grad, dtype);
    return grad_scale_ ? Over(g, *grad_scale_) : g;
  }
  Value Directed(Value grad) const { return maximize_ ? Negate(grad) : grad; }
  bool scaled() const { return grad_scale_.has_value(); }

  // `updated` rounded to the type of `old`, or `old` if this step is skipped.
  Value Keep(Value old, Value updated) const {
    Value rounded = Convert(updated, old.dtype());
    return skip_ ? Select(*skip_, old, rounded) : rounded;
  }

 private:
  Call& c_;
  bool maximize_;
  std::optional<Value> grad_scale_, skip_;
};

Values Joined(std::initializer_list<Values> lists) {
  Values all;
  for (const Values& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// start + weight * (end - start), from the nearer end.
Value Interpolate(Value start, Value end, Value weight) {
  Value difference = Subtract(end, start);
  Value near = Add(start, Times(difference, weight));
  Value far = Subtract(end, Times(difference, OneMinus(weight)));
  return Select(Lt(Abs(weight), ConstantLike(weight, 0.5)), near, far);
}

// 1 - beta^step. Computed from 1 - beta, as beta itself is too close to 1 for float32.
Value BiasCorrection(Value one_minus_beta, Value step) {
  Value exponent =
      Multiply(Convert(AsScalar(step), one_minus_beta.dtype()), Log1p(Negate(one_minus_beta)));
  return Negate(Expm1(exponent));
}

template <bool kDecoupled>
Values Adam(Call& c) {
  const Step step(c);
  const bool amsgrad = c.boolean("amsgrad");
  Values params = c.tensors("self"), grads = c.tensors("grads"), means = c.tensors("exp_avgs"),
         squares = c.tensors("exp_avg_sqs"), largest = c.tensors("max_exp_avg_sqs");
  const Values steps = c.tensors("state_steps");
  for (size_t i = 0; i < params.size(); ++i) {
    const DType dtype = ComputeType(params[i].dtype());
    Value lr = step.learning_rate(dtype), eps = step.number("eps", dtype);
    Value one_minus_beta1 = Convert(OneMinus(step.number("beta1", DType::kF64)), dtype);
    Value one_minus_beta2 = Convert(OneMinus(step.number("beta2", DType::kF64)), dtype);
    Value beta2 = step.number("beta2", dtype);

    Value param = Convert(params[i], dtype);
    Value unscaled = step.Unscaled(grads[i], dtype);
    Value grad = step.Directed(unscaled);
    if (!c.is("weight_decay", 0)) {
      Value decay = step.number("weight_decay", dtype);
      if (kDecoupled) {
        param = Subtract(param, Times(param, Multiply(lr, decay)));
      } else {
        grad = Add(grad, Times(param, decay));
      }
    }
    Value mean = Interpolate(Convert(means[i], dtype), grad, one_minus_beta1);
    Value square =
        Add(Times(Convert(squares[i], dtype), beta2), Times(Multiply(grad, grad), one_minus_beta2));
    Value most = square;
    if (amsgrad) {
      most = Maximum(Convert(largest[i], dtype), square);
      largest[i] = step.Keep(largest[i], most);
    }
    Value step_size = Divide(lr, BiasCorrection(one_minus_beta1, steps[i]));
    Value correction = Sqrt(BiasCorrection(one_minus_beta2, steps[i]));
    Value denominator = Plus(Over(Sqrt(most), correction), eps);
    param = Subtract(param, Divide(Times(mean, step_size), denominator));

    params[i] = step.Keep(params[i], param);
    if (step.scaled()) grads[i] = step.Keep(grads[i], unscaled);
    means[i] = step.Keep(means[i], mean);
    squares[i] = step.Keep(squares[i], square);
  }
  return Joined({params, grads, means, squares, largest});
}

Values Sgd(Call& c) {
  const Step step(c);
  Values params = c.tensors("self"), grads = c.tensors("grads"),
         buffers = c.tensors("momentum_buffer_list");
  const bool nesterov = c.boolean("nesterov"), first = c.boolean("is_first_step");
  for (size_t i = 0; i < params.size(); ++i) {
    const DType dtype = ComputeType(params[i].dtype());
    Value param = Convert(params[i], dtype);
    Value unscaled = step.Unscaled(grads[i], dtype);
    Value grad = step.Directed(unscaled);
    if (!c.is("weight_decay", 0)) {
      grad = Add(grad, Times(param, step.number("weight_decay", dtype)));
    }
    if (!buffers.empty() && !c.is("momentum", 0)) {
      Value momentum = step.number("momentum", dtype);
      Value buffer = grad;
      if (!first) {
        Value dampening = step.number("dampening", dtype);
        buffer = Add(Times(Convert(buffers[i], dtype), momentum), Times(grad, OneMinus(dampening)));
      }
      buffers[i] = step.Keep(buffers[i], buffer);
      grad = nesterov ? Add(grad, Times(buffer, momentum)) : buffer;
    }
    param = Subtract(param, Times(grad, step.learning_rate(dtype)));
    params[i] = step.Keep(params[i], param);
    if (step.scaled()) grads[i] = step.Keep(grads[i], unscaled);
  }
  return Joined({params, grads, buffers});
}

template <bool kReturnsSteps>
Values Adagrad(Call& c) {
  const Step step(c);
  Values params = c.tensors("self"), grads = c.tensors("grads"), sums = c.tensors("state_sums");
  const Values steps = c.tensors("state_steps");
  for (size_t i = 0; i < params.size(); ++i) {
    const DType dtype = ComputeType(params[i].dtype());
    Value param = Convert(params[i], dtype);
    Value unscaled = step.Unscaled(grads[i], dtype);
    Value grad = step.Directed(unscaled);
    if (!c.is("weight_decay", 0)) {
      grad = Add(grad, Times(param, step.number("weight_decay", dtype)));
    }
    Value taken = Convert(AsScalar(steps[i]), dtype);
    Value before = Subtract(taken, ConstantLike(taken, 1));
    Value decay =
        Plus(Multiply(before, step.number("lr_decay", dtype)), Scalar(c.builder(), dtype, 1));
    Value rate = Divide(step.learning_rate(dtype), decay);
    Value sum = Add(Convert(sums[i], dtype), Multiply(grad, grad));
    Value deviation = Plus(Sqrt(sum), step.number("eps", dtype));
    param = Subtract(param, Divide(Times(grad, rate), deviation));
    params[i] = step.Keep(params[i], param);
    if (step.scaled()) grads[i] = step.Keep(grads[i], unscaled);
    sums[i] = step.Keep(sums[i], sum);
  }
  return kReturnsSteps ? Joined({params, grads, sums, steps}) : Joined({params, grads, sums});
}

// Divides gradients by the loss scale and notes whether any is infinite or NaN.
Values CheckAndUnscale(Call& c) {
  Values results = c.tensors("self");
  Value found = c.tensor("found_inf");
  Value inverse = AsScalar(c.tensor("inv_scale"));
  Value any = Scalar(c.builder(), DType::kPred, 0);
  for (Value& grad : results) {
    Value wide = Convert(grad, ComputeType(grad.dtype()));
    Value bad = Not(IsFinite(wide));
    std::vector<int64_t> all;
    for (int d = 0; d < bad.rank(); ++d) all.push_back(d);
    any = Or(any, all.empty() ? bad : Reduce(bad, Reduction::kOr, all));
    grad = Convert(Times(wide, inverse), grad.dtype());
  }
  results.push_back(Select(any, ConstantLike(found, 1), found));
  return results;
}

// Backs the scale off after infinite gradients, and lets it grow after enough steps without.
Values UpdateScale(Call& c) {
  Value scale = c.tensor("self"), tracker = c.tensor("growth_tracker");
  Value found = AsScalar(c.tensor("found_inf"));
  Value failed = Ne(found, ConstantLike(found, 0));
  Value successes = Add(tracker, ConstantLike(tracker, 1));
  Value interval = ConstantLike(tracker, static_cast<double>(c.integer("growth_interval")));
  Value grows = Eq(successes, interval);
  Value grown = Times(scale, c.scalar("scale_growth_factor", scale.dtype()));
  // A scale that would overflow stays.
  Value larger = Select(And(Reshape(grows, scale.dims()), IsFinite(grown)), grown, scale);
  Value backed_off = Times(scale, c.scalar("scale_backoff_factor", scale.dtype()));
  Value zero = ConstantLike(tracker, 0);
  return {Select(failed, backed_off, larger), Select(failed, zero, Select(grows, zero, successes))};
}

const std::vector<std::pair<std::string, std::vector<double>>> kNoDecay = {{"weight_decay", {0}}};
const std::vector<std::pair<std::string, std::vector<double>>> kPlainSgd = {{"weight_decay", {0}},
                                                                            {"momentum", {0}}};

TPU_RULE({.op = "_fused_adam", .lower = &Adam<false>, .specialize = kNoDecay});
TPU_RULE({.op = "_fused_adam.tensor_lr", .lower = &Adam<false>, .specialize = kNoDecay});
TPU_RULE({.op = "_fused_adamw", .lower = &Adam<true>, .specialize = kNoDecay});
TPU_RULE({.op = "_fused_adamw.tensor_lr", .lower = &Adam<true>, .specialize = kNoDecay});
TPU_RULE({.op = "_fused_sgd", .lower = &Sgd, .specialize = kPlainSgd});
TPU_RULE({.op = "_fused_sgd.tensor_lr", .lower = &Sgd, .specialize = kPlainSgd});
TPU_RULE({.op = "_fused_adagrad", .lower = &Adagrad<true>, .specialize = kNoDecay});
TPU_RULE({.op = "_fused_adagrad.tensor_lr", .lower = &Adagrad<false>, .specialize = kNoDecay});
TPU_RULE({.op = "_amp_foreach_non_finite_check_and_unscale", .lower = &CheckAndUnscale});
TPU_RULE({.op = "_amp_update_scale", .lower = &UpdateScale});

}  // namespace
}  // namespace torch_tpu::lowering
