#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <vector>

#include "lowering/rule.h"

namespace torch_tpu::aten {

// How one schema argument takes part in a call.
enum class ArgumentKind : uint8_t {
  kTensor,      // Tensor, Tensor?
  kTensorList,  // Tensor[], Tensor?[]
  kNumber,      // Scalar, float and their optionals: a run-time argument
  kNumberList,  // Scalar[], float[]: run-time arguments
  kStatic,      // part of the signature
  kGenerator,
  kIgnored,  // device, layout, pin_memory
};

struct ArgumentPlan {
  ArgumentKind kind = ArgumentKind::kStatic;
  bool written = false;   // in place, out= or by the rule's also_writes
  bool out = false;       // out= argument
  bool is_float = false;  // `float` in the schema rather than `Scalar`
  const std::vector<double>* specialize = nullptr;
};

enum class Form : uint8_t { kFunctional, kInplace, kOut };

// One registered overload that a rule serves.
struct OperatorEntry {
  const lowering::Rule* rule = nullptr;  // null: served by a captured decomposition
  std::optional<c10::OperatorHandle> op;
  std::optional<c10::OperatorHandle> functional;  // of an in-place or out= form
  std::string name;                               // "add_.Tensor"
  Form form = Form::kFunctional;
  std::vector<ArgumentPlan> arguments;
  bool writes = false;
  bool uses_dots = false;  // depends on the float32 matmul precision
  // PyTorch's default kernel of a structured operator (this overload's, and the functional form's),
  // taken before ours was registered.
  std::optional<c10::SafeKernelFunction> default_kernel, functional_default_kernel;
};

}  // namespace torch_tpu::aten
