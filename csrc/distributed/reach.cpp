#include "distributed/reach.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>

#include "trace/device.h"
#include "trace/runtime.h"

namespace torch_tpu::distributed {
namespace {

// "host/pid", and a number that two containers of one host differ in.
const std::string& ProcessName() {
  static const auto* name = [] {
    char host[256] = "";
    gethostname(host, sizeof(host) - 1);
    return new std::string(std::string(host) + "/" + std::to_string(getpid()) + "/" +
                           std::to_string(std::random_device()()));
  }();
  return *name;
}

// What each rank says under `topic`, by rank.
std::vector<std::string> Exchange(c10d::Store& store, const std::string& topic, int rank, int size,
                                  const std::string& mine) {
  const auto key = [&](int r) { return "tpu_dist/" + topic + "/" + std::to_string(r); };
  store.set(key(rank), std::vector<uint8_t>(mine.begin(), mine.end()));
  std::vector<std::string> all;
  for (int r = 0; r < size; ++r) {
    const std::vector<uint8_t> said = store.get(key(r));
    all.emplace_back(said.begin(), said.end());
  }
  return all;
}

}  // namespace

std::optional<Reach> FindReach(c10d::Store& store, int rank, int size) {
  const char* wanted = std::getenv("TORCH_TPU_TRANSPORT");
  const std::string transport = wanted != nullptr ? wanted : "";
  TORCH_CHECK_VALUE(transport.empty() || transport == "host" || transport == "xla",
                    "TORCH_TPU_TRANSPORT is host or xla, not ", transport);
  if (transport == "host") return std::nullopt;
  const int device =
      c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1)->getDevice().index();
  const std::vector<std::string> processes = Exchange(store, "process", rank, size, ProcessName());
  trace::Runtime& runtime = trace::Runtime::Get();
  Reach reach;
  reach.one_process = std::ranges::all_of(
      processes, [&](const std::string& process) { return process == processes[0]; });
  const bool tpu = runtime.client().platform_name() != "cpu";
  if (!reach.one_process && !tpu) {
    TORCH_CHECK(transport != "xla",
                "TORCH_TPU_TRANSPORT=xla: the CPU's programs do not reach other processes");
    return std::nullopt;
  }
  const auto ids =
      Exchange(store, "device", rank, size, std::to_string(runtime.device(device).pjrt().id()));
  std::set<int> distinct;
  for (const std::string& id : ids) {
    reach.device_ids.push_back(std::stoi(id));
    distinct.insert(reach.device_ids.back());
  }
  if (static_cast<int>(distinct.size()) != size) {
    TORCH_CHECK(transport != "xla",
                "TORCH_TPU_TRANSPORT=xla: every rank needs a device of its own; call "
                "torch.tpu.set_device() before making the group");
    return std::nullopt;
  }
  reach.name = Exchange(
      store, "name", rank, size,
      std::to_string(std::random_device()()) + "/" + std::to_string(std::random_device()()))[0];
  return reach;
}

}  // namespace torch_tpu::distributed
