#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "pjrt/executable.h"

namespace torch_tpu::trace {

class Operation;

// The operations whose executables are loaded. An executable of XLA:CPU takes a few memory
// mappings, of which a process has vm.max_map_count, and XLA ends the process when they are used
// up. So where the mappings become many the executables that were not used for longest are
// unloaded; an operation that comes again loads its own from the disk cache. TORCH_TPU_MAX_MAPPINGS
// stands for vm.max_map_count if it is set. Thread-safe.
class LoadedOperations {
 public:
  static LoadedOperations& Get();

  // The operation has loaded, or goes away. Called with the operation's own lock held or by the
  // last that knows of it.
  void Add(Operation* operation);
  void Remove(Operation* operation);
  // Distinct executables.
  int64_t count() const;
  // Executables unloaded so far.
  int64_t unloaded() const { return unloaded_.load(std::memory_order_relaxed); }

  // Before an executable is made: unloads others if there are too many mappings. Call without any
  // operation's lock, not while serving a launch queue.
  void MakeRoom();

  // A clock that ticks with each executable loaded. Operations note when they last ran.
  static uint32_t Now() { return clock_.load(std::memory_order_relaxed); }

 private:
  LoadedOperations();
  // Unloads the longest unused share of the executables, at least one; false if there is none.
  bool Unload(double share);

  alignas(64) static inline std::atomic<uint32_t> clock_{1};
  // Sets how many mappings are too many, and how many are few enough, where `others` are not ours.
  void DivideWhatIsLeft(int64_t others);

  alignas(64) int64_t limit_;  // of mappings; 0: none that matters
  int64_t high_ = 0, low_ = 0;
  std::mutex turn_;  // one thread makes room
  std::atomic<int64_t> loads_until_count_{8};
  std::atomic<int64_t> unloaded_{0};
  mutable std::mutex mutex_;
  std::unordered_set<Operation*> operations_;
};

}  // namespace torch_tpu::trace
