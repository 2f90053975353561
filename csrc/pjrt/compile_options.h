#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace torch_tpu::pjrt {

// What goes into XLA's CompileOptionsProto, written in protobuf's wire format here so that no
// protobuf library is needed.
struct CompileOptions {
  int num_replicas = 1;
  int num_partitions = 1;
  // Global device id of [replica][partition], row-major; empty lets the plugin choose.
  std::vector<int> device_assignment;
  bool use_spmd_partitioning = false;
  bool use_shardy_partitioner = false;
  // May run on any device of the client (with execute_device), for single-device programs.
  bool portable = false;
  // XLA debug options by flag name without dashes ("xla_cpu_enable_fast_math" -> false).
  using OptionValue = std::variant<std::string, bool, int64_t, double>;
  std::vector<std::pair<std::string, OptionValue>> env_option_overrides;

  std::string Serialize() const;
};

}  // namespace torch_tpu::pjrt
