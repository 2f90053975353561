#pragma once

#include <exception>
#include <string>

#include "distributed/collective.h"
#include "distributed/work.h"

namespace torch_tpu::distributed {

// Moves tensors between the ranks of one group. One exists for each group of two or more ranks.
//
// The contract of all calls, the one that c10d has on every device:
// - The inputs are taken at the call. Values are immutable, so what the program writes to an input
//   afterwards changes nothing, and it may go away.
// - From the call until its Work is complete (which Work.wait() and its future wait for), the
//   elements of the outputs belong to the collective: they read as before or as after, and what the
//   program writes there may be overwritten. Other elements of the same storages, such as the rest
//   of a flat buffer of which the output is a view, are untouched: results are written under the
//   storage's lock.
// - Calls return at once: they wait neither for the computation of the inputs nor for other ranks.
//   Work.wait() releases the GIL.
// - Collectives of a group run in the order they were called; every rank calls the same ones.
//   Messages between two ranks with one tag arrive in the order they were sent. Messages and
//   collectives do not wait for one another.
// - When a call fails, for whatever reason, the ranks of the group no longer agree: that and every
//   later call of the group fails, on all ranks, with the first failure's message.
class Transport {
 public:
  virtual ~Transport() = default;
  // Starts a collective; `work` completes when its outputs are there.
  virtual void Run(Collective collective, c10::intrusive_ptr<TpuWork> work) = 0;
  virtual void Send(const at::Tensor& tensor, int peer, int tag,
                    c10::intrusive_ptr<TpuWork> work) = 0;
  // From any rank if `peer` is negative; `work` learns which.
  virtual void Receive(const at::Tensor& tensor, int peer, int tag,
                       c10::intrusive_ptr<TpuWork> work) = 0;
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  // Throws what an earlier call failed with.
  virtual void RaiseFailure() const = 0;
  virtual bool failed() const = 0;
  // Fails everything that is under way or comes later, at once and on all ranks.
  virtual void Abort(const std::string& why) = 0;
  // Waits for the collectives that were started.
  virtual void Shutdown() = 0;
};

}  // namespace torch_tpu::distributed
