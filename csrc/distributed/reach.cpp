#include "distributed/reach.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>
#include <sstream>

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

// Where a rank is, as it says so to the others: three words.
struct Place {
  std::string process;
  int device_id = 0;  // global
  std::string name;   // for the group, if this is rank 0
};

std::vector<Place> Exchange(c10d::Store& store, int rank, int size, const Place& mine) {
  const auto key = [](int r) { return "tpu_dist/place/" + std::to_string(r); };
  const std::string text = mine.process + " " + std::to_string(mine.device_id) + " " + mine.name;
  store.set(key(rank), std::vector<uint8_t>(text.begin(), text.end()));
  std::vector<Place> all(size);
  for (int r = 0; r < size; ++r) {
    const std::vector<uint8_t> said = store.get(key(r));
    std::istringstream(std::string(said.begin(), said.end())) >> all[r].process >>
        all[r].device_id >> all[r].name;
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
  trace::Runtime& runtime = trace::Runtime::Get();
  const bool tpu = runtime.client().platform_name() != "cpu";
  const auto places = Exchange(store, rank, size,
                               {.process = ProcessName(),
                                .device_id = runtime.device(device).pjrt().id(),
                                .name = std::to_string(std::random_device()()) + "/" +
                                        std::to_string(std::random_device()())});
  Reach reach{.name = places[0].name, .one_process = true};
  std::set<int> distinct;
  for (const Place& place : places) {
    reach.one_process &= place.process == places[0].process;
    reach.device_ids.push_back(place.device_id);
    distinct.insert(place.device_id);
  }
  if (!reach.one_process && !tpu) {
    TORCH_CHECK(transport != "xla",
                "TORCH_TPU_TRANSPORT=xla: the CPU's programs do not reach other processes");
    return std::nullopt;
  }
  if (static_cast<int>(distinct.size()) != size) {
    TORCH_CHECK(transport != "xla",
                "TORCH_TPU_TRANSPORT=xla: every rank needs a device of its own; call "
                "torch.tpu.set_device() before making the group");
    return std::nullopt;
  }
  return reach;
}

}  // namespace torch_tpu::distributed
