#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "pjrt/buffer.h"
#include "stablehlo/type.h"
#include "trace/free_list.h"
#include "trace/spin_lock.h"

namespace torch_tpu::trace {

class Device;
class Trace;
using stablehlo::DType;
using stablehlo::Type;

// The one copy of a type in this process; types are compared by address in signatures. Never freed.
const Type* Intern(const Type& type);

// A number known on the host: what a run-time scalar argument was made from. Captured traces bake
// it.
struct HostNumber {
  DType dtype = DType::kF32;
  // Real and imaginary part for floating and complex dtypes, integer for the others.
  double real = 0, imag = 0;
  int64_t integer = 0;
  bool operator==(const HostNumber&) const = default;
};

// An immutable array: a device buffer, the result of a launch that waits in its device's queue, or
// the pending result of a node of a trace being recorded. Thread-safe: after construction only the
// bookkeeping changes, and a launch fills the buffer in.
class Value final : public c10::intrusive_ptr_target {
 public:
  // A computed value. The buffer may still be filled asynchronously; `producer` names, for ever,
  // what fills it.
  Value(const Type* type, Device* device, pjrt::Buffer buffer,
        const std::string* producer = nullptr);
  // The result of a launch about to be queued.
  Value(const Type* type, Device* device, const std::string* producer);
  // Result `index` of node `node` of `trace` (node -1: placeholder number `index`).
  Value(const Type* type, Device* device, Trace* trace, int node, int index);
  ~Value() override;
  static void* operator new(size_t) { return FreeList<Value>::Take(); }
  static void operator delete(void* block) { FreeList<Value>::Give(block); }

  const Type* type() const { return type_; }
  Device& device() const { return *device_; }
  bool pending() const { return trace_ != nullptr; }
  // Waits for the launch, if need be, but not for the computation; throws if the launch failed.
  const pjrt::Buffer& buffer() const {
    if (C10_UNLIKELY(launch_.load(std::memory_order_acquire) != LaunchState::kDone)) AwaitLaunch();
    return buffer_;
  }
  PJRT_Buffer* raw() const { return buffer().raw(); }
  // False while the launch is in the queue.
  bool launched() const { return launch_.load(std::memory_order_acquire) != LaunchState::kQueued; }
  // What became of the launch.
  void Fill(PJRT_Buffer* buffer);
  void Fail(const pjrt::Error& error);
  // Where the contents are in ordinary host memory, once computed; else nullptr.
  const void* HostPointer() const;
  // Copies the contents, dense row-major, to the host. Blocks. Both throw what went wrong in
  // computing them, naming the operator.
  void ToHost(void* destination, size_t bytes) const;
  // Donation: an executable is about to take the buffer over, and nothing else may look at it any
  // more; this value must have no other owner. Then it either has or has not.
  void BeginDonation();
  void EndDonation(bool taken);

  Trace* trace() const { return trace_; }
  int node() const { return node_; }
  int index() const { return index_; }
  // From now on buffers are not freed: in a forked child the client that owns them has no threads,
  // and may hold locks for ever.
  static void AbandonBuffers();

  std::optional<HostNumber> number;
  // True if the caller holds the only reference.
  bool unique_owner() const {
    return c10::raw::intrusive_ptr::use_count(const_cast<Value*>(this)) == 1;
  }

 private:
  friend class Device;
  enum class LaunchState : uint8_t { kDone, kQueued, kFailed };
  void AwaitLaunch() const;
  const Type* type_;
  Device* device_;
  pjrt::Buffer buffer_;
  std::atomic<LaunchState> launch_{LaunchState::kDone};
  std::unique_ptr<const pjrt::Error> failure_;  // of the launch
  Trace* trace_ = nullptr;
  int node_ = -1, index_ = -1;
  int64_t bytes_ = -1;  // charged to the device; -1 before the launch and once given back
  const std::string* producer_ = nullptr;
  uint64_t sequence_ = 0;  // order of creation on the device
  // Links of the device's list of values not yet known to be computed.
  Value* previous_ = nullptr;
  Value* next_ = nullptr;
  bool linked_ = false;
};

using ValuePtr = c10::intrusive_ptr<Value>;

}  // namespace torch_tpu::trace
