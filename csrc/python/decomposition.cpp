#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "aten/python_hooks.h"
#include "python/hooks.h"

namespace torch_tpu::python {

bool Decompose(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  pybind11::gil_scoped_acquire gil;
  static auto* run = new pybind11::object(
      pybind11::module_::import("torch_tpu._decomposition").attr("run"));
  pybind11::list arguments;
  for (const c10::IValue& value : *stack) arguments.append(torch::jit::toPyObject(value));
  const auto& schema = op.schema();
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
