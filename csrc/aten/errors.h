#pragma once

#include <functional>
#include <string>
#include <utility>

namespace torch_tpu::aten {

// Rethrows the exception in flight as the PyTorch error a user expects: IndexError for failed index
// checks, torch.OutOfMemoryError for exhausted memory, RuntimeError for the rest. `context` says which
// operator with which shapes; c10 errors pass unchanged.
[[noreturn]] void RethrowAsTorchError(const std::string& context);

// Runs `function` with errors of the lower rooms translated.
template <class Function>
decltype(auto) Guarded(Function&& function, const std::string& context = "") {
  try {
    return std::forward<Function>(function)();
  } catch (...) {
    RethrowAsTorchError(context);
  }
}

}  // namespace torch_tpu::aten
