#pragma once

#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>

#include "trace/spin_lock.h"
#include "trace/value.h"

namespace torch_tpu::trace {

class Operation;

// One computation to be enqueued on a device.
struct Launch {
  Operation* operation = nullptr;  // its destructor waits for the queues
  bool donate = false;             // arguments that nothing else refers to may be overwritten
  c10::SmallVector<ValuePtr, 8> arguments;  // of the parameters that are used
  c10::SmallVector<ValuePtr, 4> outputs;    // results, then checks; filled in
};

// The computations of one device that wait for being enqueued. Enqueueing costs as much as all that
// PyTorch does for an operator, so that a second thread does it while operators follow one another
// closely. It serves as long as there is work and sleeps soon after; meanwhile, and where there is
// one processor only, whoever pushes a launch serves the queue as well. Launches are served in the
// order they were pushed. A launch that fails leaves failed values, of which the device tells at
// the next synchronisation.
class LaunchQueue {
 public:
  explicit LaunchQueue(Device* device) : device_(*device) {}
  ~LaunchQueue() { Stop(); }
  LaunchQueue(const LaunchQueue&) = delete;
  LaunchQueue& operator=(const LaunchQueue&) = delete;

  // `fill(Launch&)` writes the launch in place.
  template <class Fill>
  void Push(Fill&& fill) {
    {
      std::lock_guard guard(push_lock_);
      const uint64_t tail = tail_.load(std::memory_order_relaxed);
      while (tail - head_.load(std::memory_order_acquire) >= kCapacity) HelpOrPause();
      fill(slots_[tail % kCapacity]);
      tail_.store(tail + 1);  // before `awake_` is looked at
    }
    if (!awake_.load()) ServeHere();
  }
  // Returns when the value's launch has been served.
  void Await(const Value& value);
  // Returns when everything pushed before has been served.
  void Drain();
  // Ends the thread, if there is one.
  void Stop();
  // Around fork(): nothing is half done in the child.
  void Hold();
  void Release();
  // While paused nobody serves, and what is pushed waits.
  void Pause();
  void Resume();

 private:
  static constexpr size_t kCapacity = 128;
  // Serves what is there unless somebody else does. True if it served anything.
  bool Serve();
  void ServeHere();
  void HelpOrPause();
  void Loop();

  Device& device_;
  Launch slots_[kCapacity];
  alignas(64) SpinLock push_lock_;
  std::atomic<uint64_t> tail_{0};
  // When launches were last pushed without the thread, and how many followed one another closely.
  std::atomic<int64_t> last_push_{0};
  std::atomic<int> burst_{0};
  alignas(64) std::atomic<uint64_t> head_{0};
  std::atomic<bool> serving_{false};
  alignas(64) std::atomic<bool> awake_{false};
  std::atomic<uint32_t> wakes_{0};
  std::atomic<bool> stop_{false};
  std::mutex thread_mutex_;
  std::thread thread_;
};

}  // namespace torch_tpu::trace
