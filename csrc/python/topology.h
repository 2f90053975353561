#pragma once

#include <pybind11/pybind11.h>

namespace torch_tpu::python {

// Adds the classes Topology and Program: compiling for chips that are not here.
void BindTopology(pybind11::module_& m);

}  // namespace torch_tpu::python
