#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>

namespace torch_tpu::python {

bool Decompose(const c10::OperatorHandle& op, torch::jit::Stack* stack);
std::string SourceLine();
void Warn(const std::string& message);

}  // namespace torch_tpu::python
