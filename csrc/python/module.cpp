#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>

#include "aten/dispatch.h"
#include "aten/errors.h"
#include "aten/fallback.h"
#include "aten/generator.h"
#include "aten/guard.h"
#include "aten/hooks.h"
#include "aten/python_hooks.h"
#include "aten/registration.h"
#include "aten/storage.h"
#include "lowering/rule.h"
#include "python/distributed.h"
#include "python/graph.h"
#include "python/hooks.h"
#include "python/program.h"
#include "python/topology.h"
#include "trace/compile_log.h"
#include "trace/loaded_operations.h"
#include "trace/operation.h"
#include "trace/runtime.h"
#include "trace/trace.h"

namespace py = pybind11;

namespace torch_tpu::python {
namespace {

using aten::DeviceAt;
using trace::Runtime;

py::dict PluginInfo() {
  Runtime& runtime = Runtime::Get();
  py::dict info;
  const auto choice = aten::Guarded([&] { return runtime.Choice(); });
  info["path"] = choice.path;
  switch (choice.source) {
    case pjrt::PluginChoice::Source::kEnvironment:
      info["source"] = "environment";
      break;
    case pjrt::PluginChoice::Source::kTpu:
      info["source"] = "tpu";
      break;
    case pjrt::PluginChoice::Source::kCpuPackage:
      info["source"] = "cpu";
      break;
  }
  info["loaded"] = runtime.started();
  aten::Guarded([&] { runtime.client(); });
  const pjrt::Client& client = runtime.client();
  info["api_version"] =
      py::make_tuple(client.plugin().major_version(), client.plugin().minor_version());
  info["platform"] = client.platform_name();
  info["platform_version"] = client.platform_version();
  py::dict attributes;
  for (const auto& [name, value] : client.plugin().attributes()) attributes[name.c_str()] = value;
  info["attributes"] = attributes;
  py::list devices;
  for (int i = 0; i < runtime.DeviceCount(); ++i) {
    devices.append(runtime.device(i).pjrt().description());
  }
  info["devices"] = devices;
  return info;
}

// Waits for queued launches, so other threads may need the GIL.
trace::MemoryCounts MemoryOf(int index) {
  py::gil_scoped_release release;
  return DeviceAt(static_cast<c10::DeviceIndex>(index)).memory();
}

py::dict MemoryStats(int index) {
  const trace::MemoryCounts m = MemoryOf(index);
  py::dict stats;
  stats["allocated_bytes.all.current"] = m.allocated;
  stats["allocated_bytes.all.peak"] = m.peak;
  stats["allocated_bytes.all.allocated"] = m.total_allocated;
  stats["allocated_bytes.all.freed"] = m.total_freed;
  stats["allocation.all.current"] = m.buffers;
  stats["allocation.all.peak"] = m.peak_buffers;
  stats["allocation.all.allocated"] = m.total_buffers;
  stats["allocation.all.freed"] = m.freed_buffers;
  stats["num_ooms"] = m.out_of_memory;
  if (auto plugin = DeviceAt(static_cast<c10::DeviceIndex>(index)).pjrt().memory_stats()) {
    stats["plugin.bytes_in_use"] = plugin->bytes_in_use;
    if (plugin->peak_bytes_in_use) stats["plugin.peak_bytes_in_use"] = *plugin->peak_bytes_in_use;
    if (plugin->bytes_limit) stats["plugin.bytes_limit"] = *plugin->bytes_limit;
  }
  return stats;
}

py::list FallbackList() {
  py::list list;
  for (const auto& record : aten::Fallbacks()) {
    py::dict entry;
    entry["op"] = record.op;
    entry["count"] = record.count;
    entry["where"] = record.where;
    list.append(entry);
  }
  return list;
}

py::dict Compilations() {
  const auto compiled = trace::Compilations();
  const auto dispatched = aten::Dispatches();
  py::dict counts;
  counts["count"] = compiled.count;
  counts["from_disk"] = compiled.from_disk;
  counts["from_memory"] = compiled.from_memory;
  counts["loaded"] = trace::LoadedOperations::Get().count();
  counts["unloaded"] = trace::LoadedOperations::Get().unloaded();
  counts["seconds"] = compiled.seconds;
  counts["hits"] = dispatched.hits;
  counts["misses"] = dispatched.misses;
  return counts;
}

py::list CompileLog(bool clear) {
  py::list log;
  for (const trace::CompileRecord& record : trace::CompileLog(clear)) {
    py::dict entry;
    entry["number"] = record.number;
    entry["operation"] = record.operation;
    entry["source"] = trace::Name(record.source);
    entry["seconds"] = record.seconds;
    entry["building"] = record.building;
    entry["loading"] = record.loading;
    entry["compiling"] = record.compiling;
    entry["operations"] = record.operations;
    entry["reason"] = record.reason;
    entry["where"] = record.where;
    log.append(std::move(entry));
  }
  return log;
}

trace::Mode ModeFromName(const std::string& name) {
  if (name == "strict") return trace::Mode::kStrict;
  if (name == "debug") return trace::Mode::kDebug;
  throw py::value_error("eager mode must be \"strict\" or \"debug\", got \"" + name + "\"");
}

aten::FallbackPolicy PolicyFromName(const std::string& name) {
  if (name == "warn") return aten::FallbackPolicy::kWarn;
  if (name == "silent") return aten::FallbackPolicy::kSilent;
  if (name == "error") return aten::FallbackPolicy::kError;
  throw py::value_error("fallback policy must be \"warn\", \"silent\" or \"error\", got \"" + name +
                        "\"");
}

const char* PolicyName() {
  switch (aten::GetFallbackPolicy()) {
    case aten::FallbackPolicy::kWarn:
      return "warn";
    case aten::FallbackPolicy::kSilent:
      return "silent";
    case aten::FallbackPolicy::kError:
      return "error";
  }
  return "";
}

}  // namespace
}  // namespace torch_tpu::python

