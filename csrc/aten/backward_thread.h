#pragma once

#include <c10/core/AutogradState.h>

namespace torch_tpu::aten {

// Has this thread's backward passes run on itself, once: a user's later choice by
// torch.autograd.set_multithreading_enabled stands. PyTorch's engine would hand them to a thread of
// the device, which serves devices whose operators block; ours only enqueue, and the two hand-overs
// of every backward pass cost more than the operators of a small model.
inline void RunBackwardOnThisThread() {
  thread_local bool done = false;
  c10::AutogradState& state = c10::AutogradState::get_tls_state();
  // Where something else has switched it off for a while, as AOTAutograd does, it comes back.
  if (done || !state.get_multithreading_enabled()) return;
  done = true;
  state.set_multithreading_enabled(false);
}

// Backward passes inside of a function that is being recorded are recorded too, on its thread.
class BackwardOnThisThread {
 public:
  BackwardOnThisThread() : before_(State().get_multithreading_enabled()) {
    State().set_multithreading_enabled(false);
  }
  ~BackwardOnThisThread() { State().set_multithreading_enabled(before_); }
  BackwardOnThisThread(const BackwardOnThisThread&) = delete;
  BackwardOnThisThread& operator=(const BackwardOnThisThread&) = delete;

 private:
  static c10::AutogradState& State() { return c10::AutogradState::get_tls_state(); }
  bool before_;
};

}  // namespace torch_tpu::aten
