#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace torch_tpu::trace {

// Memory of objects of one type that come and go with every operator: each thread keeps what it
// freed.
template <class T, size_t kCapacity = 256>
class FreeList {
 public:
  static void* Take() {
    auto& blocks = local().blocks;
    if (blocks.empty()) return ::operator new(sizeof(T));
    void* block = blocks.back();
    blocks.pop_back();
    return block;
  }
  static void Give(void* block) {
    if (gone) return ::operator delete(block);
    auto& blocks = local().blocks;
    if (blocks.size() >= kCapacity) return ::operator delete(block);
    blocks.push_back(block);
  }

 private:
  struct Local {
    Local() { blocks.reserve(kCapacity); }
    ~Local() {
      gone = true;
      for (void* block : blocks) ::operator delete(block);
    }
    std::vector<void*> blocks;
  };
  static Local& local() {
    thread_local Local local;
    return local;
  }
  // Objects may outlive their thread's list while the thread ends.
  static thread_local bool gone;
};

template <class T, size_t kCapacity>
thread_local bool FreeList<T, kCapacity>::gone = false;

}  // namespace torch_tpu::trace
