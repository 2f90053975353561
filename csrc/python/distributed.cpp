#include "python/distributed.h"

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <map>

#include "aten/errors.h"
#include "distributed/client_store.h"
#include "distributed/process_group.h"
#include "distributed/spmd_program.h"
#include "lowering/call.h"
#include "trace/runtime.h"
#include "trace/together.h"

namespace torch_tpu::python {

namespace {

// The StableHLO text by which the transport by programs does a call of `ranks` ranks, for a TPU.
std::string CollectiveModule(const std::string& call, const std::string& reduce,
                             const std::string& dtype, std::vector<int64_t> shape, int ranks) {
  using distributed::SpmdProgram;
  static const std::map<std::string, SpmdProgram::Kind> kinds = {
      {"broadcast", SpmdProgram::Kind::kBroadcast},
      {"all_reduce", SpmdProgram::Kind::kAllReduce},
      {"all_gather", SpmdProgram::Kind::kAllGather},
      {"reduce_scatter", SpmdProgram::Kind::kReduceScatter},
      {"scatter", SpmdProgram::Kind::kScatter},
      {"all_to_all", SpmdProgram::Kind::kAllToAll},
      {"send", SpmdProgram::Kind::kSend}};
  using Op = c10d::ReduceOp::RedOpType;
  static const std::map<std::string, Op> reductions = {
      {"", Op::UNUSED},         {"SUM", Op::SUM}, {"AVG", Op::AVG},
      {"PRODUCT", Op::PRODUCT}, {"MIN", Op::MIN}, {"MAX", Op::MAX},
      {"BAND", Op::BAND},       {"BOR", Op::BOR}, {"BXOR", Op::BXOR}};
  const auto kind = kinds.find(call);
  TORCH_CHECK_VALUE(kind != kinds.end(), "no collective is called ", call);
  const auto op = reductions.find(reduce);
  TORCH_CHECK_VALUE(op != reductions.end(), "no reduction is called ", reduce);
  SpmdProgram program{.kind = kind->second, .reduce = op->second, .size = ranks};
  static const std::map<std::string, stablehlo::DType> dtypes = [] {
    std::map<std::string, stablehlo::DType> all;
    for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
      const auto type = static_cast<c10::ScalarType>(i);
      if (lowering::IsSupported(type))
        all[std::string(c10::getDtypeNames(type).first)] = lowering::ToDType(type);
    }
    return all;
  }();
  const auto type = dtypes.find(dtype);
  TORCH_CHECK_VALUE(type != dtypes.end(), "no dtype is called ", dtype);
  program.input = {type->second, std::move(shape)};
  program.output = {program.input.dtype, {program.ResultElements()}};
  return aten::Guarded([&] { return program.Module(stablehlo::Platform::kTpu); });
}

}  // namespace

using distributed::GroupOptions;
using distributed::ProcessGroup;

void BindDistributed(py::module_& m) {
  py::register_exception<trace::ProgramsDiffer>(m, "ProgramsDiffer", PyExc_RuntimeError);
  m.def("collective_module", &CollectiveModule, py::arg("call"), py::arg("reduce"),
        py::arg("dtype"), py::arg("shape"), py::arg("ranks"));
  py::module::import("torch._C._distributed_c10d");
  using Store = c10::intrusive_ptr<c10d::Store>;
  using distributed::ClientStore;
  py::class_<ClientStore, std::shared_ptr<ClientStore>>(m, "ClientStore")
      .def(py::init<Store>())
      .def("get", &ClientStore::Get, py::call_guard<py::gil_scoped_release>())
      .def("try_get", &ClientStore::TryGet, py::call_guard<py::gil_scoped_release>())
      .def("put", &ClientStore::Put, py::call_guard<py::gil_scoped_release>());
  // For the client, which must not exist yet.
  m.def("set_client_store", [](std::shared_ptr<ClientStore> store) {
    TORCH_CHECK(!trace::Runtime::Get().started(), "the device has been used already");
    trace::Runtime::Get().SetStore(std::move(store));
  });
  using Options = c10::intrusive_ptr<GroupOptions>;
  py::class_<GroupOptions, c10d::Backend::Options, Options>(m, "GroupOptions")
      .def("__deepcopy__", [](const GroupOptions& self, const py::object&) {
        return c10::make_intrusive<GroupOptions>(self);
      });
  py::class_<ProcessGroup, c10d::Backend, c10::intrusive_ptr<ProcessGroup>>(m, "ProcessGroup")
      .def(py::init([](const Store& store, int rank, int size, std::chrono::milliseconds timeout,
                       const std::string& name, std::vector<uint64_t> global_ranks,
                       py::function host_backend, bool is_world, bool described) {
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
             // The other ranks may be threads of this process.
             py::gil_scoped_release release;
             return c10::make_intrusive<ProcessGroup>(store, rank, size, std::move(options),
                                                      std::move(factory), is_world, described);
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("name"),
           py::arg("global_ranks"), py::arg("host_backend"), py::arg("is_world") = false,
           py::arg("described") = false)
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
