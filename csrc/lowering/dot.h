#pragma once

#include <cstdint>
#include <vector>

#include "lowering/call.h"

// Dot products as PyTorch means them: half types accumulate in float32, integers wrap.
namespace torch_tpu::lowering {

// The precision XLA is asked for when the operands are of `dtype`.
inline stablehlo::Precision PrecisionOf(const Call& c, DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kC64:
      return c.precision();
    case DType::kF64:
    case DType::kC128:
      return stablehlo::Precision::kHighest;
    default:
      return stablehlo::Precision::kDefault;
  }
}

// The dimensions of an operand that are neither batched nor contracted.
std::vector<int64_t> FreeDims(Value x, const std::vector<int64_t>& batch,
                              const std::vector<int64_t>& contract);

// DotGeneral of operands of one dtype, in the dtype that holds its sums: float32 for half types
// (round after whatever is added), int32 for narrow integers, else the operands' own.
Value AccumulatingDot(const Call& c, Value a, Value b, const stablehlo::DotDims& dims);

}  // namespace torch_tpu::lowering
