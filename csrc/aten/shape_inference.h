#pragma once

#include <ATen/core/stack.h>

#include <vector>

#include "aten/operator_entry.h"

namespace torch_tpu::aten {

// What PyTorch says one call returns: a spec for each tensor (lists flattened), and how the returns
// are made of them.
struct InferredReturn {
  enum class Kind { kTensor, kTensorList, kConstant } kind = Kind::kTensor;
  int count = 1;
  c10::IValue constant;
};
struct Inferred {
  std::vector<lowering::ResultSpec> results;
  std::vector<InferredReturn> returns;
};

// Result metadata of the functional form of `entry` for these arguments, by PyTorch's own code;
// raises PyTorch's own errors. `arguments` are the functional form's.
Inferred InferFunctional(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments);

// PyTorch's checks of an in-place call of a structured operator.
void CheckInplace(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments);

// True while a default kernel runs for its metadata only: out= kernels and copies do nothing then.
bool ProbingShapes();

// Leaves of a tensor or tensor list argument.
template <class Visit>
void ForEachTensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) visit(element.toTensor());
    }
  }
}

}  // namespace torch_tpu::aten
