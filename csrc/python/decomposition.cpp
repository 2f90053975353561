#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "aten/python_hooks.h"
#include "python/hooks.h"

namespace torch_tpu::python {
namespace {

// Enumerations travel as integers; Python wants torch.float32, torch.strided, torch.channels_last.
pybind11::object ToPython(const c10::IValue& value, const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (value.isInt()) {
    const int64_t number = value.toInt();
    if (type->kind() == c10::TypeKind::ScalarTypeType) {
      return pybind11::cast(static_cast<c10::ScalarType>(number));
    }
    if (type->kind() == c10::TypeKind::LayoutType) {
      return pybind11::cast(static_cast<c10::Layout>(number));
    }
    if (type->kind() == c10::TypeKind::MemoryFormatType) {
      return pybind11::cast(static_cast<c10::MemoryFormat>(number));
    }
  }
  return torch::jit::toPyObject(value);
}

}  // namespace

bool Decompose(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  pybind11::gil_scoped_acquire gil;
  static auto* run =
      new pybind11::object(pybind11::module_::import("torch_tpu._decomposition").attr("run"));
  pybind11::list arguments;
  const auto& schema = op.schema();
  for (size_t i = 0; i < stack->size(); ++i) {
    arguments.append(ToPython((*stack)[i], schema.arguments()[i]));
  }
  pybind11::object result = (*run)(schema.name(), schema.overload_name(), arguments);
  if (result.ptr() == Py_NotImplemented) return false;
  torch::jit::Stack results;
  const auto& returns = schema.returns();
  if (returns.size() == 1) {
    results.push_back(torch::jit::toIValue(result, returns[0].type()));
  } else {
    auto tuple = pybind11::cast<pybind11::sequence>(result);
    for (size_t i = 0; i < returns.size(); ++i) {
      results.push_back(torch::jit::toIValue(tuple[i], returns[i].type()));
    }
  }
  stack->swap(results);
  return true;
}

}  // namespace torch_tpu::python
