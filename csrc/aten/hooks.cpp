#include "aten/hooks.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "aten/generator.h"
#include "aten/guard.h"
#include "aten/host_allocator.h"
#include "aten/resize.h"
#include "aten/storage.h"
#include "trace/runtime.h"

namespace torch_tpu::aten {
namespace {

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return trace::Runtime::Get().DeviceCount() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return trace::Runtime::Get().started();
  }
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
    if (device < 0) device = CurrentDevice();
    device = DeviceMeant(device);
    return at::make_generator<PhiloxGenerator>(device);
  }
  at::Device getDeviceFromPtr(void* data) const override {
    const c10::DeviceIndex index = DeviceOfAddress(data);
    TORCH_CHECK(index >= 0, "the pointer ", data, " is not tpu memory");
    return {c10::DeviceType::PrivateUse1, index};
  }
  bool isPinnedPtr(const void* data) const override { return HostAllocator::Get().Contains(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &HostAllocator::Get(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    ResizeStorage(*storage.unsafeGetStorageImpl(), bytes);
  }
};

}  // namespace

void RegisterHooks() {
  static auto* hooks = new Hooks;
  at::RegisterPrivateUse1HooksInterface(hooks);
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &Allocator::Get());
  at::setHostAllocator(c10::DeviceType::PrivateUse1, &HostAllocator::Get());
}

}  // namespace torch_tpu::aten
