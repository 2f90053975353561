#pragma once

#include <pybind11/pybind11.h>

namespace torch_tpu::python {

// Adds the class Graph: a Python function over tensors that runs as one program.
void BindGraph(pybind11::module_& m);

}  // namespace torch_tpu::python
