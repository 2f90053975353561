#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "stablehlo/builder.h"
#include "stablehlo/collectives.h"

namespace torch_tpu::distributed {

// What one array of a collective becomes, as a program that every rank of the group runs on its own
// device: partition r is rank r.
struct SpmdProgram {
  enum class Kind {
    kBroadcast,      // the root's array
    kAllReduce,      // one array of all
    kAllGather,      // all arrays, one after another
    kReduceScatter,  // rank r gets the r-th block of what all arrays give
    kScatter,        // rank r gets the r-th block of the root's
    kAllToAll,       // rank r gets everybody's r-th block
    kSend,           // from rank 0 to rank 1, of two
  };
  Kind kind = Kind::kAllReduce;
  c10d::ReduceOp::RedOpType reduce = c10d::ReduceOp::UNUSED;
  int root = 0;
  int size = 0;  // ranks
  stablehlo::Type input, output;

  // Elements of a result for the input that is set.
  int64_t ResultElements() const;
  // The result for `x`, in a program of which the group is one of `groups`: all of them do the
  // same. Sums of half precision are made in float32, but for bfloat16 on TPUs. Whatever is only
  // moved arrives bit for bit. Maxima and minima propagate NaN.
  stablehlo::Value Lower(stablehlo::Value x, const stablehlo::Groups& groups) const;
  // A program of this group alone, as StableHLO text.
  std::string Module(stablehlo::Platform platform) const;
};

}  // namespace torch_tpu::distributed
