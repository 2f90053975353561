#include "distributed/serial_queue.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace torch_tpu::distributed {
namespace {

// Never destroyed: its threads sleep in it when the process ends.
struct Threads {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  size_t idle = 0;
};

Threads& AllThreads() {
  static auto* threads = new Threads;
  return *threads;
}

void Loop() {
  Threads& threads = AllThreads();
  std::unique_lock lock(threads.mutex);
  for (;;) {
    while (threads.tasks.empty()) {
      ++threads.idle;
      threads.changed.wait(lock);
      --threads.idle;
    }
    auto task = std::move(threads.tasks.front());
    threads.tasks.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it holds goes away before the lock is taken
    lock.lock();
  }
}

}  // namespace

void RunElsewhere(std::function<void()> task) {
  Threads& threads = AllThreads();
  std::lock_guard lock(threads.mutex);
  threads.tasks.push_back(std::move(task));
  // Idle threads that were woken for earlier tasks still count as idle.
  if (threads.idle < threads.tasks.size()) {
    std::thread(&Loop).detach();
  } else {
    threads.changed.notify_one();
  }
}

struct SerialQueue::State {
  std::mutex mutex;
  std::deque<std::function<void()>> tasks;
  bool served = false;
};

SerialQueue::SerialQueue() : state_(std::make_shared<State>()) {}

void SerialQueue::Push(std::function<void()> task) {
  {
    std::lock_guard lock(state_->mutex);
    state_->tasks.push_back(std::move(task));
    if (state_->served) return;
    state_->served = true;
  }
  RunElsewhere([state = state_] { Serve(state); });
}

void SerialQueue::Serve(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  while (!state->tasks.empty()) {
    auto task = std::move(state->tasks.front());
    state->tasks.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
  state->served = false;
}

}  // namespace torch_tpu::distributed
