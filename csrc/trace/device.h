#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "pjrt/client.h"
#include "trace/launch.h"
#include "trace/spin_lock.h"
#include "trace/value.h"

namespace torch_tpu::trace {

// Bytes and counts of live buffers, as far as this process allocated them.
struct MemoryCounts {
  int64_t allocated = 0, peak = 0, total_allocated = 0, total_freed = 0;
  int64_t buffers = 0, peak_buffers = 0, total_buffers = 0, freed_buffers = 0;
  int64_t out_of_memory = 0;
};

// A check that an asynchronous computation made: `ok` is a pred[] value.
struct PendingCheck {
  ValuePtr ok;
  std::string message;  // names the operator
  bool index_error;     // IndexError, else RuntimeError
};

// One device of the client: its memory accounting, the work in flight and the cache of scalars.
class Device {
 public:
  Device(int index, pjrt::Client* client, const pjrt::Device* device)
      : index_(index), client_(client), device_(device), queue_(this) {}

  int index() const { return index_; }
  pjrt::Client& client() const { return *client_; }
  const pjrt::Device& pjrt() const { return *device_; }
  LaunchQueue& queue() { return queue_; }

  ValuePtr FromHost(const Type* type, const void* data);
  // `done` runs when the bytes are not needed any more.
  ValuePtr FromHostAsync(const Type* type, const void* data, std::function<void()> done);
  ValuePtr Adopt(const Type* type, PJRT_Buffer* buffer, const std::string* producer);
  // 0-d value from a bounded cache by (dtype, number).
  ValuePtr Number(const HostNumber& number);

  // Waits for all work enqueued so far; failures in it are raised later.
  void AwaitLaunched();
  // Waits for all work enqueued so far, then raises the first failure in it, else the first failed
  // check.
  void Synchronize();
  // Raises the failure that is behind the error met in reading `value`: what was computed from a
  // failed result has failed as well.
  [[noreturn]] void RaiseFailureOf(const Value& value, const pjrt::Error& error);
  bool Idle();
  // Calls `done` once, when all work enqueued so far is complete.
  void OnIdle(std::function<void()> done);
  void AddCheck(PendingCheck check);
  // Reads the checks made so far; throws CheckFailed for the first that failed and forgets them.
  void RaiseFailedChecks();

  MemoryCounts memory();
  void ResetPeak();
  void ResetTotals();
  // Runs `allocate`, counting its failure for want of memory.
  template <class Function>
  decltype(auto) CountingOutOfMemory(Function&& allocate) {
    try {
      return allocate();
    } catch (const pjrt::Error& error) {
      if (error.code() == pjrt::Code::kResourceExhausted) CountOutOfMemory();
      throw;
    }
  }

 private:
  friend class Value;
  // Lists the value as in flight and charges its bytes; the reverse.
  void Add(Value* value);
  void Remove(Value* value);
  // Remove for a value that goes away: the work that computes it is still to be waited for.
  void Drop(Value* value);
  void RemoveLocked(Value* value);
  void UnlinkLocked(Value* value);
  void CountOutOfMemory();
  void NoteFailedLaunch(const Value& value, const pjrt::Error& error);
  // A computation not known to be complete.
  struct Work {
    std::shared_ptr<const pjrt::Event> ready;
    uint64_t sequence = 0;
    const Type* type = nullptr;
    const std::string* producer = nullptr;
  };
  Work WorkOf(const Value& value) const;
  // What is not complete; takes note of what has failed.
  std::vector<Work> InFlight();
  // True if complete; if it failed, takes note of that.
  bool IsCompleteLocked(const Work& work);
  void NoteFailureLocked(const Work& work, const pjrt::Error& error);
  void RaiseFailure();

  const int index_;
  pjrt::Client* const client_;
  const pjrt::Device* const device_;
  LaunchQueue queue_;
  SpinLock lock_;  // of the values in flight and the counts
  Value* first_ = nullptr;
  // Of values that went away before they were computed: the large ones' events, and the last small
  // one.
  std::vector<Work> dropped_;
  size_t prune_dropped_at_ = 64;
  pjrt::Buffer last_dropped_;
  uint64_t next_sequence_ = 0;
  // The earliest computation that failed since the last failure was raised.
  struct Failure {
    uint64_t sequence;
    pjrt::Error error;
  };
  std::optional<Failure> failure_;
  MemoryCounts memory_;
  std::mutex checks_mutex_;
  std::atomic<bool> has_checks_{false};
  std::vector<PendingCheck> checks_;
  static constexpr size_t kPruneChecksAt = 512;
  size_t prune_checks_at_ = kPruneChecksAt;
  struct NumberHash {
    size_t operator()(const HostNumber& n) const;
  };
  SpinLock numbers_lock_;
  std::unordered_map<HostNumber, ValuePtr, NumberHash> numbers_;
};

// A run-time check of an operator failed.
class CheckFailed : public std::runtime_error {
 public:
  CheckFailed(const std::string& message, bool index_error)
      : std::runtime_error(message), index_error(index_error) {}
  const bool index_error;
};

PJRT_Buffer_Type ToPjrt(DType dtype);

}  // namespace torch_tpu::trace
