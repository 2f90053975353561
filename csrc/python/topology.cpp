#include "python/topology.h"

#include <c10/util/Exception.h>
#include <pybind11/stl.h>

#include "aten/errors.h"
#include "pjrt/topology.h"

namespace torch_tpu::python {
namespace {

namespace py = pybind11;

py::dict MemoryOf(const pjrt::Program& program) {
  py::dict dict;
  const auto memory = aten::Guarded([&] { return program.memory(); });
  if (!memory) return dict;
  dict["argument_bytes"] = memory->arguments;
  dict["output_bytes"] = memory->outputs;
  dict["alias_bytes"] = memory->aliased;
  dict["temporary_bytes"] = memory->temporary;
  dict["generated_code_bytes"] = memory->generated_code;
  if (memory->peak) dict["peak_bytes"] = *memory->peak;
  return dict;
}

}  // namespace

void BindTopology(py::module_& m) {
  py::class_<pjrt::Program>(m, "Program")
      .def("memory", &MemoryOf)
      .def("costs",
           [](const pjrt::Program& program) {
             py::dict dict;
             for (const auto& [name, value] : aten::Guarded([&] { return program.costs(); })) {
               dict[py::str(name)] = value;
             }
             return dict;
           })
      .def("serialize",
           [](const pjrt::Program& program) {
             return py::bytes(aten::Guarded([&] { return program.Serialize(); }));
           })
      .def("optimized", [](const pjrt::Program& program) {
        const auto optimized = aten::Guarded([&] { return program.optimized(); });
        return py::make_tuple(optimized.format, py::bytes(optimized.code));
      });
  py::class_<pjrt::Topology>(m, "Topology")
      .def(py::init([](const std::string& plugin, const std::string& name,
                       const pjrt::NamedValues& options) {
             return aten::Guarded([&] {
               return std::make_unique<pjrt::Topology>(pjrt::Plugin::Load(plugin), name, options);
             });
           }),
           py::arg("plugin"), py::arg("name"), py::arg("options") = pjrt::NamedValues())
      .def_property_readonly("platform_version", &pjrt::Topology::platform_version)
      .def_property_readonly(
          "devices",
          [](const pjrt::Topology& topology) {
            py::list devices;
            for (const auto& device : topology.devices()) {
              devices.append(py::make_tuple(device.id, device.kind, device.description));
            }
            return devices;
          })
      .def(
          "compile",
          [](const pjrt::Topology& topology, const std::string& module,
             std::vector<std::pair<std::string, pjrt::CompileOptions::OptionValue>> overrides,
             int partitions) {
            pjrt::CompileOptions options;
            options.env_option_overrides = std::move(overrides);
            if (partitions > 1) {
              const auto& devices = topology.devices();
              TORCH_CHECK_VALUE(partitions <= static_cast<int>(devices.size()),
                                "the program runs on ", partitions,
                                " devices at once, and the topology has ", devices.size());
              options.num_partitions = partitions;
              options.use_spmd_partitioning = true;
              for (int i = 0; i < partitions; ++i) {
                options.device_assignment.push_back(devices[i].id);
              }
            }
            py::gil_scoped_release release;
            return aten::Guarded([&] { return topology.Compile(module, options); });
          },
          py::arg("module"),
          py::arg("overrides") =
              std::vector<std::pair<std::string, pjrt::CompileOptions::OptionValue>>(),
          py::arg("partitions") = 1);
}

}  // namespace torch_tpu::python
