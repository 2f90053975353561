#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "stablehlo/builder.h"

// Operations of programs that run on several devices at once, each on values of its own
// (Builder::SetPartitions). Devices are partitions, numbered from 0.
namespace torch_tpu::stablehlo {

// Partitions that exchange values among themselves, all groups of one size; the order is that of
// the blocks in what they gather.
using Groups = std::vector<std::vector<int64_t>>;

// The number of the partition that runs the program: ui32[].
Value PartitionId(Builder& builder);
// The sum over each group.
Value AllReduceSum(Value x, const Groups& groups);
// The group's values one after another along `dimension`.
Value AllGather(Value x, int dimension, const Groups& groups);
// The sum over each group, of which each partition gets its block along `dimension`.
Value ReduceScatterSum(Value x, int dimension, const Groups& groups);
// Splits x into blocks along `split`, sends the i-th to the i-th of the group, and puts what comes
// together along `concatenate`.
Value AllToAll(Value x, int split, int concatenate, const Groups& groups);
// Sends x from the first of each pair to the second; who gets nothing has zeros.
Value CollectivePermute(Value x, const std::vector<std::pair<int64_t, int64_t>>& pairs);

}  // namespace torch_tpu::stablehlo
