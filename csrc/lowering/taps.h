#pragma once

#include <cstdint>
#include <vector>

#include "lowering/call.h"

// Linear maps along one dimension whose outputs each read a few inputs: interpolation, adaptive
// average pooling, and the transposes of both (their gradients).
namespace torch_tpu::lowering {

struct Tap {
  int64_t input = 0;
  double weight = 1;
};

// taps[i]: what output i reads.
struct Taps {
  int64_t input_size = 0;
  std::vector<std::vector<Tap>> taps;

  int64_t output_size() const { return static_cast<int64_t>(taps.size()); }
};

// The map's transpose: input and output change places.
Taps Transposed(const Taps& map);
// Dimension `dim` of the floating-point x mapped. Inputs that an output does not read never reach
// it, not even as NaN times zero (except on TPU, where the map is a matrix product).
Value Apply(Call& c, Value x, int dim, const Taps& map);

}  // namespace torch_tpu::lowering
