#include "distributed/partitions.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>

#include "trace/device.h"
#include "trace/runtime.h"
#include "trace/signature.h"

namespace torch_tpu::distributed {
namespace {

const Loaded& Load(const SpmdProgram& program, const std::vector<int>& device_ids) {
  static auto* cache = new trace::SignatureCache<Loaded>;
  trace::Signature signature;
  signature.Clear();
  signature.Add(static_cast<uint64_t>(program.kind) | static_cast<uint64_t>(program.reduce) << 8 |
                static_cast<uint64_t>(program.root) << 32);
  signature.Add(reinterpret_cast<uint64_t>(trace::Intern(program.input)));
  signature.Add(reinterpret_cast<uint64_t>(trace::Intern(program.output)));
  for (int id : device_ids) signature.Add(static_cast<uint64_t>(id));
  return cache->FindOrMake(signature, [&] {
    trace::Runtime& runtime = trace::Runtime::Get();
    auto executable = runtime
                          .Compile(program.Module(runtime.platform()),
                                   trace::Runtime::ProgramSize::kGraph, device_ids)
                          .executable;
    std::vector<int> ids = executable->device_ids();
    return Loaded{std::move(executable), std::move(ids)};
  });
}

}  // namespace

std::vector<Values> RunPartitions(const Loaded& program, const std::vector<trace::Device*>& devices,
                                  const std::vector<Values>& arguments,
                                  const std::vector<const trace::Type*>& types,
                                  const std::string& producer, std::span<const int64_t> donatable) {
  // Programs with devices in common must come to all of them in one order.
  static auto* order = new std::mutex;
  const std::vector<int>& ids = program.device_ids;
  TORCH_CHECK(ids.size() == devices.size(), "tpu_dist: the program has ", ids.size(),
              " devices of this process, not ", devices.size());
  std::vector<size_t> position(devices.size());  // in the program's order
  std::vector<std::vector<PJRT_Buffer*>> buffers(devices.size()), outputs;
  for (size_t i = 0; i < devices.size(); ++i) {
    const auto it = std::find(ids.begin(), ids.end(), devices[i]->pjrt().id());
    TORCH_CHECK(it != ids.end(), "tpu_dist: a tensor is on another device than its rank's");
    position[i] = it - ids.begin();
    for (const auto& value : arguments[i]) buffers[position[i]].push_back(value->raw());
  }
  // XLA:CPU's collectives hold a thread of its pool each until all have come. Of two programs at
  // once neither might get all it needs, nor one whose arguments are still computed by the pool.
  const bool holds_threads = trace::Runtime::Get().platform() == stablehlo::Platform::kCpu;
  if (holds_threads) {
    for (const Values& values : arguments) {
      for (const auto& value : values) value->buffer().Await();
    }
  }
  std::vector<int64_t> keep;
  std::vector<trace::Value*> donated;
  const size_t count = arguments.empty() ? 0 : arguments[0].size();
  for (int64_t p = 0; p < static_cast<int64_t>(count); ++p) {
    const auto is_alone = [p](const Values& values) { return values[p]->unique_owner(); };
    if (std::ranges::find(donatable, p) != donatable.end() &&
        std::ranges::all_of(arguments, is_alone)) {
      for (const Values& values : arguments) donated.push_back(values[p].get());
    } else {
      keep.push_back(p);
    }
  }
  std::vector<Values> results(devices.size());
  std::lock_guard lock(*order);
  for (trace::Value* value : donated) value->BeginDonation();
  try {
    program.executable->ExecutePartitions(buffers, outputs, keep);
  } catch (...) {
    for (trace::Value* value : donated) value->EndDonation(false);
    throw;
  }
  for (trace::Value* value : donated) value->EndDonation(true);
  for (size_t i = 0; i < devices.size(); ++i) {
    for (size_t k = 0; k < types.size(); ++k) {
      results[i].push_back(devices[i]->Adopt(types[k], outputs[position[i]][k], &producer));
    }
  }
  if (holds_threads) {
    for (const Values& values : results) {
      for (const auto& value : values) value->buffer().Await();
    }
  }
  return results;
}

Values RunSpmd(const SpmdProgram& program, const std::vector<int>& device_ids,
               const Values& values) {
  static const auto* producer = new std::string("tpu_dist");
  std::vector<trace::Device*> devices;
  std::vector<Values> arguments;
  for (const auto& value : values) {
    devices.push_back(&value->device());
    arguments.push_back({value});
  }
  Values results;
  for (Values& of_device : RunPartitions(Load(program, device_ids), devices, arguments,
                                         {trace::Intern(program.output)}, *producer)) {
    results.push_back(std::move(of_device[0]));
  }
  return results;
}

}  // namespace torch_tpu::distributed
