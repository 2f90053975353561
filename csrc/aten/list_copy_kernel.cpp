#include "aten/list_copy_kernel.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

namespace torch_tpu::aten {

void ListCopyKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                torch::jit::Stack* stack) {
  constexpr size_t kTargets = 0, kSources = 1, kNonBlocking = 2, kArguments = 3;
  const auto targets = torch::jit::peek(*stack, kTargets, kArguments).toListRef();
  const auto sources = torch::jit::peek(*stack, kSources, kArguments).toListRef();
  const c10::Device device =
      targets.empty() ? c10::Device(at::kCPU) : targets[0].toTensor().device();
  auto elsewhere = [&](const c10::IValue& tensor) { return tensor.toTensor().device() != device; };
  if (targets.size() != sources.size() ||
      (std::none_of(targets.begin(), targets.end(), elsewhere) &&
       std::none_of(sources.begin(), sources.end(), elsewhere))) {
    rule_(op, keys, stack);
    return;
  }
  const bool non_blocking = torch::jit::peek(*stack, kNonBlocking, kArguments).toBool();
  for (size_t i = 0; i < targets.size(); ++i) {
    targets[i].toTensor().copy_(sources[i].toTensor(), non_blocking);
  }
  torch::jit::drop(*stack, kArguments);
}

}  // namespace torch_tpu::aten
