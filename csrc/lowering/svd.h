#pragma once

#include "lowering/call.h"

namespace torch_tpu::lowering {

// x = u diag(s) v^H, or of u's and v's columns as many as s has elements if `full` is not set.
struct SvdFactors {
  Value u;  // [..., m, m] or [..., m, k]
  Value s;  // [..., k], k = min(m, n), real, descending
  Value v;  // [..., n, n] or [..., n, k]
};
// x: [..., m, n], float32, float64 or complex, perhaps empty. u and v are undefined if not wanted.
SvdFactors Svd(Value x, bool full, bool want_vectors);

}  // namespace torch_tpu::lowering
