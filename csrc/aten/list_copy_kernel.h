#pragma once

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "aten/dispatch.h"

namespace torch_tpu::aten {

// The rule kernel of _foreach_copy_, whose sources may be on other devices, as on CUDA (sharded
// training fills device parameters from host copies): then the tensors are copied one by one.
class ListCopyKernel final : public c10::OperatorKernel {
 public:
  static bool Serves(const OperatorEntry& entry) { return entry.name == "_foreach_copy_"; }

  explicit ListCopyKernel(const OperatorEntry* entry) : rule_(entry) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  RuleKernel rule_;
};

}  // namespace torch_tpu::aten
