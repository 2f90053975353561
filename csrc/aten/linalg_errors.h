#pragma once

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "aten/dispatch.h"

namespace torch_tpu::aten {

// The rule kernel of linear algebra that fails for some values: raises PyTorch's error for singular
// or indefinite matrices, for which it waits for the result. With `check_errors` off nothing waits.
class LinalgErrorsKernel final : public c10::OperatorKernel {
 public:
  static bool Serves(const OperatorEntry& entry);

  explicit LinalgErrorsKernel(const OperatorEntry* entry);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  RuleKernel rule_;
  const size_t num_arguments_;
  const int check_errors_;  // position of the argument; -1 if there is none
};

}  // namespace torch_tpu::aten
