#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace torch_tpu::aten {

// Branches and loops in what this thread captures. Bodies are captured in traces of their own and
// become regions of one recorded operation, which decides while it runs; nothing is unrolled, and
// no data is read here.
//
// A body may use any tensor of the enclosing capture. It may write to those in `operands`; the
// others must stay as they are. Undefined tensors stand for None. Random numbers in a body come
// from the enclosing capture's generator. Checks inside a body hold for the runs of that body.
// Throws c10::Error for bodies whose results do not fit, and trace::CaptureAborted where something
// cannot be recorded.
using RegionBody = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// Runs `on_true` or `on_false` over no arguments. predicate: one element. Both return tensors of
// equal shapes and dtypes; the results have the strides of those of `on_true`.
std::vector<at::Tensor> RecordCond(const at::Tensor& predicate, const RegionBody& on_true,
                                   const RegionBody& on_false,
                                   const std::vector<at::Tensor>& operands);

// Runs `body` over the carried tensors while `condition` (one bool) holds for them. The body
// returns tensors of the shapes and dtypes of the carried ones.
std::vector<at::Tensor> RecordWhile(const RegionBody& condition, const RegionBody& body,
                                    const std::vector<at::Tensor>& carried,
                                    const std::vector<at::Tensor>& operands);

// Runs `body` over (carried..., xs[i]...) for each index i of the first dimension of `xs`, in
// order. It returns the next carried tensors and others, which are stacked along a new first
// dimension. Returns the last carried tensors and the stacks.
std::vector<at::Tensor> RecordScan(const RegionBody& body, const std::vector<at::Tensor>& carried,
                                   const std::vector<at::Tensor>& xs,
                                   const std::vector<at::Tensor>& operands);

}  // namespace torch_tpu::aten
