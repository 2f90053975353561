#pragma once

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "aten/operator_entry.h"

namespace torch_tpu::aten {

// Serves an operator without a rule by PyTorch's Python decomposition: run once under capture for
// each signature, then as one executable. What cannot be captured runs eagerly; what decomposes
// into itself goes to the CPU fallback.
class DecompositionKernel final : public c10::OperatorKernel {
 public:
  explicit DecompositionKernel(const OperatorEntry* entry) : entry_(entry) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  void Call(const c10::OperatorHandle& op, torch::jit::Stack* stack) const;
  const OperatorEntry* entry_;
};

}  // namespace torch_tpu::aten
