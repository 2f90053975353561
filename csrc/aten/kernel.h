#pragma once

#include "aten/errors.h"

namespace torch_tpu::aten {

// A function as a kernel the dispatcher calls, its errors completed by the Python line:
// m.impl("equal", &Kernel<&Equal>::Run).
template <auto kFunction>
struct Kernel;
template <class Result, class... Arguments, Result (*kFunction)(Arguments...)>
struct Kernel<kFunction> {
  static Result Run(Arguments... arguments) {
    return Located([&]() -> Result { return kFunction(arguments...); });
  }
};

}  // namespace torch_tpu::aten
