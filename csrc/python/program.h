#pragma once

#include <pybind11/pybind11.h>

namespace torch_tpu::python {

// Adds the class LoadedProgram: a module from elsewhere, compiled for the live device.
void BindProgram(pybind11::module_& m);

}  // namespace torch_tpu::python
