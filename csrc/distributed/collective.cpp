#include "distributed/collective.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cctype>

#include "distributed/reduction.h"

namespace torch_tpu::distributed {

const char* CallName(c10d::OpType type) {
  using c10d::OpType;
  switch (type) {
    case OpType::BROADCAST:
      return "broadcast";
    case OpType::ALLREDUCE:
      return "all_reduce";
    case OpType::ALLREDUCE_COALESCED:
      return "all_reduce_coalesced";
    case OpType::REDUCE:
      return "reduce";
    case OpType::ALLGATHER:
      return "all_gather";
    case OpType::_ALLGATHER_BASE:
      return "all_gather_into_tensor";
    case OpType::ALLGATHER_COALESCED:
      return "all_gather_coalesced";
    case OpType::GATHER:
      return "gather";
    case OpType::SCATTER:
      return "scatter";
    case OpType::REDUCE_SCATTER:
      return "reduce_scatter";
    case OpType::_REDUCE_SCATTER_BASE:
      return "reduce_scatter_tensor";
    case OpType::REDUCE_SCATTER_TENSOR_COALESCED:
      return "reduce_scatter_tensor_coalesced";
    case OpType::ALLTOALL:
      return "all_to_all";
    case OpType::ALLTOALL_BASE:
      return "all_to_all_single";
    case OpType::SEND:
      return "send";
    case OpType::RECV:
    case OpType::RECVANYSOURCE:
      return "recv";
    case OpType::BARRIER:
      return "barrier";
    case OpType::COALESCED:
      return "coalesced";
    default:
      return "collective";
  }
}

std::string DescribeArray(c10::ScalarType dtype, const std::string& shapes) {
  const auto names = c10::getDtypeNames(dtype);
  return std::string(names.first) + shapes;
}

std::string ShapeOf(const at::Tensor& tensor) { return c10::str(tensor.sizes()); }

std::string Collective::Describe() const {
  std::string text = CallName(type);
  text += '(';
  const char* separator = "";
  const auto add = [&](const std::string& item) {
    text += separator + item;
    separator = ", ";
  };
  if (reduce != c10d::ReduceOp::UNUSED) add(NameOf(reduce));
  for (const Part& part : parts) add(DescribeArray(part.dtype, part.shapes));
  if (root >= 0) add("rank " + std::to_string(root));
  return text + ')';
}

int64_t Count(const std::vector<at::Tensor>& tensors) {
  int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.numel();
  return count;
}

}  // namespace torch_tpu::distributed
