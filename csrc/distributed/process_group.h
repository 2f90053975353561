#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "distributed/collective.h"
#include "distributed/transport.h"
#include "distributed/world.h"

namespace torch_tpu::distributed {

struct GroupOptions final : c10d::Backend::Options {
  explicit GroupOptions(std::chrono::milliseconds timeout)
      : c10d::Backend::Options("tpu_dist", timeout) {}
  GroupOptions(const GroupOptions&) = default;
};

// The c10d backend "tpu_dist": checks what PyTorch asks for, says it as a Collective, and has a
// Transport do it. A group of one rank has no transport: its collectives are copies on the device.
class ProcessGroup final : public c10d::Backend {
 public:
  // Makes the backend for host memory; called by all ranks of a group at the same time.
  using HostBackendFactory = std::function<c10::intrusive_ptr<c10d::Backend>(
      const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
      std::chrono::milliseconds timeout)>;

  // `is_world`: this is the default group, of all ranks. `described`: its other ranks do not exist,
  // nor do those of groups split off from it; `store` and `factory` are not used.
  ProcessGroup(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
               c10::intrusive_ptr<GroupOptions> options, HostBackendFactory factory, bool is_world,
               bool described);

  const std::string getBackendName() const override { return "tpu_dist"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  // Counts from the group's creation, so it is the same on all ranks without asking.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;
  // The group of the ranks given (of this group), if this rank is one of them; the others need not
  // call this and get null.
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) override;

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(Lists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(Lists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, Lists& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& received,
                        std::vector<int64_t>& sent, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

 private:
  WorkPtr Start(Collective collective);
  // Makes it a part of the program that this thread records.
  WorkPtr Record(const Collective& collective);
  int GlobalRank(int rank) const;
  // Takes its place in the world, which is this group's own if it is the default one.
  void Enter(World own, bool is_world);
  WorkPtr AllReduce(c10d::OpType type, const Tensors& tensors, const c10d::ReduceOp& op,
                    std::chrono::milliseconds timeout);
  WorkPtr AllGatherBase(c10d::OpType type, const Tensors& outputs, const Tensors& inputs,
                        std::chrono::milliseconds timeout);
  WorkPtr ReduceScatterBase(c10d::OpType type, const Tensors& outputs, const Tensors& inputs,
                            const c10d::ReduceOp& op, std::chrono::milliseconds timeout);
  WorkPtr Message(c10d::OpType type, const Tensors& tensors, int peer, int tag);
  // Copies inputs to outputs, for a group of one.
  static void CopyParts(const Collective& collective);
  c10::intrusive_ptr<TpuWork> NewWork(c10d::OpType type, uint64_t sequence, std::string description,
                                      const Tensors& inputs, const Tensors& outputs);

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<GroupOptions> options_;
  const HostBackendFactory factory_;
  const bool described_;
  std::shared_ptr<Transport> transport_;  // null in a group of one
  std::shared_ptr<const World> world_;    // null if programs do not reach the ranks
  std::mutex mutex_;
  uint64_t sequence_ = 0;
  std::map<std::vector<int>, int> splits_;  // how often each list of ranks was split off
  bool coalescing_ = false;
  std::vector<c10::intrusive_ptr<TpuWork>> coalesced_;
};

}  // namespace torch_tpu::distributed
