#pragma once

#include <cstddef>
#include <mutex>
#include <new>
#include <vector>

#include "trace/spin_lock.h"

namespace torch_tpu::trace {

// Memory of objects of one type that come and go with every operator. Each thread keeps what it
// freed; a thread that frees more than it makes hands chains of blocks to those that make more.
template <class T, size_t kChain = 64>
class FreeList {
 public:
  static void* Take() {
    Local& mine = local();
    if (mine.first == nullptr) mine.first = shared().Take(&mine.count);
    if (mine.first == nullptr) return ::operator new(sizeof(T));
    Block* block = mine.first;
    mine.first = block->next;
    --mine.count;
    return block;
  }
  static void Give(void* memory) {
    if (gone) return ::operator delete(memory);
    Local& mine = local();
    if (mine.count == 2 * kChain) {
      Block* last = mine.first;
      for (size_t i = 1; i < kChain; ++i) last = last->next;
      Block* chain = mine.first;
      mine.first = last->next;
      last->next = nullptr;
      mine.count -= kChain;
      shared().Give(chain);
    }
    mine.first = new (memory) Block{mine.first};
    ++mine.count;
  }

 private:
  struct Block {
    Block* next;
  };
  static_assert(sizeof(T) >= sizeof(Block));
  static void Delete(Block* block) {
    while (block != nullptr) {
      Block* next = block->next;
      ::operator delete(block);
      block = next;
    }
  }
  struct Local {
    ~Local() {
      gone = true;
      Delete(first);
    }
    Block* first = nullptr;
    size_t count = 0;
  };
  struct Shared {
    Block* Take(size_t* count) {
      std::lock_guard guard(lock);
      if (chains.empty()) return nullptr;
      Block* chain = chains.back();
      chains.pop_back();
      *count = kChain;
      return chain;
    }
    void Give(Block* chain) {
      {
        std::lock_guard guard(lock);
        if (chains.size() < kMostChains) {
          chains.push_back(chain);
          return;
        }
      }
      Delete(chain);
    }
    static constexpr size_t kMostChains = 64;
    SpinLock lock;
    std::vector<Block*> chains;
  };
  static Local& local() {
    thread_local Local local;
    return local;
  }
  static Shared& shared() {
    static auto* shared = new Shared;  // threads may end after statics do
    return *shared;
  }
  // Objects may outlive their thread's list while the thread ends.
  static thread_local bool gone;
};

template <class T, size_t kChain>
thread_local bool FreeList<T, kChain>::gone = false;

}  // namespace torch_tpu::trace
