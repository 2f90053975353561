#include "python/distributed.h"

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "distributed/process_group.h"

namespace torch_tpu::python {

using distributed::GroupOptions;
using distributed::ProcessGroup;

void BindDistributed(py::module_& m) {
  py::module::import("torch._C._distributed_c10d");
  using Store = c10::intrusive_ptr<c10d::Store>;
  using Options = c10::intrusive_ptr<GroupOptions>;
  py::class_<GroupOptions, c10d::Backend::Options, Options>(m, "GroupOptions")
      .def("__deepcopy__", [](const GroupOptions& self, const py::object&) {
        return c10::make_intrusive<GroupOptions>(self);
      });
  py::class_<ProcessGroup, c10d::Backend, c10::intrusive_ptr<ProcessGroup>>(m, "ProcessGroup")
      .def(py::init([](const Store& store, int rank, int size, std::chrono::milliseconds timeout,
                       const std::string& name, std::vector<uint64_t> global_ranks,
                       py::function host_backend) {
             auto options = c10::make_intrusive<GroupOptions>(timeout);
             options->group_name = name;
             options->global_ranks_in_group = std::move(global_ranks);
             // Held without the GIL, so that it may go away in any thread.
             auto function = std::shared_ptr<py::function>(
                 new py::function(std::move(host_backend)), [](py::function* f) {
                   if (!Py_IsInitialized()) return;
                   py::gil_scoped_acquire acquire;
                   delete f;
                 });
             ProcessGroup::HostBackendFactory factory = [function](
                                                            const Store& store, int rank, int size,
                                                            std::chrono::milliseconds timeout) {
               py::gil_scoped_acquire acquire;
               return (*function)(store, rank, size, timeout)
                   .cast<c10::intrusive_ptr<c10d::Backend>>();
             };
             return c10::make_intrusive<ProcessGroup>(store, rank, size, std::move(options),
                                                      std::move(factory));
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("name"),
           py::arg("global_ranks"), py::arg("host_backend"))
      .def_property_readonly(
          "options",
          [](ProcessGroup& self) {
            return c10::static_intrusive_pointer_cast<GroupOptions>(self.getBackendOptions());
          })
      // What PyTorch calls on ranks that are not in a group made by splitting: here nobody needs
      // them.
      .def("perform_nocolor_split", [](ProcessGroup&, at::Device) {});
}

}  // namespace torch_tpu::python
