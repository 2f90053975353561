#pragma once

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "aten/operator_entry.h"

namespace torch_tpu::aten {

// The one boxed kernel: an instance for every overload that a rule serves.
class RuleKernel final : public c10::OperatorKernel {
 public:
  explicit RuleKernel(const OperatorEntry* entry) : entry_(entry) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  void Call(torch::jit::Stack* stack) const;
  const OperatorEntry* entry_;
};

// Calls served from the signature cache, and those that were not, since the process began.
struct DispatchCounts {
  int64_t hits = 0, misses = 0;
};
DispatchCounts Dispatches();

}  // namespace torch_tpu::aten
