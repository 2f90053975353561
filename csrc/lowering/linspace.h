#pragma once

#include "lowering/call.h"

namespace torch_tpu::lowering {

// n > 0 numbers in equal steps from one 0-d value to another: from both ends to the middle, so that
// the last element is exactly `end`.
Value Between(Builder& b, DType compute, int64_t n, Value start, Value end);

}  // namespace torch_tpu::lowering
