#include "stablehlo/collectives.h"

#include <string>

#include "stablehlo/internal.h"

namespace torch_tpu::stablehlo {
namespace {

// "dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>"
std::string GroupsText(std::string_view operation, const Groups& groups, Value x) {
  if (groups.empty() || groups[0].empty()) Fail(operation, "no partitions", {x});
  std::string text = "dense<[";
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].size() != groups[0].size()) {
      Fail(operation, "groups of partitions differ in size", {x});
    }
    for (int64_t partition : groups[i]) {
      if (partition < 0 || partition >= x.builder().partitions()) {
        Fail(operation, "there is no partition " + std::to_string(partition), {x});
      }
    }
    text.append(i > 0 ? ", " : "").append(List(groups[i]));
  }
  return text + "]> : tensor<" + std::to_string(groups.size()) + "x" +
         std::to_string(groups[0].size()) + "xi64>";
}

// Between partitions, under a number of its own.
std::string Channel(Builder& builder) {
  return ", channel_handle = #stablehlo.channel_handle<handle = " +
         std::to_string(builder.NextChannel()) + ", type = 1>";
}

constexpr std::string_view kGlobalIds = ", use_global_device_ids";

std::vector<Builder::RegionSpec> Sum(DType dtype) {
  const Type element{dtype, {}};
  return {{{element, element}, [](const Values& v) { return Values{Add(v[0], v[1])}; }}};
}

}  // namespace

Value PartitionId(Builder& builder) {
  return builder.Emit("stablehlo.partition_id", {}, "", {{DType::kU32, {}}})[0];
}

Value AllReduceSum(Value x, const Groups& groups) {
  constexpr std::string_view kName = "stablehlo.all_reduce";
  CheckDefined(kName, {x});
  Builder& builder = x.builder();
  return builder.Emit(kName, {x},
                      "replica_groups = " + GroupsText(kName, groups, x) + Channel(builder) +
                          std::string(kGlobalIds),
                      {x.type()}, Sum(x.dtype()))[0];
}

Value AllGather(Value x, int dimension, const Groups& groups) {
  constexpr std::string_view kName = "stablehlo.all_gather";
  CheckDefined(kName, {x});
  CheckDimension(kName, dimension, x.rank(), x);
  const std::string text = GroupsText(kName, groups, x);
  Type result = x.type();
  result.dims[dimension] *= static_cast<int64_t>(groups[0].size());
  return EmitOne(kName, {x},
                 "all_gather_dim = " + Int(dimension) + ", replica_groups = " + text +
                     Channel(x.builder()) + std::string(kGlobalIds),
                 result);
}

Value ReduceScatterSum(Value x, int dimension, const Groups& groups) {
  constexpr std::string_view kName = "stablehlo.reduce_scatter";
  CheckDefined(kName, {x});
  CheckDimension(kName, dimension, x.rank(), x);
  const std::string text = GroupsText(kName, groups, x);
  const auto size = static_cast<int64_t>(groups[0].size());
  Type result = x.type();
  if (result.dims[dimension] % size != 0) Fail(kName, "the dimension cannot be divided", {x});
  result.dims[dimension] /= size;
  Builder& builder = x.builder();
  return builder.Emit(kName, {x},
                      "scatter_dimension = " + Int(dimension) + ", replica_groups = " + text +
                          Channel(builder) + std::string(kGlobalIds),
                      {result}, Sum(x.dtype()))[0];
}

Value AllToAll(Value x, int split, int concatenate, const Groups& groups) {
  constexpr std::string_view kName = "stablehlo.all_to_all";
  CheckDefined(kName, {x});
  CheckDimension(kName, split, x.rank(), x);
  CheckDimension(kName, concatenate, x.rank(), x);
  const std::string text = GroupsText(kName, groups, x);
  const auto size = static_cast<int64_t>(groups[0].size());
  Type result = x.type();
  if (result.dims[split] % size != 0) Fail(kName, "the dimension cannot be divided", {x});
  result.dims[split] /= size;
  result.dims[concatenate] *= size;
  return EmitOne(kName, {x},
                 "split_dimension = " + Int(split) + ", concat_dimension = " + Int(concatenate) +
                     ", split_count = " + Int(size) + ", replica_groups = " + text +
                     Channel(x.builder()),
                 result);
}

Value CollectivePermute(Value x, const std::vector<std::pair<int64_t, int64_t>>& pairs) {
  constexpr std::string_view kName = "stablehlo.collective_permute";
  CheckDefined(kName, {x});
  if (pairs.empty()) Fail(kName, "no pairs of partitions", {x});
  return EmitOne(kName, {x}, "source_target_pairs = " + Pairs(pairs) + Channel(x.builder()),
                 x.type());
}

}  // namespace torch_tpu::stablehlo
