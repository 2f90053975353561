#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "lowering/call.h"

namespace torch_tpu::lowering {

// What reductions, scans, sorts, normalizations and losses share.

// PyTorch reduces a 0-d tensor as if it had one dimension of size one.
Value AtLeast1d(Value x);
std::vector<int64_t> AllDims(Value x);
// Product of the sizes of `dims`.
int64_t CountOver(const Dims& sizes, const std::vector<int64_t>& dims);
// Undoes the shape of a reduction: `reduced` lacks `dims` of `sizes` and is broadcast along them.
Value BroadcastReduced(Value reduced, const Dims& sizes, const std::vector<int64_t>& dims);
// The mean of floating point or complex x in its own dtype. NaN where there is nothing to average.
Value MeanOver(Value x, const std::vector<int64_t>& dims);

// Mean and sum of squared distances from it (real, also for complex x), in two passes: the
// difference of two sums of squares cancels.
struct Moments {
  Value mean, squares;
};
Moments MomentsOver(Value x, const std::vector<int64_t>& dims);

// The largest (kMax) or smallest (kMin) element of a dimension and the first place it stands at.
// NaN is more extreme than any number. Indices are 32-bit where the dimension allows.
struct Extreme {
  Value value, index;
};
Extreme ExtremeOver(Value x, stablehlo::Reduction kind, int dim);

// --- for shape functions: PyTorch's checks and messages.
std::vector<int64_t> WrapReducedDims(const std::vector<int64_t>& dims, int64_t rank);
// Sizes left by reducing `dims`; none at all means every dimension.
std::vector<int64_t> ReducedSizes(const std::vector<int64_t>& sizes,
                                  const std::vector<int64_t>& dims, bool keepdim);

}  // namespace torch_tpu::lowering
