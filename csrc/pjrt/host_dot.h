#pragma once

#include <cstdint>
#include <string>

#include "pjrt/plugin.h"

// Dot products of small float32 matrices on the host, as a custom call of XLA:CPU programs. XLA:CPU
// hands a program to its thread pool when its cost model counts a thousand operations, and waking
// the pool takes longer than multiplying small matrices; what a custom call does is not counted.
namespace torch_tpu::pjrt {

// Makes the custom calls known to the plugin. False if it has no way to call host functions.
bool RegisterHostDot(const Plugin& plugin);

// Name of the custom call that multiplies [batch, m, k] by [batch, k, n], each row-major or, where
// its flag says so, with the last two dimensions swapped in memory ([batch, k, m], [batch, n, k]).
std::string HostDotName(bool transposed_lhs, bool transposed_rhs);

}  // namespace torch_tpu::pjrt
