#include "aten/guard.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>

#include "aten/errors.h"
#include "aten/event.h"
#include "aten/storage.h"
#include "lowering/call.h"
#include "trace/runtime.h"

namespace torch_tpu::aten {
namespace {

constexpr int kMaxDevices = 128;
constexpr auto kType = c10::DeviceType::PrivateUse1;

thread_local c10::DeviceIndex current_device = 0;
// Work runs in the order of its data whatever the stream; streams are names that events and guards
// pass around.
thread_local std::array<c10::StreamId, kMaxDevices> current_streams{};
std::atomic<c10::StreamId> last_stream{0};

c10::DeviceIndex IndexOf(c10::Device device) {
  return device.has_index() ? device.index() : current_device;
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, ExchangeDevice(device.index())};
  }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override { ExchangeDevice(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(trace::Runtime::Get().DeviceCount());
  }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    auto& supported = capability.capability_data.supported_scalar_types;
#define TPU_DTYPE(_1, name) supported.has_##name = lowering::IsSupported(c10::ScalarType::name);
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS(TPU_DTYPE)
#undef TPU_DTYPE
    return capability;
  }

  c10::Stream getStream(c10::Device device) const override {
    const c10::DeviceIndex index = IndexOf(device);
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, index), current_streams[index]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(kType, IndexOf(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, IndexOf(device)), ++last_stream);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    c10::Stream previous = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return previous;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<intptr_t>(stream.id()));
  }
  bool queryStream(const c10::Stream& stream) const override {
    return Guarded([&] { return DeviceAt(stream.device_index()).Idle(); });
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronizeDevice(stream.device_index());
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    Guarded([&] { DeviceAt(index < 0 ? current_device : index).Synchronize(); });
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag) const override {
    TORCH_CHECK(device < 0 || device == stream.device_index(), "Event device index ",
                static_cast<int>(device), " does not match recording stream's device index ",
                static_cast<int>(stream.device_index()), ".");
    if (*event == nullptr) *event = new Event;
    static_cast<Event*>(*event)->Record(stream.device_index());
  }
  // Every later operation already waits for the data it reads.
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<Event*>(event)->Query();
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) static_cast<Event*>(event)->Synchronize();
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr,
                "Both events must be recorded before calculating elapsed time.");
    return static_cast<Event*>(start)->ElapsedMilliseconds(*static_cast<Event*>(end));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Memory is not reused before what reads it is done, whatever the stream.
void RecordStream(at::Tensor&, c10::Stream) {}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("record_stream", &RecordStream); }

}  // namespace

c10::DeviceIndex CurrentDevice() { return current_device; }

c10::DeviceIndex ExchangeDevice(c10::DeviceIndex device) {
  const c10::DeviceIndex previous = current_device;
  if (device < 0 || device == previous) return previous;
  current_device = DeviceMeant(device);
  return previous;
}

c10::DeviceIndex DeviceMeant(c10::DeviceIndex device) {
  const int count = trace::Runtime::Get().DeviceCount();
  if (C10_LIKELY(device >= 0 && device < count)) return device;
  const char* local_rank = std::getenv("LOCAL_RANK");
  if (count == 1 && device > 0 && local_rank != nullptr && std::atoi(local_rank) == device) {
    return 0;
  }
  TORCH_CHECK(false, "invalid device ordinal: tpu:", static_cast<int>(device), ", but ", count,
              " tpu device(s) are available");
}

std::pair<size_t, size_t> DeviceMemoryInfo(c10::DeviceIndex index) {
  trace::Device& device = DeviceAt(index);
  if (auto stats = device.pjrt().memory_stats(); stats && stats->bytes_limit) {
    const auto limit = static_cast<size_t>(*stats->bytes_limit);
    return {limit - std::min(limit, static_cast<size_t>(stats->bytes_in_use)), limit};
  }
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t total = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page;
  const size_t free = static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * page;
  return {free, total};
}

}  // namespace torch_tpu::aten
