#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace torch_tpu::distributed {

// Collectives on host memory (one-dimensional CPU tensors of bytes), through a c10d backend for CPU
// tensors. What is reduced is reduced here, but for large sums that the backend makes as well: so
// every dtype and reduce operation is there, narrow floats are rounded once, and all ranks get the
// same bits.
class ByteGroup {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  // Lets time pass until the work is complete, or throws.
  using Await = std::function<void(const Work&)>;
  // Throws unless data may be sent; the backend ends the process where ranks send different sizes.
  using Permit = std::function<void()>;

  // `timeout`: after which the backend itself gives up. `permit` is called before anything is sent,
  // but as late as possible.
  ByteGroup(c10d::Backend& backend, std::chrono::milliseconds timeout, Await await, Permit permit)
      : backend_(backend),
        rank_(backend.getRank()),
        size_(backend.getSize()),
        timeout_(timeout),
        await_(std::move(await)),
        permit_(std::move(permit)) {}

  // The root's bytes. Other ranks give only how many there are.
  at::Tensor Broadcast(const at::Tensor& bytes, int root);
  // The ranks' bytes, as many of each, one after another.
  at::Tensor AllGather(const at::Tensor& bytes);
  // The same; `into` has them when the work is complete.
  Work StartAllGather(at::Tensor into, const at::Tensor& bytes);
  // The same at the root, undefined elsewhere.
  at::Tensor Gather(const at::Tensor& bytes, int root);
  // Block number rank() of the root's bytes; `size` is a block's length.
  at::Tensor Scatter(const at::Tensor& bytes, int64_t size, int root);
  // Block r of the result is what rank r sent here. The lengths must fit together.
  at::Tensor AllToAll(const at::Tensor& bytes, std::vector<int64_t> sent,
                      std::vector<int64_t> received);

  // How elements are combined.
  struct Reduction {
    c10d::ReduceOp::RedOpType op;
    c10::ScalarType dtype;
  };
  // These two may return more bytes than there are results: they come first.
  at::Tensor AllReduce(const at::Tensor& bytes, Reduction reduction);
  // At the root; undefined elsewhere.
  at::Tensor Reduce(const at::Tensor& bytes, Reduction reduction, int root);
  // Block number rank() of the reduced array.
  at::Tensor ReduceScatter(const at::Tensor& bytes, Reduction reduction);

 private:
  // Root -1: every rank gets the result.
  at::Tensor ReduceTo(const at::Tensor& bytes, Reduction reduction, int root);
  // Where the backend itself adds up as is wanted, it takes half the steps.
  at::Tensor AllReduceByBackend(const at::Tensor& bytes, Reduction reduction);
  at::Tensor ReduceChunked(const at::Tensor& bytes, Reduction reduction, int root);
  Work StartGather(const at::Tensor& into, at::Tensor bytes, int root);
  Work StartAllToAll(at::Tensor into, at::Tensor bytes, std::vector<int64_t> sent,
                     std::vector<int64_t> received);

  c10d::Backend& backend_;
  const int rank_, size_;
  const std::chrono::milliseconds timeout_;
  const Await await_;
  const Permit permit_;
};

}  // namespace torch_tpu::distributed
