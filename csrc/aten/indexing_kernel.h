#pragma once

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string_view>

#include "aten/dispatch.h"

namespace torch_tpu::aten {

// The rule kernel of an operator that takes `indices`. Rules know integer indices on the device
// alone: masks become the positions of their true elements here, and indices on the CPU are moved,
// as CUDA does.
class IndexingKernel final : public c10::OperatorKernel {
 public:
  static bool Serves(std::string_view op);  // the name of a rule

  explicit IndexingKernel(const OperatorEntry* entry) : entry_(entry), rule_(entry) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  const OperatorEntry* entry_;
  RuleKernel rule_;
};

}  // namespace torch_tpu::aten
