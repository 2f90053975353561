#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "distributed/meeting.h"
#include "distributed/partitions.h"
#include "distributed/world.h"
#include "stablehlo/collectives.h"
#include "trace/together.h"

namespace torch_tpu::distributed {

// The ranks of a program in which groups exchange values. A rank knows only the groups it is in.
// Those of the other ranks are taken to be the same, shifted, as in a mesh whose ranks are in
// order: if rank 0 is in [0, 1] and in [0, 2], the program runs on ranks 0 to 3, and the groups are
// [0, 1], [2, 3] and [0, 2], [1, 3].
class ProgramRanks final : public trace::Together {
 public:
  ProgramRanks(std::shared_ptr<const World> world, int rank) : world_(world), rank_(rank) {
    ranks_ = {rank};
  }

  // A group that this rank is in, as global ranks in the group's order. False if the groups are not
  // those of a mesh in order, and then nothing is added.
  bool Add(const std::vector<int>& group);
  // That group and its likes, by partition.
  stablehlo::Groups GroupsLike(const std::vector<int>& group) const;
  int partitions() const { return static_cast<int>(ranks_.size()); }

  std::vector<int> device_ids() const override;
  void Agree(trace::Operation& operation) override;
  void Run(trace::Operation& operation, trace::Device& device, std::span<trace::ValuePtr> inputs,
           bool donate, trace::ValuePtr* results) override;

 private:
  // Makes of this rank's values its results of what all of them come together for. They are as they
  // were if that fails.
  void Meet(const std::string& what, Values& values, const Meeting::Together& together);

  const std::shared_ptr<const World> world_;
  const int rank_;
  std::vector<int> ranks_;  // ascending; partition i is ranks_[i]
  std::vector<std::vector<int>> groups_;
  std::mutex mutex_;
  std::shared_ptr<Meeting> meeting_;
  bool agreed_ = false;
  // The devices of this process that the program runs on, in the order of partitions, and their ids
  // in the executable's; empty before its first run.
  std::vector<trace::Device*> devices_;
  std::vector<int> device_ids_;
};

}  // namespace torch_tpu::distributed
