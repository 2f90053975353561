#include "distributed/recording.h"

#include <algorithm>

#include "distributed/program_ranks.h"
#include "distributed/step.h"
#include "trace/operation.h"
#include "trace/trace.h"

namespace torch_tpu::distributed {
namespace {

using c10d::OpType;
using trace::Trace;

bool SendsEqualBlocks(const Part& part) {
  const auto differs = [&](int64_t length) { return length != part.sent[0]; };
  return std::ranges::none_of(part.sent, differs) && std::ranges::none_of(part.received, differs);
}

void CheckRecordable(const Collective& collective) {
  const std::string call = CallName(collective.type);
  switch (collective.type) {
    case OpType::REDUCE:
    case OpType::GATHER:
    case OpType::SCATTER:
      Trace::Abort(call + " is another program on the root than on other ranks");
    case OpType::ALLTOALL:
    case OpType::ALLTOALL_BASE:
      if (!std::ranges::all_of(collective.parts, SendsEqualBlocks)) {
        Trace::Abort(call + " of blocks of different lengths is another program on each rank");
      }
      return;
    default:
      return;
  }
}

}  // namespace

void RecordCollective(const Collective& collective, const std::vector<int>& group, int rank,
                      const std::shared_ptr<const World>& world) {
  const std::string call = CallName(collective.type);
  if (world == nullptr) Trace::Abort(call + " goes by way of the host");
  CheckRecordable(collective);
  std::vector<Step> steps;
  for (const Part& part : collective.parts) {
    AppendStep(collective, part, rank, static_cast<int>(group.size()), steps);
  }
  if (steps.empty()) return;
  Trace& trace = Trace::Installed();
  std::shared_ptr<trace::Together>& together = trace.together();
  if (together == nullptr) together = std::make_shared<ProgramRanks>(world, group[rank]);
  // Nobody else makes any.
  const auto ranks = std::static_pointer_cast<ProgramRanks>(together);
  if (!ranks->Add(group)) {
    Trace::Abort(call + "'s group and those of other calls are not a mesh of ranks in order");
  }
  for (Step& step : steps) {
    const trace::Type* type = trace::Intern(step.program.input);
    auto lower = [ranks, group, program = step.program](stablehlo::Builder& builder,
                                                        const stablehlo::Values& inputs) {
      builder.SetPartitions(ranks->partitions());
      return trace::Lowered{{program.Lower(inputs[0], ranks->GroupsLike(group))}, {}};
    };
    auto operation = std::make_shared<trace::Operation>(
        "tpu_dist." + call, std::vector<const trace::Type*>{type}, std::move(lower));
    auto results = trace.Record(std::move(operation), {std::move(step.input)});
    WriteTo(std::move(results[0]), step.outputs, step.lengths);
  }
}

}  // namespace torch_tpu::distributed
