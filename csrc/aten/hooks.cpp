#include "aten/hooks.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>

#include "aten/address_space.h"
#include "aten/generator.h"
#include "aten/guard.h"
#include "aten/resize.h"
#include "aten/storage.h"
#include "trace/runtime.h"

namespace torch_tpu::aten {
namespace {

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return trace::Runtime::Get().DeviceCount() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return trace::Runtime::Get().started(); }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(trace::Runtime::Get().DeviceCount());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { ExchangeDevice(device); }
  c10::DeviceIndex getCurrentDevice() const override { return CurrentDevice(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return ExchangeDevice(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return ExchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return DefaultGenerator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<PhiloxGenerator>(device < 0 ? CurrentDevice() : device);
  }
  at::Device getDeviceFromPtr(void* data) const override {
    TORCH_CHECK(AddressSpace::Get().Contains(data), "the pointer is not tpu memory");
    return {c10::DeviceType::PrivateUse1, CurrentDevice()};
  }
  // PJRT copies from any host memory, so ordinary memory serves where pinned memory is asked for; it
  // never claims to be pinned.
  bool isPinnedPtr(const void*) const override { return false; }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    ResizeStorage(*storage.unsafeGetStorageImpl(), bytes);
  }
};

}  // namespace

void RegisterHooks() {
  static auto* hooks = new Hooks;
  at::RegisterPrivateUse1HooksInterface(hooks);
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &Allocator::Get());
}

}  // namespace torch_tpu::aten
