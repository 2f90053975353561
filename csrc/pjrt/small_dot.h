#pragma once

#include <cstdint>

namespace torch_tpu::pjrt {

// lhs [m, k] and rhs [k, n], row-major or with their dimensions swapped in memory.
struct SmallDot {
  int64_t m = 0, n = 0, k = 0;
  bool transposed_lhs = false, transposed_rhs = false;
};

// out = lhs times rhs, row-major [m, n], on the calling thread. Each element is summed in one fixed
// order in float32, so equal operands give equal results. The memory must not overlap.
void MultiplySmall(const SmallDot& dot, const float* lhs, const float* rhs, float* out);

}  // namespace torch_tpu::pjrt
