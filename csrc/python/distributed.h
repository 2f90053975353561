#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_tpu::python {

// Adds the c10d backend. PyTorch's own bindings of c10d have to be there already.
void BindDistributed(py::module_& m);

}  // namespace torch_tpu::python
