#pragma once

#include "lowering/call.h"

namespace torch_tpu::lowering {

// For each value the first place of a sorted sequence that does not come before it, or, from the
// right, that comes after it. `sequence` is 1-d, or has the values' leading dimensions; its dtype
// is the values'. Places are 32-bit where the sequence allows.
Value Search(Value sequence, Value values, bool right);

}  // namespace torch_tpu::lowering
