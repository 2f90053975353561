#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <utility>

namespace torch_tpu::aten {

// In debug mode adds the Python line that is running to an error on its way to Python; once.
void AddSourceLine(c10::Error& error);

// Rethrows the exception in flight as the PyTorch error a user expects: IndexError for failed index
// checks, torch.OutOfMemoryError for exhausted memory, RuntimeError for the rest. `context` says
// which operator with which shapes; c10 errors pass unchanged.
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

// Runs `function`, a kernel called by the dispatcher, with its errors completed by AddSourceLine.
template <class Function>
decltype(auto) Located(Function&& function) {
  try {
    return std::forward<Function>(function)();
  } catch (c10::Error& error) {
    AddSourceLine(error);
    throw;
  }
}

}  // namespace torch_tpu::aten
