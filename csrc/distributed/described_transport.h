#pragma once

#include "distributed/transport.h"

namespace torch_tpu::distributed {

// Of a group whose other ranks do not exist: for programs that are compiled here to run elsewhere.
// Outside of those a call gives what it would if all ranks brought what this one does, unreduced.
class DescribedTransport final : public Transport {
 public:
  DescribedTransport(int rank, int size) : rank_(rank), size_(size) {}
  void Run(Collective collective, c10::intrusive_ptr<TpuWork> work) override;
  void Send(const at::Tensor& tensor, int peer, int tag, c10::intrusive_ptr<TpuWork> work) override;
  void Receive(const at::Tensor& tensor, int peer, int tag,
               c10::intrusive_ptr<TpuWork> work) override;
  void set_timeout(std::chrono::milliseconds) override {}
  void RaiseFailure() const override {}
  bool failed() const override { return false; }
  void Abort(const std::string&) override {}
  void Shutdown() override {}

 private:
  const int rank_, size_;
};

}  // namespace torch_tpu::distributed
