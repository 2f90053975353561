#pragma once

#include <c10/core/Scalar.h>

#include "trace/value.h"

namespace torch_tpu::aten {

// `number` as a run-time argument of that dtype.
inline trace::HostNumber ToHostNumber(const c10::Scalar& number, trace::DType dtype) {
  trace::HostNumber host;
  host.dtype = dtype;
  if (stablehlo::IsComplex(dtype)) {
    const auto value = number.toComplexDouble();
    host.real = value.real();
    host.imag = value.imag();
  } else if (stablehlo::IsFloat(dtype)) {
    host.real = number.isComplex() ? number.toComplexDouble().real() : number.toDouble();
  } else if (dtype == trace::DType::kPred) {
    host.integer = number.to<bool>();
  } else if (number.isFloatingPoint()) {
    host.integer = static_cast<int64_t>(number.toDouble());
  } else {
    host.integer = number.isUnsigned() ? static_cast<int64_t>(number.toUInt64()) : number.toLong();
  }
  return host;
}

}  // namespace torch_tpu::aten
