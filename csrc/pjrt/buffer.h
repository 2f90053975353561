#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "pjrt/event.h"
#include "pjrt/plugin.h"

namespace torch_tpu::pjrt {

// Bytes that one element of a PJRT buffer type takes in host memory (4-bit and 2-bit ones: a byte).
// Zero for tokens and types unknown here.
size_t ByteSize(PJRT_Buffer_Type type);

// Its name as StableHLO and error messages spell it: "f32", "bf16", "pred".
const char* TypeName(PJRT_Buffer_Type type);

// Owns one PJRT buffer. Movable; thread-safe for concurrent const use. The client must outlive it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Plugin* plugin, PJRT_Buffer* buffer) : plugin_(plugin), buffer_(buffer) {}
  Buffer(Buffer&& other) noexcept : plugin_(other.plugin_), buffer_(other.buffer_) {
    other.buffer_ = nullptr;
  }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { Reset(); }

  explicit operator bool() const { return buffer_ != nullptr; }
  PJRT_Buffer* raw() const { return buffer_; }
  void Reset();
  // Forgets the buffer without freeing it.
  void Abandon() { buffer_ = nullptr; }

  PJRT_Buffer_Type type() const;
  std::vector<int64_t> dims() const;
  size_t on_device_bytes() const;
  PJRT_Device* device() const;
  bool deleted() const;  // donated or freed

  // Blocks until the contents are there; throws what went wrong while computing them.
  void Await() const;
  bool IsReady() const;  // also true if the computation failed
  Event ReadyEvent() const;

  // Copies the contents, dense row-major, to `destination` of `bytes` bytes. Blocks.
  void ToHost(void* destination, size_t bytes) const;
  // Starts the copy; `destination` must live until the event is ready.
  Event ToHostAsync(void* destination, size_t bytes) const;
  // Where the buffer's memory is ordinary host memory (the CPU plugins), its address, valid while
  // the buffer lives and is not donated, with the contents already there (awaits); else nullptr.
  const void* HostPointer() const;

  Buffer CopyTo(PJRT_Device* device) const;

 private:
  const Plugin* plugin_ = nullptr;
  PJRT_Buffer* buffer_ = nullptr;
};

}  // namespace torch_tpu::pjrt
