#pragma once

#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace torch_tpu::distributed {

// The devices of a group's ranks, where one program can run on all of them.
struct Reach {
  std::string name;             // of the group, in all of its processes
  std::vector<int> device_ids;  // global ids, by rank
  bool one_process = false;     // ranks are threads
};

// Asks the other ranks where they are; all of them call this. A rank's device is the current one of
// the thread that makes the group. Programs reach all ranks if these are threads of one process
// with a device each, or processes whose TPUs are one slice. None: tensors have to go by way of the
// host. TORCH_TPU_TRANSPORT=host asks for that, =xla forbids it.
std::optional<Reach> FindReach(c10d::Store& store, int rank, int size);

}  // namespace torch_tpu::distributed
