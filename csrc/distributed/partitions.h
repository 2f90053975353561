#pragma once

#include <span>
#include <string>
#include <vector>

#include "distributed/spmd_program.h"
#include "pjrt/executable.h"
#include "trace/value.h"

namespace torch_tpu::distributed {

using Values = std::vector<trace::ValuePtr>;

// A program on the devices that it runs on.
struct Loaded {
  std::shared_ptr<const pjrt::Executable> executable;
  std::vector<int> device_ids;  // of this process: executable->device_ids()
};

// Runs a program on `devices`, which are those that this process has of its; `arguments` has a list
// for each of them. Gives each its results, of the `types` given. `donatable`: positions of
// arguments that the module lets go; those of which nobody else holds any are overwritten.
std::vector<Values> RunPartitions(const Loaded& program, const std::vector<trace::Device*>& devices,
                                  const std::vector<Values>& arguments,
                                  const std::vector<const trace::Type*>& types,
                                  const std::string& producer,
                                  std::span<const int64_t> donatable = {});

// Runs a collective's program on the devices of the values, which are those of this process among
// `device_ids`; gives each its result.
Values RunSpmd(const SpmdProgram& program, const std::vector<int>& device_ids,
               const Values& values);

}  // namespace torch_tpu::distributed
