#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

// The registry's macro wants its own namespace.
namespace c10d {
namespace {

// Times DistributedDataParallel's phases by the host's clock, when it starts and ends them: the
// device computes behind, and to wait for it would cost what is to be measured.
class TpuTimer final : public Timer {
 public:
  explicit TpuTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto from = getTimestamp(start), to = getTimestamp(end);
    if (!from || !to || *to < *from) return std::nullopt;
    return *to - *from;
  }
};

C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::DeviceType::PrivateUse1, TpuTimer);

}  // namespace
}  // namespace c10d
