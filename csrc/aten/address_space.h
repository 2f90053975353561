#pragma once

#include <cstddef>
#include <cstdint>

namespace torch_tpu::aten {

// Addresses for storages: reserved, never mapped, so that PyTorch's overlap checks work on data_ptr
// and a stray access faults instead of reading something. Thread-safe.
class AddressSpace {
 public:
  static AddressSpace& Get();
  // Ranges come in powers of two from 64 bytes up; freed ones are reused by class.
  static constexpr int kClasses = 48;
  static int ClassOf(size_t bytes);        // throws OutOfMemoryError for sizes beyond all classes
  static size_t ClassBytes(size_t bytes);  // the size a range of `bytes` really has
  // A unique range of at least `bytes` bytes, 64-byte aligned, never null.
  void* Take(size_t bytes);
  void Give(void* address, size_t bytes);
  bool Contains(const void* address) const;

 private:
  AddressSpace();
  uintptr_t base_ = 0;
  size_t size_ = 0;
};

}  // namespace torch_tpu::aten
