#pragma once

#include <functional>
#include <optional>

#include "pjrt/plugin.h"

namespace torch_tpu::pjrt {

// Owns one PJRT event.
class Event {
 public:
  Event() = default;
  Event(const Plugin* plugin, PJRT_Event* event) : plugin_(plugin), event_(event) {}
  Event(Event&& other) noexcept : plugin_(other.plugin_), event_(other.event_) {
    other.event_ = nullptr;
  }
  Event& operator=(Event&& other) noexcept;
  ~Event() { Reset(); }
  explicit operator bool() const { return event_ != nullptr; }
  void Reset();

  bool IsReady() const;
  void Await() const;  // throws the event's error
  // Called once, from any thread (at once if the event is ready), with the error if there is one.
  // The event object may be gone by then. The callback must not throw. If registering it fails,
  // this throws and the callback is not called.
  void OnReady(std::function<void(std::optional<Error>)> callback) const;

 private:
  const Plugin* plugin_ = nullptr;
  PJRT_Event* event_ = nullptr;
};

}  // namespace torch_tpu::pjrt
