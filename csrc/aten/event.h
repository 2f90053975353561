#pragma once

#include <c10/core/Device.h>

#include <memory>

namespace torch_tpu::aten {

// A point in a device's work: complete when everything enqueued before it is. Recording again
// starts anew.
class Event {
 public:
  void Record(c10::DeviceIndex device);
  bool Query() const;  // also true if never recorded
  void Synchronize() const;
  // Milliseconds between the completion of two recorded events.
  double ElapsedMilliseconds(const Event& end) const;

 private:
  struct Recorded;
  std::shared_ptr<Recorded> recorded_;
};

}  // namespace torch_tpu::aten
