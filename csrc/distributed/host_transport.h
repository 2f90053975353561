#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <tuple>
#include <vector>

#include "distributed/byte_group.h"
#include "distributed/envelope.h"
#include "distributed/serial_queue.h"
#include "distributed/transport.h"
#include "distributed/watch.h"
#include "trace/value.h"

namespace torch_tpu::distributed {

// Transport through host memory and a c10d backend for CPU tensors (Gloo): for plugins whose
// devices do not reach those of other processes.
//
// Collectives run on one thread, messages of each (peer, tag) and direction on another, so that
// waiting for the device, the network and the copies all overlap with the program. Before data is
// sent the ranks exchange envelopes: nobody computes with what another call has sent.
class HostTransport final : public Transport, public std::enable_shared_from_this<HostTransport> {
 public:
  struct Group {
    std::string name;
    int rank, size;
    std::vector<int64_t> global_ranks;
    std::chrono::milliseconds timeout;
  };
  HostTransport(c10::intrusive_ptr<c10d::Backend> backend, c10::intrusive_ptr<c10d::Store> store,
                Group group);

  void Run(Collective collective, c10::intrusive_ptr<TpuWork> work) override;
  void Send(const at::Tensor& tensor, int peer, int tag, c10::intrusive_ptr<TpuWork> work) override;
  void Receive(const at::Tensor& tensor, int peer, int tag,
               c10::intrusive_ptr<TpuWork> work) override;
  void set_timeout(std::chrono::milliseconds timeout) override;
  void RaiseFailure() const override;
  bool failed() const override;
  void Abort(const std::string& why) override;
  void Shutdown() override;

 private:
  using Deadline = std::chrono::steady_clock::time_point;
  using Values = std::vector<trace::ValuePtr>;

  // Runs `call` and completes the work with what came of it.
  template <class Function>
  void Complete(TpuWork& work, const std::string& context, Function&& call);
  // `call` has thrown the exception in flight. Remembers and tells it as the group's failure, and
  // returns what to complete the work with.
  std::exception_ptr Fail(const std::string& context);
  std::exception_ptr SetFailure(const std::string& message);
  // So that the other ranks notice a failure. Returns at once: it may wait for the backend's
  // threads.
  void CloseConnections();

  void Execute(const Collective& collective, const std::vector<Values>& inputs);
  at::Tensor ExecutePart(ByteGroup& group, const Collective& collective, const Part& part,
                         const at::Tensor& bytes);
  at::Tensor ExecuteAllToAll(ByteGroup& group, const Part& part, const at::Tensor& bytes);
  // Throws, on all ranks, unless all of them are in the same call; `all` are their envelopes.
  void CheckAgreement(const at::Tensor& all, const Envelope& mine);
  void Await(const c10::intrusive_ptr<c10d::Work>& work, const Collective& collective);
  [[noreturn]] void RaiseTimeout(const Collective& collective);

  // Runs `message` in the lane, and completes the work: with what came of it, or with the group's
  // failure before.
  void Exchange(bool send, int peer, int tag, std::string context, c10::intrusive_ptr<TpuWork> work,
                std::function<void(TpuWork&)> message);
  // While messages are under way: the backend waits for one as long as its time-out, also when
  // other ranks have given up.
  void WatchMessages();
  void AwaitMessage(const c10::intrusive_ptr<c10d::Work>& work);
  void SendNow(const trace::ValuePtr& value, const std::string& array, int peer, int tag);
  int ReceiveNow(const at::Tensor& tensor, const std::string& array, int peer, int tag);
  std::chrono::milliseconds timeout() const;

  std::string RankName(int rank) const;
  std::string RankNames(const std::vector<int>& ranks) const;

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const Group group_;
  Watch watch_;
  SerialQueue collectives_;
  std::mutex lanes_mutex_;
  std::map<std::tuple<bool, int, int>, SerialQueue> lanes_;
  std::set<c10::intrusive_ptr<TpuWork>> messages_;  // under way
  bool watching_messages_ = false;
  // What waiting needs; shared with the backend's threads, which must not be the last to hold the
  // backend.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::exception_ptr failure;
    std::chrono::milliseconds timeout;
  };
  const std::shared_ptr<State> state_;
  Deadline started_;  // of the collective that runs
};

}  // namespace torch_tpu::distributed
