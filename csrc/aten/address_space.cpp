#include "aten/address_space.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <array>
#include <bit>
#include <mutex>
#include <vector>

#include "trace/spin_lock.h"

namespace torch_tpu::aten {
namespace {

constexpr int kSmallestShift = 6;

struct Pool {
  trace::SpinLock lock;
  uintptr_t next = 0;
  std::array<std::vector<uintptr_t>, AddressSpace::kClasses> free;
};
Pool& pool() {
  static auto* pool = new Pool;
  return *pool;
}

}  // namespace

int AddressSpace::ClassOf(size_t bytes) {
  if (bytes <= (size_t{1} << kSmallestShift)) return 0;
  const int index = std::bit_width(bytes - 1) - kSmallestShift;
  TORCH_CHECK_WITH(OutOfMemoryError, index < kClasses, "tpu: tried to allocate ", bytes, " bytes");
  return index;
}

size_t AddressSpace::ClassBytes(size_t bytes) {
  return size_t{1} << (ClassOf(bytes) + kSmallestShift);
}

AddressSpace& AddressSpace::Get() {
  static auto* space = new AddressSpace;
  return *space;
}

AddressSpace::AddressSpace() {
  // Address space costs nothing but may be limited (ulimit -v): take what is to be had.
  for (size_t size = size_t{1} << 45; size >= size_t{1} << 30; size >>= 1) {
    void* base = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) continue;
    base_ = reinterpret_cast<uintptr_t>(base);
    size_ = size;
    pool().next = (base_ + 63) / 64 * 64;
    return;
  }
  TORCH_CHECK(false, "cannot reserve address space for tpu storages");
}

void* AddressSpace::Take(size_t bytes) {
  const int index = ClassOf(bytes);
  Pool& p = pool();
  std::lock_guard guard(p.lock);
  auto& free = p.free[index];
  if (!free.empty()) {
    const uintptr_t address = free.back();
    free.pop_back();
    return reinterpret_cast<void*>(address);
  }
  const size_t size = size_t{1} << (index + kSmallestShift);
  TORCH_CHECK_WITH(OutOfMemoryError, size <= base_ + size_ - p.next, "tpu: tried to allocate ",
                   bytes, " bytes");
  const uintptr_t address = p.next;
  p.next += size;
  return reinterpret_cast<void*>(address);
}

void AddressSpace::Give(void* address, size_t bytes) {
  Pool& p = pool();
  std::lock_guard guard(p.lock);
  p.free[ClassOf(bytes)].push_back(reinterpret_cast<uintptr_t>(address));
}

bool AddressSpace::Contains(const void* address) const {
  const auto value = reinterpret_cast<uintptr_t>(address);
  return value >= base_ && value - base_ < size_;
}

}  // namespace torch_tpu::aten
