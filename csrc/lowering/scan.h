#pragma once

#include "lowering/call.h"

namespace torch_tpu::lowering {

// Inclusive scan (cumulative sum, product, maximum, minimum) along a dimension, in x's own dtype.
Value InclusiveScan(Call& c, Value x, stablehlo::Reduction kind, int dim);

}  // namespace torch_tpu::lowering
