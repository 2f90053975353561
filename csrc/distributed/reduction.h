#pragma once

#include <c10/core/ScalarType.h>

#include <span>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace torch_tpu::distributed {

// Raises TypeError or ValueError if elements of `dtype` cannot be reduced by `op`.
void CheckReducible(const c10d::ReduceOp& op, c10::ScalarType dtype);

// out[i] = sources[0][i] op sources[1][i] op …, on the host. Floats narrower than 32 bits are
// accumulated in float32 and rounded once, integers in 64 bits; an average of integers is rounded
// towards zero. The order of the sources is the order of evaluation, so that every rank that has
// the same sources gets the same bits. PREMUL_SUM adds: its products are made before. `out` may be
// one of the sources.
void Reduce(c10d::ReduceOp::RedOpType op, c10::ScalarType dtype,
            std::span<const void* const> sources, void* out, size_t count);

const char* NameOf(c10d::ReduceOp::RedOpType op);

}  // namespace torch_tpu::distributed
