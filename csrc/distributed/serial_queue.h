#pragma once

#include <functional>
#include <memory>

namespace torch_tpu::distributed {

// Runs `task` on another thread: an idle one that earlier tasks have left, else a new one. Tasks
// may block as long as they like; there is no limit at which one would have to wait for another's
// end. They must not throw.
void RunElsewhere(std::function<void()> task);

// Tasks that run one after another, in the order they were pushed, on threads of RunElsewhere. A
// thread is taken only while there are tasks. Thread-safe. Tasks may outlive the queue.
class SerialQueue {
 public:
  SerialQueue();
  void Push(std::function<void()> task);

 private:
  struct State;
  static void Serve(const std::shared_ptr<State>& state);
  std::shared_ptr<State> state_;
};

}  // namespace torch_tpu::distributed
