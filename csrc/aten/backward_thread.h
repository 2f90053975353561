#pragma once

#include <c10/core/AutogradState.h>

namespace torch_tpu::aten {

// Has this thread's backward passes run on itself, once: a user's later choice by
// torch.autograd.set_multithreading_enabled stands. PyTorch's engine would hand them to a thread of
// the device, which serves devices whose operators block; ours only enqueue, and the two hand-overs
// of every backward pass cost more than the operators of a small model.
inline void RunBackwardOnThisThread() {
  thread_local bool done = false;
  if (done) return;
  done = true;
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

}  // namespace torch_tpu::aten
