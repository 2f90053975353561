#pragma once

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace torch_tpu::distributed {

// What c10d hands out for one call. Completes once, from any thread.
class TpuWork final : public c10d::Work {
 public:
  // `outputs` are what result() and the future have. `description` is for messages.
  TpuWork(int rank, c10d::OpType type, uint64_t sequence, std::string description,
          const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs);

  const std::string& description() const { return description_; }
  // The outputs are there, or will never be. Later calls are ignored.
  void Complete(std::exception_ptr error = nullptr);
  // Calls `then` once this is complete, at once if it is; it must not throw or block.
  void WhenComplete(std::function<void(std::exception_ptr)> then);
  void set_source_rank(int rank) { source_rank_ = rank; }

  // Releases no lock of its own but the GIL's holder has done so: c10d's bindings call it without.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  // Complete work needs no stream's help.
  void synchronize() override { wait(kNoTimeout); }
  void abort() override;
  int sourceRank() const override { return source_rank_; }
  std::vector<at::Tensor> result() override { return outputs_; }
  uint64_t getSequencenumber() const override { return sequence_; }
  // Its callbacks run on a thread of their own: they may wait for other works of the group.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;

 private:
  const uint64_t sequence_;
  const std::string description_;
  const std::vector<at::Tensor> outputs_;
  int source_rank_ = -1;
  std::vector<std::function<void(std::exception_ptr)>> then_;
  c10::intrusive_ptr<c10::ivalue::Future> future_, future_result_;
};

}  // namespace torch_tpu::distributed
