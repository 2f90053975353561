#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "trace/spin_lock.h"

namespace torch_tpu::trace {

// The words that tell one signature from another: operator, dtypes, shapes, view recipes,
// structural arguments, kinds of scalars.
class Signature {
 public:
  void Clear() {
    words_.clear();
    hash_ = 0x243F6A8885A308D3ull;
  }
  void Add(uint64_t word) {
    words_.push_back(word);
    hash_ = (hash_ ^ word) * 0x9E3779B97F4A7C15ull;
    hash_ ^= hash_ >> 29;
  }
  uint64_t hash() const { return hash_; }
  const c10::SmallVectorImpl<uint64_t>& words() const { return words_; }

 private:
  c10::SmallVector<uint64_t, 64> words_;
  uint64_t hash_ = 0;
};

// Signature -> what is known of it. Entries are never moved or removed; finding one costs a probe
// and a comparison of the whole key. Thread-safe.
template <class Entry>
class SignatureCache {
 public:
  Entry* Find(const Signature& signature) const {
    std::lock_guard guard(lock_);
    return FindLocked(signature);
  }
  // Keeps the entry that came first if two threads made one.
  Entry* Insert(const Signature& signature, std::unique_ptr<Entry> entry) {
    std::lock_guard guard(lock_);
    if (Entry* existing = FindLocked(signature)) {
      // The loser may be running in another thread: keep it alive.
      retired_.push_back(std::move(entry));
      return existing;
    }
    if ((count_ + 1) * 2 > slots_.size()) Grow();
    Entry* raw = entry.get();
    Place(
        {signature.hash(), {signature.words().begin(), signature.words().end()}, std::move(entry)});
    ++count_;
    return raw;
  }
  // What `make` returns is kept where nothing is yet; no lock is held while it runs.
  template <class Make>
  Entry& FindOrMake(const Signature& signature, Make&& make) {
    if (Entry* found = Find(signature)) return *found;
    return *Insert(signature, std::make_unique<Entry>(make()));
  }
  size_t size() const {
    std::lock_guard guard(lock_);
    return count_;
  }

 private:
  struct Slot {
    uint64_t hash = 0;
    std::vector<uint64_t> words;
    std::unique_ptr<Entry> entry;
  };
  Entry* FindLocked(const Signature& signature) const {
    if (slots_.empty()) return nullptr;
    const size_t mask = slots_.size() - 1;
    for (size_t i = signature.hash() & mask;; i = (i + 1) & mask) {
      const Slot& slot = slots_[i];
      if (!slot.entry) return nullptr;
      if (slot.hash == signature.hash() && slot.words.size() == signature.words().size() &&
          std::memcmp(slot.words.data(), signature.words().data(),
                      slot.words.size() * sizeof(uint64_t)) == 0) {
        return slot.entry.get();
      }
    }
  }
  void Place(Slot slot) {
    const size_t mask = slots_.size() - 1;
    size_t i = slot.hash & mask;
    while (slots_[i].entry) i = (i + 1) & mask;
    slots_[i] = std::move(slot);
  }
  void Grow() {
    std::vector<Slot> old(slots_.empty() ? 1024 : slots_.size() * 2);
    old.swap(slots_);
    for (Slot& slot : old) {
      if (slot.entry) Place(std::move(slot));
    }
  }

  mutable SpinLock lock_;
  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<Entry>> retired_;
  size_t count_ = 0;
};

}  // namespace torch_tpu::trace
