#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>

namespace torch_tpu::aten {

// What the core asks of Python, set by the extension module. Called without any lock of ours held;
// the implementations take the GIL.
struct PythonHooks {
  // Runs torch._decomp's decomposition of `op` on the arguments; the stack then holds the results.
  // False if there is none.
  bool (*decompose)(const c10::OperatorHandle& op, torch::jit::Stack* stack) = nullptr;
  // "file.py:12" of the innermost frame outside PyTorch and this package, or "".
  std::string (*source_line)() = nullptr;
  void (*warn)(const std::string& message) = nullptr;
};

PythonHooks& Hooks();

}  // namespace torch_tpu::aten
