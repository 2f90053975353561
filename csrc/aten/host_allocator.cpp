#include "aten/host_allocator.h"

#include <c10/core/impl/alloc_cpu.h>

#include <cstring>

namespace torch_tpu::aten {

HostAllocator& HostAllocator::Get() {
  static auto* allocator = new HostAllocator;
  return *allocator;
}

c10::DataPtr HostAllocator::allocate(size_t bytes) {
  if (bytes == 0) return {nullptr, c10::DeviceType::CPU};
  void* address = c10::alloc_cpu(bytes);
  std::lock_guard guard(mutex_);
  live_.emplace(reinterpret_cast<uintptr_t>(address), bytes);
  stats_.allocations.increase(1);
  stats_.allocated_bytes.increase(bytes);
  return {address, address, &Free, c10::DeviceType::CPU};
}

void HostAllocator::Free(void* context) {
  HostAllocator& self = Get();
  {
    std::lock_guard guard(self.mutex_);
    auto it = self.live_.find(reinterpret_cast<uintptr_t>(context));
    self.stats_.allocations.decrease(1);
    self.stats_.allocated_bytes.decrease(it->second);
    self.live_.erase(it);
  }
  c10::free_cpu(context);
}

void HostAllocator::copy_data(void* destination, const void* source, size_t bytes) const {
  std::memcpy(destination, source, bytes);
}

bool HostAllocator::Contains(const void* address) const {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  std::lock_guard guard(mutex_);
  auto it = live_.upper_bound(wanted);
  if (it == live_.begin()) return false;
  --it;
  return wanted - it->first < it->second;
}

at::HostStats HostAllocator::get_stats() {
  std::lock_guard guard(mutex_);
  return stats_;
}

void HostAllocator::reset_accumulated_stats() {
  std::lock_guard guard(mutex_);
  stats_.allocations.reset_accumulated();
  stats_.allocated_bytes.reset_accumulated();
}

void HostAllocator::reset_peak_stats() {
  std::lock_guard guard(mutex_);
  stats_.allocations.reset_peak();
  stats_.allocated_bytes.reset_peak();
}

}  // namespace torch_tpu::aten
