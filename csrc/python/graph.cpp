#include "python/graph.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "aten/control_flow.h"
#include "aten/errors.h"
#include "aten/graph.h"
#include "aten/storage.h"
#include "lowering/call.h"
#include "trace/trace.h"

namespace torch_tpu::python {
namespace {

namespace py = pybind11;
using aten::Graph;

std::vector<at::Tensor> ToTensors(py::handle sequence) {
  std::vector<at::Tensor> tensors;
  for (py::handle item : sequence) {
    tensors.push_back(item.is_none() ? at::Tensor() : item.cast<at::Tensor>());
  }
  return tensors;
}

py::list ToList(std::vector<at::Tensor> tensors) {
  py::list list;
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined()) {
      list.append(py::cast(std::move(tensor)));
    } else {
      list.append(py::none());
    }
  }
  return list;
}

// A Python function as a body. Owned by a Graph that may die without the GIL.
Graph::Body BodyOf(py::function function) {
  auto owned =
      std::shared_ptr<py::function>(new py::function(std::move(function)), [](py::function* f) {
        py::gil_scoped_acquire gil;
        delete f;
      });
  return [owned](const std::vector<at::Tensor>& inputs) {
    py::gil_scoped_acquire gil;
    return ToTensors((*owned)(ToList(inputs)));
  };
}

py::tuple TypeOf(const trace::Type& type) {
  return py::make_tuple(py::cast(lowering::ToScalarType(type.dtype)),
                        py::tuple(py::cast(type.dims)));
}

py::dict ToDict(const Graph::Written& written) {
  py::list parameters, results;
  for (const auto& parameter : written.parameters) {
    py::dict entry;
    entry["input"] = parameter.input;
    entry["dtype"] = TypeOf(*parameter.type)[0];
    entry["shape"] = TypeOf(*parameter.type)[1];
    entry["used"] = parameter.used;
    entry["constant"] = py::none();
    if (parameter.constant) {
      const auto dtype = lowering::ToScalarType(parameter.type->dtype);
      entry["constant"] = py::cast(
          aten::MakeTensor(parameter.type->dims, {}, c10::scalarTypeToTypeMeta(dtype),
                           static_cast<c10::DeviceIndex>(parameter.constant->device().index()),
                           parameter.type->bytes(), parameter.constant));
    }
    parameters.append(entry);
  }
  for (const trace::Type* type : written.results) results.append(TypeOf(*type));
  py::dict dict;
  dict["module"] = written.module;
  dict["parameters"] = parameters;
  dict["results"] = results;
  dict["outputs"] = written.outputs;
  dict["mutations"] = written.mutations;
  return dict;
}

stablehlo::Platform PlatformFromName(const std::string& name) {
  if (name == "cpu") return stablehlo::Platform::kCpu;
  if (name == "tpu") return stablehlo::Platform::kTpu;
  throw py::value_error("platform must be \"cpu\" or \"tpu\", got \"" + name + "\"");
}

}  // namespace

void BindGraph(py::module_& m) {
  py::class_<Graph, std::shared_ptr<Graph>>(m, "Graph")
      .def(py::init(
               [](std::string name, py::function body, std::vector<int> donated, bool functional) {
                 return std::make_shared<Graph>(std::move(name), BodyOf(std::move(body)),
                                                std::move(donated), functional);
               }),
           py::arg("name"), py::arg("body"), py::arg("donated") = std::vector<int>(),
           py::arg("functional") = false)
      // Empties the list, so that the program may take buffers over that only the list holds. The
      // list is as it was where the function could not be captured.
      .def("run",
           [](Graph& graph, py::list inputs) {
             std::vector<at::Tensor> tensors = ToTensors(inputs);
             inputs.attr("clear")();
             std::vector<at::Tensor> outputs;
             try {
               py::gil_scoped_release release;
               outputs = aten::Located([&] { return graph.Run(tensors); });
             } catch (...) {
               for (py::handle input : ToList(std::move(tensors))) inputs.append(input);
               throw;
             }
             return ToList(std::move(outputs));
           })
      .def("prepare",
           [](Graph& graph, py::list inputs) {
             std::vector<at::Tensor> tensors = ToTensors(inputs);
             py::gil_scoped_release release;
             graph.Prepare(std::move(tensors));
           })
      .def("write",
           [](Graph& graph, py::list inputs, const std::string& platform) {
             const auto wanted = PlatformFromName(platform);
             std::vector<at::Tensor> tensors = ToTensors(inputs);
             Graph::Written written;
             {
               py::gil_scoped_release release;
               written = graph.Write(tensors, wanted);
             }
             return ToDict(written);
           })
      .def_property_readonly("variants", &Graph::variants);
  // Of what this thread captures: whether it has been given up, and the line it has come to.
  m.def("capturing", [] { return trace::Trace::Current() != nullptr; });
  m.def("capture_aborted", [] {
    const trace::Trace* capture = trace::Trace::Current();
    return capture != nullptr && capture->aborted();
  });
  // The state from which this thread's capture draws random numbers next: int64[2], seed and
  // offset. Set, it is drawn from instead of the generator's, until None is set.
  m.def("capture_random_state", &aten::CapturedRandomState);
  m.def("set_capture_random_state", [](const std::optional<at::Tensor>& state) {
    aten::DrawCapturedFrom(state ? *state : at::Tensor());
  });
  m.def("abort_capture", [](const std::string& why) { trace::Trace::Abort(why); });
  // Branches and loops in what this thread captures; see aten/control_flow.h. Bodies take and
  // return lists of tensors and None.
  m.def("record_cond", [](const at::Tensor& predicate, py::function on_true, py::function on_false,
                          py::sequence operands) {
    return ToList(aten::RecordCond(predicate, BodyOf(std::move(on_true)),
                                   BodyOf(std::move(on_false)), ToTensors(operands)));
  });
  m.def("record_while",
        [](py::function condition, py::function body, py::sequence carried, py::sequence operands) {
          return ToList(aten::RecordWhile(BodyOf(std::move(condition)), BodyOf(std::move(body)),
                                          ToTensors(carried), ToTensors(operands)));
        });
  m.def("record_scan",
        [](py::function body, py::sequence carried, py::sequence xs, py::sequence operands) {
          return ToList(aten::RecordScan(BodyOf(std::move(body)), ToTensors(carried), ToTensors(xs),
                                         ToTensors(operands)));
        });
  m.def("set_capture_source", [](std::string file, int line) {
    if (trace::Trace* capture = trace::Trace::Current()) {
      capture->SetSource({std::move(file), line});
    }
  });
}

}  // namespace torch_tpu::python
