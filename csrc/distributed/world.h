#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace torch_tpu::distributed {

// All ranks, as far as programs reach them: what the default process group has found out. Programs
// of several groups at once number their partitions by it.
struct World {
  std::string name;             // no other one of this process has it
  std::vector<int> device_ids;  // global ones, by rank
  bool one_process = false;     // ranks are threads
  // There are no other ranks, and maybe no such devices: programs can be recorded, not run.
  bool described = false;
  std::chrono::milliseconds timeout{0};

  // That of the default group which was made last; null if there is none.
  static std::shared_ptr<const World> Current();
  static void SetCurrent(std::shared_ptr<const World> world);
};

}  // namespace torch_tpu::distributed
