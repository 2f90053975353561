#pragma once

#include "lowering/call.h"

// The connectionist temporal classification loss of Graves et al. (2006): the probability of a
// sequence of labels, summed over all ways to spread it over the time steps, with blanks between.
namespace torch_tpu::lowering {

struct CtcArguments {
  Value log_probs;  // [time, batch, classes], float32 or float64
  // Labels, [batch, width], or those of all sequences one after the other. Integers.
  Value targets;
  Value input_lengths, target_lengths;  // [batch], int64
  int64_t blank;
  int64_t longest;  // no target is longer
};

// The negative log likelihood, [batch], and the log probabilities of the prefixes of each target
// with its blanks at each time step, [batch, time, 2 * longest + 1], which the gradient needs.
struct CtcResult {
  Value loss, log_alpha;
};
CtcResult CtcLoss(const CtcArguments& a);

// The gradient by log_probs, given that of the loss, [batch].
Value CtcLossGradient(const CtcArguments& a, Value grad, const CtcResult& forward,
                      bool zero_infinity);

}  // namespace torch_tpu::lowering
