#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace torch_tpu::distributed {

// Tensors of one dtype that a collective treats as one long array each way: the elements of
// `inputs`, one tensor after another, and those of `outputs`. For a group of n ranks
//   broadcast, all-reduce, reduce     as many elements out as in
//   all-gather, gather (root)         out: n blocks of the length of the input
//   reduce-scatter, scatter (root)    in: n blocks of the length of the output
//   all-to-all                        blocks of `sent[r]` elements for, `received[r]` from rank r
// so that tensors in lists and one large tensor are the same thing. What a rank does not give or
// get (scatter and gather at other ranks than the root) is empty.
struct Part {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sent, received;
  // One rank's block as PyTorch's API requires it to be the same on all ranks.
  std::string shapes;
};

// One collective call of one group. Coalesced ones have several parts.
struct Collective {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  c10d::ReduceOp::RedOpType reduce = c10d::ReduceOp::UNUSED;
  int root = -1;
  std::vector<Part> parts;
  std::chrono::milliseconds timeout{0};
  uint64_t sequence = 0;  // of the collectives of the group, from 1

  // What the user called, with shapes and dtypes: "all_reduce(SUM, float32[4, 8])". Must be equal
  // on all ranks.
  std::string Describe() const;
};

// "all_reduce", as torch.distributed calls it.
const char* CallName(c10d::OpType type);
// "float32[4, 8]"
std::string DescribeArray(c10::ScalarType dtype, const std::string& shapes);
std::string ShapeOf(const at::Tensor& tensor);
// Elements of all of them.
int64_t Count(const std::vector<at::Tensor>& tensors);

}  // namespace torch_tpu::distributed
