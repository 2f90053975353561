#pragma once

#include <memory>
#include <vector>

#include "distributed/collective.h"
#include "distributed/world.h"

namespace torch_tpu::distributed {

// Makes a collective of `group` (global ranks, in its order) a part of the program that this thread
// records. `rank` is this one's place in it. Gives the recording up where the collective cannot be
// a part: if programs do not reach the ranks (`world` is null), if ranks would have to run
// different programs, and if the groups of the program are not those of a mesh.
void RecordCollective(const Collective& collective, const std::vector<int>& group, int rank,
                      const std::shared_ptr<const World>& world);

}  // namespace torch_tpu::distributed
