#include "aten/event.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "aten/storage.h"

namespace torch_tpu::aten {

struct Event::Recorded {
  std::mutex mutex;
  std::condition_variable changed;
  bool complete = false;
  std::chrono::steady_clock::time_point time;
};

void Event::Record(c10::DeviceIndex device) {
  recorded_ = std::make_shared<Recorded>();
  DeviceAt(device).OnIdle([recorded = recorded_] {
    std::lock_guard guard(recorded->mutex);
    recorded->complete = true;
    recorded->time = std::chrono::steady_clock::now();
    recorded->changed.notify_all();
  });
}

bool Event::Query() const {
  if (!recorded_) return true;
  std::lock_guard guard(recorded_->mutex);
  return recorded_->complete;
}

void Event::Synchronize() const {
  if (!recorded_) return;
  std::unique_lock guard(recorded_->mutex);
  recorded_->changed.wait(guard, [this] { return recorded_->complete; });
}

double Event::ElapsedMilliseconds(const Event& end) const {
  TORCH_CHECK(recorded_ && end.recorded_,
              "Both events must be recorded before calculating elapsed time.");
  TORCH_CHECK(Query() && end.Query(),
              "Both events must be completed before calculating elapsed time.");
  return std::chrono::duration<double, std::milli>(end.recorded_->time - recorded_->time).count();
}

}  // namespace torch_tpu::aten
