#pragma once

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "aten/dispatch.h"

namespace torch_tpu::aten {

// The rule kernel of an in-place fill of some elements. Of an expanded tensor, whose elements share
// memory, CPU fills what any of them asks for; a rule would write all of them, changed or not.
class ExpandedKernel final : public c10::OperatorKernel {
 public:
  static bool Serves(const OperatorEntry& entry);

  explicit ExpandedKernel(const OperatorEntry* entry);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  enum class Kind { kMask, kIndex, kTriangle };
  Kind kind_;
  RuleKernel rule_;
};

// --- for kernels of their own

// Whether elements of a tensor share memory because it is expanded.
bool IsExpanded(const at::Tensor& self);
// One element of each that share memory: a view of the same rank, of size 1 where self is expanded.
at::Tensor Unexpanded(const at::Tensor& self);
void WarnOfExpanded(const char* op, const char* example);

}  // namespace torch_tpu::aten
