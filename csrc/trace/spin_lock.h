#pragma once

#include <atomic>
#include <thread>

namespace torch_tpu::trace {

// Held for tens of nanoseconds, or while one executable is enqueued; one byte in every storage.
class SpinLock {
 public:
  void lock() {
    for (int spins = 0; locked_.exchange(true, std::memory_order_acquire); ++spins) {
      if (spins > 16) std::this_thread::yield();
    }
  }
  bool try_lock() { return !locked_.exchange(true, std::memory_order_acquire); }
  void unlock() { locked_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> locked_{false};
};

}  // namespace torch_tpu::trace
