#pragma once

#include "lowering/call.h"

namespace torch_tpu::lowering {

// float32 `x` as float16 or bfloat16 would hold it; for any other `narrow` x itself. XLA may remove
// a conversion there and back.
inline Value RoundedTo(Value x, DType narrow) {
  if (narrow != DType::kBF16 && narrow != DType::kF16) return x;
  const std::string_view bits = narrow == DType::kBF16
                                    ? "exponent_bits = 8 : i32, mantissa_bits = 7 : i32"
                                    : "exponent_bits = 5 : i32, mantissa_bits = 10 : i32";
  return x.builder().Emit("stablehlo.reduce_precision", {x}, bits, {x.type()}).front();
}

}  // namespace torch_tpu::lowering
