#pragma once

#include "lowering/call.h"

// Small dot products as calls of the host's own (pjrt/host_dot.h), where the client can.
namespace torch_tpu::lowering {

// Whether HostDot may stand for the DotGeneral of these operands and is faster.
bool CanDotOnHost(const Call& c, Value a, Value b, const stablehlo::DotDims& dims);

// What DotGeneral(a, b, dims) gives.
Value HostDot(Value a, Value b, const stablehlo::DotDims& dims);

}  // namespace torch_tpu::lowering
