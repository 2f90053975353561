#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "distributed/meeting.h"
#include "distributed/step.h"
#include "distributed/transport.h"

namespace torch_tpu::distributed {

// Transport by programs over the devices of the group, one for each kind of call and shape: for
// clients whose programs reach the devices of all ranks. Ranks may be threads of one process, each
// with a device of its own, or processes of which every one starts the same programs.
//
// Threads of one process are checked: a call that differs between ranks, or that a rank does not
// come to in time, is an error on all. Of other processes nothing is known here, so that as with
// other backends of this kind such a call does not end.
class XlaTransport final : public Transport {
 public:
  struct Group {
    std::string name;  // no other group of this process has it
    int rank = 0, size = 0;
    std::vector<int> device_ids;  // global ones, by rank
    bool one_process = false;
    std::chrono::milliseconds timeout{0};
  };
  explicit XlaTransport(Group group);

  void Run(Collective collective, c10::intrusive_ptr<TpuWork> work) override;
  void Send(const at::Tensor& tensor, int peer, int tag, c10::intrusive_ptr<TpuWork> work) override;
  void Receive(const at::Tensor& tensor, int peer, int tag,
               c10::intrusive_ptr<TpuWork> work) override;
  void set_timeout(std::chrono::milliseconds timeout) override;
  void RaiseFailure() const override;
  bool failed() const override { return meeting_->failure() != nullptr; }
  void Abort(const std::string& why) override;
  void Shutdown() override {}

 private:
  // A call of `ranks` (the program's partitions, in order); `work` completes with it.
  void Start(const std::string& call, std::string what, const std::vector<int>& ranks,
             std::vector<Step> steps, c10::intrusive_ptr<TpuWork> work,
             std::chrono::milliseconds timeout);
  std::vector<Step> StepsOf(const Collective& collective);
  // Lengths differ between ranks: blocks are padded to the longest of all. Waits for the others to
  // say how long theirs are.
  void AppendAllToAll(const Collective& collective, const Part& part, std::vector<Step>& steps);
  void Message(bool send, const at::Tensor& tensor, int peer, int tag,
               c10::intrusive_ptr<TpuWork> work);
  std::chrono::milliseconds timeout() const;

  const Group group_;
  std::vector<int> everyone_;  // all ranks
  const std::shared_ptr<Meeting> meeting_;
  mutable std::mutex mutex_;
  std::chrono::milliseconds timeout_;
  uint64_t exchanges_ = 0;                                   // of lengths
  std::map<std::pair<int, int>, uint64_t> sent_, received_;  // messages by (peer, tag)
};

}  // namespace torch_tpu::distributed