PYBIND11_MODULE(_C, m) {
  using namespace torch_tpu;          // NOLINT
  using namespace torch_tpu::python;  // NOLINT
  const auto device = [](int index) { return static_cast<c10::DeviceIndex>(index); };

  aten::Hooks() = {&Decompose, &SourceLine, &Warn};
  aten::RegisterHooks();
  aten::RegisterOperators();

  m.def(
      "configure",
      [](std::optional<std::string> cpu, std::optional<std::string> libtpu) {
        Runtime::Get().Configure(std::move(cpu), std::move(libtpu));
      },
      py::arg("cpu_plugin").none(true), py::arg("libtpu").none(true));
  m.def("is_available", [] { return Runtime::Get().DeviceCount() > 0; });
  m.def("device_count", [] { return Runtime::Get().DeviceCount(); });
  m.def("current_device", [] { return static_cast<int>(aten::CurrentDevice()); });
  m.def("set_device", [=](int index) { aten::ExchangeDevice(device(index)); });
  m.def("exchange_device",
        [=](int index) { return static_cast<int>(aten::ExchangeDevice(device(index))); });
  m.def("synchronize", [=](int index) {
    py::gil_scoped_release release;
    aten::Guarded([&] { DeviceAt(device(index)).Synchronize(); });
  });
  m.def("device_kind", [=](int index) { return DeviceAt(device(index)).pjrt().kind(); });
  m.def("device_description",
        [=](int index) { return DeviceAt(device(index)).pjrt().description(); });
  m.def("plugin_info", &PluginInfo);
  m.def("tpu_present", &pjrt::TpuPresent, py::arg("sysfs_root") = "/sys",
        py::arg("dev_root") = "/dev");
  m.def("in_bad_fork", [] { return Runtime::Get().InBadFork(); });

  m.def("memory_allocated", [](int index) { return MemoryOf(index).allocated; });
  m.def("max_memory_allocated", [](int index) { return MemoryOf(index).peak; });
  using ReleaseGil = py::call_guard<py::gil_scoped_release>;
  m.def(
      "reset_peak_memory_stats", [=](int index) { DeviceAt(device(index)).ResetPeak(); },
      ReleaseGil());
  m.def(
      "reset_accumulated_memory_stats", [=](int index) { DeviceAt(device(index)).ResetTotals(); },
      ReleaseGil());
  m.def("memory_stats", &MemoryStats);
  m.def(
      "memory_info", [=](int index) { return aten::DeviceMemoryInfo(device(index)); },
      ReleaseGil());
  m.def("empty_cache", [] {});

  m.def("default_generator", [=](int index) {
    return py::reinterpret_steal<py::object>(
        THPGenerator_initDefaultGenerator(aten::DefaultGenerator(device(index))));
  });

  m.def("get_eager_mode",
        [] { return trace::CurrentMode() == trace::Mode::kDebug ? "debug" : "strict"; });
  m.def("set_eager_mode", [](const std::string& name) { trace::SetMode(ModeFromName(name)); });
  m.def("compilations", &Compilations);
  m.def("compile_log", &CompileLog, py::arg("clear"));
  m.def("cache_info", [] {
    trace::DiskCache::Info info;
    {
      py::gil_scoped_release release;
      info = Runtime::disk_cache().info();
    }
    py::dict dict;
    dict["directory"] = info.directory;
    dict["unusable"] = info.why_unusable.empty() ? py::none() : py::cast(info.why_unusable);
    dict["entries"] = info.entries;
    dict["bytes"] = info.bytes;
    dict["limit"] = info.limit;
    dict["hits"] = info.hits;
    dict["misses"] = info.misses;
    dict["stored"] = info.stored;
    return dict;
  });
  m.def("load_cached", [](const std::string& key) -> std::optional<py::bytes> {
    std::optional<std::string> found;
    {
      py::gil_scoped_release release;
      found = Runtime::disk_cache().Load(key);
    }
    if (!found) return std::nullopt;
    return py::bytes(*found);
  });
  m.def(
      "store_cached",
      [](const std::string& key, const std::string& contents) {
        Runtime::disk_cache().Store(key, contents);
      },
      ReleaseGil());
  m.def(
      "clear_cache", [] { Runtime::disk_cache().Clear(); }, ReleaseGil());
  m.def("fallbacks", &FallbackList);
  m.def("clear_fallbacks", &aten::ClearFallbacks);
  m.def("get_fallback_policy", &PolicyName);
  m.def("set_fallback_policy",
        [](const std::string& name) { aten::SetFallbackPolicy(PolicyFromName(name)); });
  m.def("served_operators", &aten::ServedOperators);
  m.def("rule_kinds", [] {
    std::vector<std::pair<std::string, unsigned>> kinds;
    for (const lowering::Rule& rule : lowering::Registry::Get().rules()) {
      kinds.emplace_back(rule.op, rule.kinds);
    }
    return kinds;
  });
  BindTopology(m);
  BindDistributed(m);
  BindGraph(m);
  BindProgram(m);
}
