#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <map>
#include <mutex>

namespace torch_tpu::aten {

// What pin_memory() gives for "tpu". PJRT copies from any host memory and does its own staging, so
// this is ordinary memory, remembered so that is_pinned() answers as programs expect.
class HostAllocator final : public at::HostAllocator {
 public:
  static HostAllocator& Get();
  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* destination, const void* source, size_t bytes) const override;
  // Whether `address` lies in memory handed out here and not yet freed.
  bool Contains(const void* address) const;

  // Copies hold their source and nothing is cached.
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override;
  void reset_accumulated_stats() override;
  void reset_peak_stats() override;

 private:
  static void Free(void* context);
  mutable std::mutex mutex_;
  std::map<uintptr_t, size_t> live_;  // address -> bytes
  at::HostStats stats_;
};

}  // namespace torch_tpu::aten
