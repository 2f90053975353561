#pragma once

#include <optional>

#include "lowering/call.h"

// Small dot products as calls of the host's own (pjrt/host_dot.h), where the client can.
namespace torch_tpu::lowering {

// What DotGeneral(a, b, dims) gives, where the host's dot product may stand for it and is faster.
std::optional<Value> HostDot(const Call& c, Value a, Value b, const stablehlo::DotDims& dims);

// While one lives, what this thread lowers calls nothing of this process: it is for elsewhere.
class NoHostCalls {
 public:
  NoHostCalls();
  ~NoHostCalls();
  NoHostCalls(const NoHostCalls&) = delete;
  NoHostCalls& operator=(const NoHostCalls&) = delete;

 private:
  const bool before_;
};

}  // namespace torch_tpu::lowering
