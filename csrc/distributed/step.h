#pragma once

#include <vector>

#include "distributed/collective.h"
#include "distributed/spmd_program.h"
#include "trace/value.h"

namespace torch_tpu::distributed {

// An array that is to go through a program, and the tensors that the result goes to.
struct Step {
  SpmdProgram program;
  trace::ValuePtr input;
  std::vector<at::Tensor> outputs;
  std::vector<int64_t> lengths;  // of the result's rows, where these are padded
};

// Appends what `part` of `collective` takes on rank `rank` of `size`. Of an all-to-all all blocks
// have one length.
void AppendStep(const Collective& collective, const Part& part, int rank, int size,
                std::vector<Step>& steps);
// Puts a result where it belongs.
void WriteTo(trace::ValuePtr value, const std::vector<at::Tensor>& outputs,
             const std::vector<int64_t>& lengths);
// The elements one after another; one tensor as it is.
at::Tensor Joined(const std::vector<at::Tensor>& tensors);

}  // namespace torch_tpu::distributed
