#include "distributed/step.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "aten/storage.h"

namespace torch_tpu::distributed {
namespace {

using c10d::OpType;
using Kind = SpmdProgram::Kind;

bool OnlyRootGives(OpType type) { return type == OpType::SCATTER; }

Kind KindOf(OpType type) {
  switch (type) {
    case OpType::BROADCAST:
      return Kind::kBroadcast;
    case OpType::ALLGATHER:
    case OpType::_ALLGATHER_BASE:
    case OpType::ALLGATHER_COALESCED:
    case OpType::GATHER:
      return Kind::kAllGather;
    case OpType::REDUCE_SCATTER:
    case OpType::_REDUCE_SCATTER_BASE:
    case OpType::REDUCE_SCATTER_TENSOR_COALESCED:
      return Kind::kReduceScatter;
    case OpType::SCATTER:
      return Kind::kScatter;
    case OpType::ALLTOALL:
    case OpType::ALLTOALL_BASE:
      return Kind::kAllToAll;
    default:
      return Kind::kAllReduce;
  }
}

// Of results that not every rank gets.
bool GetsResult(const Collective& collective, int rank) {
  const bool only_root = collective.type == OpType::REDUCE || collective.type == OpType::GATHER;
  return !only_root || rank == collective.root;
}

}  // namespace

at::Tensor Joined(const std::vector<at::Tensor>& tensors) {
  if (tensors.size() == 1) return tensors[0];
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape(-1));
  return at::cat(flat);
}

void WriteTo(trace::ValuePtr value, const std::vector<at::Tensor>& outputs,
             const std::vector<int64_t>& lengths) {
  if (outputs.empty()) return;
  if (lengths.empty() && outputs.size() == 1 && aten::LogicalType(outputs[0]) == value->type()) {
    aten::Assign(outputs[0], std::move(value));
    return;
  }
  const int64_t bytes = static_cast<int64_t>(value->type()->bytes());
  const int64_t count = value->type()->numel();
  at::Tensor flat = aten::MakeTensor({count}, {}, outputs[0].dtype(), outputs[0].device().index(),
                                     bytes, std::move(value));
  if (!lengths.empty()) {
    const at::Tensor rows = flat.view({static_cast<int64_t>(lengths.size()), -1});
    std::vector<at::Tensor> filled;
    for (size_t r = 0; r < lengths.size(); ++r) {
      filled.push_back(rows.select(0, static_cast<int64_t>(r)).narrow(0, 0, lengths[r]));
    }
    flat = at::cat(filled);
  }
  int64_t offset = 0;
  for (const at::Tensor& output : outputs) {
    output.copy_(flat.narrow(0, offset, output.numel()).view(output.sizes()));
    offset += output.numel();
  }
}

void AppendStep(const Collective& collective, const Part& part, int rank, int size,
                std::vector<Step>& steps) {
  Step step;
  step.program = {.kind = KindOf(collective.type),
                  .reduce = collective.reduce,
                  .root = std::max(collective.root, 0),
                  .size = size};
  at::Tensor input;
  if (OnlyRootGives(collective.type)) {
    // The others bring zeros of the same shape.
    const int64_t count = Count(part.outputs) * size;
    input = part.inputs.empty() ? at::zeros({count}, part.outputs[0].options())
                                : Joined(part.inputs).reshape({count});
  } else {
    input = Joined(part.inputs);
  }
  if (input.numel() == 0) return;
  step.program.input = *aten::LogicalType(input);
  step.input = aten::Materialize(input);
  step.program.output = {step.program.input.dtype, {step.program.ResultElements()}};
  const bool everywhere = collective.type != OpType::REDUCE && collective.type != OpType::GATHER;
  if (everywhere && part.outputs.size() == 1) {
    step.program.output.dims = part.outputs[0].sizes().vec();
  }
  if (GetsResult(collective, rank)) step.outputs = part.outputs;
  steps.push_back(std::move(step));
}

}  // namespace torch_tpu::distributed
