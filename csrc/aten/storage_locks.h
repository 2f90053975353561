#pragma once

#include <c10/util/SmallVector.h>

#include <algorithm>

#include "aten/storage.h"

namespace torch_tpu::aten {

// Locks of several storages, taken in address order so that two calls cannot wait for each other.
class StorageLocks {
 public:
  StorageLocks() = default;
  ~StorageLocks() { Unlock(); }
  StorageLocks(const StorageLocks&) = delete;
  StorageLocks& operator=(const StorageLocks&) = delete;

  // Before Lock; the same one more than once is fine.
  void Add(StorageState* state) { states_.push_back(state); }
  void Lock() {
    std::sort(states_.begin(), states_.end());
    states_.erase(std::unique(states_.begin(), states_.end()), states_.end());
    for (StorageState* state : states_) state->lock.lock();
  }
  bool Holds(StorageState* state) const {
    return states_.size() <= 8 ? std::find(states_.begin(), states_.end(), state) != states_.end()
                               : std::binary_search(states_.begin(), states_.end(), state);
  }
  // Storages locked, each counted once.
  size_t size() const { return states_.size(); }
  void Unlock() {
    for (StorageState* state : states_) state->lock.unlock();
    states_.clear();
  }

 private:
  c10::SmallVector<StorageState*, 4> states_;
};

}  // namespace torch_tpu::aten
