#include "python/program.h"

#include <c10/util/Exception.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <unordered_set>
#include <vector>

#include "aten/errors.h"
#include "aten/guard.h"
#include "aten/storage.h"
#include "lowering/call.h"
#include "trace/runtime.h"

namespace torch_tpu::python {
namespace {

namespace py = pybind11;
using trace::Type;

// Values name their producer for ever.
const std::string* ForEver(const std::string& name) {
  static auto* mutex = new std::mutex;
  static auto* names = new std::unordered_set<std::string>;
  std::lock_guard guard(*mutex);
  return &*names->insert(name).first;
}

std::string Describe(c10::ScalarType dtype, c10::IntArrayRef sizes) {
  return c10::str(dtype, "[", c10::Join(", ", sizes), "]");
}

// A program from elsewhere, with the types that it declares. It starts on the calling thread, after
// what its arguments wait for.
class LoadedProgram {
 public:
  using TensorTypes = std::vector<std::pair<c10::ScalarType, std::vector<int64_t>>>;

  static std::unique_ptr<LoadedProgram> Compile(const std::string& name, const std::string& module,
                                                const TensorTypes& parameters,
                                                const TensorTypes& results) {
    auto& runtime = trace::Runtime::Get();
    return std::unique_ptr<LoadedProgram>(new LoadedProgram(
        name, runtime.Compile(module, trace::Runtime::ProgramSize::kLarge).executable, parameters,
        results));
  }

  // `bytes` are those of Serialize, by the same plugin.
  static std::unique_ptr<LoadedProgram> Deserialize(const std::string& name,
                                                    const std::string& bytes,
                                                    const TensorTypes& parameters,
                                                    const TensorTypes& results) {
    return std::unique_ptr<LoadedProgram>(new LoadedProgram(
        name, trace::Runtime::Get().client().Deserialize(bytes), parameters, results));
  }

  std::string Serialize() const { return executable_->program().Serialize(); }

  std::vector<at::Tensor> Run(c10::DeviceIndex index, const std::vector<at::Tensor>& arguments) {
    TORCH_CHECK_TYPE(arguments.size() == parameters_.size(), *name_, ": expected ",
                     parameters_.size(), " tensors, got ", arguments.size());
    trace::Device& device = aten::DeviceAt(index);
    std::vector<trace::ValuePtr> values;
    std::vector<PJRT_Buffer*> buffers;
    for (size_t i = 0; i < arguments.size(); ++i) {
      Check(i, arguments[i], index);
      values.push_back(aten::Materialize(arguments[i]));
      buffers.push_back(values.back()->raw());
    }
    std::vector<PJRT_Buffer*> outputs(results_.size());
    device.CountingOutOfMemory([&] {
      executable_->ExecuteUnchecked(buffers.data(), buffers.size(), outputs.data(), kept_,
                                    device.pjrt().raw());
    });
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Type& type = *results_[i];
      tensors.push_back(aten::MakeTensor(
          type.dims, {}, c10::scalarTypeToTypeMeta(lowering::ToScalarType(type.dtype)), index,
          type.bytes(), device.Adopt(results_[i], outputs[i], name_)));
    }
    return tensors;
  }

 private:
  LoadedProgram(const std::string& name, std::shared_ptr<pjrt::Executable> executable,
                const TensorTypes& parameters, const TensorTypes& results)
      : name_(ForEver(name)), executable_(std::move(executable)) {
    for (const auto& [dtype, dims] : parameters) {
      parameters_.push_back(trace::Intern({lowering::ToDType(dtype), dims}));
    }
    std::vector<pjrt::TensorType> declared;
    for (const auto& [dtype, dims] : results) {
      results_.push_back(trace::Intern({lowering::ToDType(dtype), dims}));
      declared.push_back({trace::ToPjrt(results_.back()->dtype), dims});
    }
    TORCH_CHECK(executable_->outputs() == declared, name, ": the program's results are not those ",
                "that were declared");
    kept_.resize(parameters_.size());
    std::iota(kept_.begin(), kept_.end(), 0);
  }

  // The plugin does not notice an argument of another type and the same size.
  void Check(size_t i, const at::Tensor& argument, c10::DeviceIndex index) const {
    const Type& type = *parameters_[i];
    TORCH_CHECK(argument.is_privateuseone() && argument.device().index() == index, *name_,
                ": argument ", i, " is on ", argument.device(),
                ", expected tpu:", static_cast<int>(index));
    const auto dtype = lowering::ToScalarType(type.dtype);
    TORCH_CHECK(argument.scalar_type() == dtype && argument.sizes().equals(type.dims), *name_,
                ": argument ", i, " must be ", Describe(dtype, type.dims), ", got ",
                Describe(argument.scalar_type(), argument.sizes()));
  }

  const std::string* name_;
  std::vector<const Type*> parameters_, results_;
  std::shared_ptr<pjrt::Executable> executable_;
  std::vector<int64_t> kept_;  // every argument survives
};

}  // namespace

void BindProgram(py::module_& m) {
  py::class_<LoadedProgram>(m, "LoadedProgram")
      .def(py::init([](const std::string& name, const std::string& module,
                       const LoadedProgram::TensorTypes& parameters,
                       const LoadedProgram::TensorTypes& results) {
             py::gil_scoped_release release;
             return aten::Guarded(
                 [&] { return LoadedProgram::Compile(name, module, parameters, results); }, name);
           }),
           py::arg("name"), py::arg("module"), py::arg("parameters"), py::arg("results"))
      .def_static(
          "deserialize",
          [](const std::string& name, const py::bytes& serialized,
             const LoadedProgram::TensorTypes& parameters,
             const LoadedProgram::TensorTypes& results) {
            const std::string bytes(serialized);
            py::gil_scoped_release release;
            return aten::Guarded(
                [&] { return LoadedProgram::Deserialize(name, bytes, parameters, results); }, name);
          },
          py::arg("name"), py::arg("serialized"), py::arg("parameters"), py::arg("results"))
      .def("serialize",
           [](const LoadedProgram& program) {
             return py::bytes(aten::Guarded([&] { return program.Serialize(); }));
           })
      .def(
          "run",
          [](LoadedProgram& program, int device, const std::vector<at::Tensor>& arguments) {
            py::gil_scoped_release release;
            return aten::Guarded(
                [&] { return program.Run(static_cast<c10::DeviceIndex>(device), arguments); });
          },
          py::arg("device"), py::arg("arguments"));
}

}  // namespace torch_tpu::python
