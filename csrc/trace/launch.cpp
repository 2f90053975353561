#include "trace/launch.h"

#include <sched.h>

#include <chrono>
#include <cstdlib>
#include <string_view>

#include "trace/device.h"
#include "trace/operation.h"

namespace torch_tpu::trace {
namespace {

int64_t Now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }  // ns

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool ThreadWanted() {
  static const bool wanted = [] {
    const char* text = std::getenv("TORCH_TPU_LAUNCH_THREAD");
    if (text != nullptr && std::string_view(text) == "0") return false;
    return std::thread::hardware_concurrency() > 1;
  }();
  return wanted;
}

// Launches closer than this follow one another closely; that many of them wake the thread, and it
// looks for work that long before it sleeps.
constexpr int64_t kCloseNanoseconds = 100'000;
constexpr int kBurst = 8;
constexpr int64_t kLookNanoseconds = 300'000;

// Hands the launch to the plugin and fills in its outputs; throws what the plugin refuses.
void LaunchNow(Device& device, Launch& launch) {
  Operation& operation = *launch.operation;
  c10::SmallVector<PJRT_Buffer*, 16> arguments;
  for (const ValuePtr& argument : launch.arguments) arguments.push_back(argument->raw());
  c10::SmallVector<int64_t, 4> keep;
  c10::SmallVector<Value*, 4> donated;
  for (int64_t position : operation.donatable()) {
    const ValuePtr& argument = launch.arguments[position];
    if (launch.donate && argument->unique_owner()) {
      donated.push_back(argument.get());
    } else {
      keep.push_back(position);
    }
  }
  c10::SmallVector<PJRT_Buffer*, 16> outputs(operation.num_outputs());
  for (Value* value : donated) value->BeginDonation();
  try {
    operation.Execute(device, arguments.data(), arguments.size(), keep, outputs.data());
  } catch (...) {
    for (Value* value : donated) value->EndDonation(false);
    throw;
  }
  for (Value* value : donated) value->EndDonation(true);
  for (size_t i = 0; i < launch.outputs.size(); ++i) launch.outputs[i]->Fill(outputs[i]);
}

}  // namespace

bool LaunchQueue::Serve() {
  bool served = false;
  // Whoever pushed while another thread was about to stop serving relies on that one's second look.
  while (head_.load(std::memory_order_relaxed) != tail_.load() && !serving_.exchange(true)) {
    uint64_t head = head_.load(std::memory_order_relaxed);
    for (; head != tail_.load(std::memory_order_acquire); ++head) {
      Launch& launch = slots_[head % kCapacity];
      try {
        LaunchNow(device_, launch);
      } catch (const pjrt::Error& error) {
        for (const ValuePtr& output : launch.outputs) output->Fail(error);
      } catch (const std::exception& error) {
        const pjrt::Error failure(pjrt::Code::kInternal, error.what());
        for (const ValuePtr& output : launch.outputs) output->Fail(failure);
      }
      launch.arguments.clear();
      launch.outputs.clear();
      head_.store(head + 1, std::memory_order_release);
      served = true;
    }
    serving_.exchange(false);
  }
  return served;
}

void LaunchQueue::ServeHere() {
  Serve();
  if (!ThreadWanted()) return;
  const int64_t now = Now();
  const bool close = now - last_push_.exchange(now, std::memory_order_relaxed) < kCloseNanoseconds;
  if (!close) {
    burst_.store(0, std::memory_order_relaxed);
  } else if (burst_.fetch_add(1, std::memory_order_relaxed) == kBurst) {
    std::lock_guard guard(thread_mutex_);
    if (stop_.load()) return;
    if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
    wakes_.fetch_add(1);
    wakes_.notify_one();
  }
}

void LaunchQueue::Loop() {
  for (uint32_t seen = 0;;) {
    wakes_.wait(seen);
    seen = wakes_.load();
    if (stop_.load()) return;
    awake_.store(true);
    int64_t last = Now();
    for (int looks = 1; !stop_.load(std::memory_order_relaxed); ++looks) {
      if (Serve()) {
        last = Now();
      } else if (looks % 64 != 0) {
        Relax();
      } else {
        if (Now() - last > kLookNanoseconds) break;
        sched_yield();  // to the threads that compute
      }
    }
    awake_.store(false);
    burst_.store(0, std::memory_order_relaxed);
    Serve();  // what was pushed while it still seemed to be awake
  }
}

void LaunchQueue::HelpOrPause() {
  if (Serve()) return;
  for (int i = 0; i < 64; ++i) Relax();
  sched_yield();
}

void LaunchQueue::Await(const Value& value) {
  for (int looks = 1; !value.launched(); ++looks) {
    if (Serve()) continue;
    if (looks % 64 == 0) sched_yield();
    Relax();
  }
}

void LaunchQueue::Drain() {
  const uint64_t tail = tail_.load();
  for (int looks = 1; head_.load(std::memory_order_acquire) < tail; ++looks) {
    if (Serve()) continue;
    if (looks % 64 == 0) sched_yield();
    Relax();
  }
}

void LaunchQueue::Stop() {
  std::lock_guard guard(thread_mutex_);
  stop_.store(true);
  if (!thread_.joinable()) return;
  wakes_.fetch_add(1);
  wakes_.notify_one();
  thread_.join();
}

void LaunchQueue::Hold() {
  push_lock_.lock();
  while (head_.load(std::memory_order_acquire) != tail_.load()) HelpOrPause();
  while (serving_.exchange(true)) sched_yield();
}

void LaunchQueue::Release() {
  serving_.exchange(false);
  push_lock_.unlock();
}

void LaunchQueue::Pause() {
  while (serving_.exchange(true)) sched_yield();
}

void LaunchQueue::Resume() {
  serving_.exchange(false);
  Serve();  // what was pushed meanwhile
}

}  // namespace torch_tpu::trace
