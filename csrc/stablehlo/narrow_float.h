#pragma once

#include <cstdint>

#include "stablehlo/type.h"

namespace torch_tpu::stablehlo {

// Writes one element of `dtype` to `bytes` (little-endian, ByteSize(dtype) bytes): from `real` (and
// `imag`) for floating and complex dtypes, rounding to nearest even, else from `integer`.
void EncodeNumber(DType dtype, double real, double imag, int64_t integer, unsigned char* bytes);

}  // namespace torch_tpu::stablehlo
