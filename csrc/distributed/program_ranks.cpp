#include "distributed/program_ranks.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <future>

#include "trace/device.h"
#include "trace/operation.h"
#include "trace/runtime.h"
#include "trace/trace.h"

namespace torch_tpu::distributed {
namespace {

using trace::ValuePtr;

// `all`, ascending, as groups that are `like` shifted; none if that does not come out even.
std::vector<std::vector<int>> Tiles(const std::vector<int>& all, const std::vector<int>& like) {
  const int first = *std::ranges::min_element(like);
  std::vector<std::vector<int>> tiles;
  std::vector<int> left = all;
  while (!left.empty()) {
    const int shift = left.front() - first;
    std::vector<int>& tile = tiles.emplace_back();
    for (int rank : like) {
      const auto it = std::ranges::find(left, rank + shift);
      if (it == left.end()) return {};
      tile.push_back(*it);
      left.erase(it);
    }
  }
  return tiles;
}

bool IsTile(const std::vector<int>& all, const std::vector<int>& group) {
  const auto tiles = Tiles(all, group);
  return std::ranges::find(tiles, group) != tiles.end();
}

// The device of this process with that global id.
trace::Device& DeviceOf(int id) {
  trace::Runtime& runtime = trace::Runtime::Get();
  const int count = runtime.DeviceCount();
  for (int i = 0; i < count; ++i) {
    if (runtime.device(i).pjrt().id() == id) return runtime.device(i);
  }
  TORCH_CHECK(false, "tpu_dist: device ", id, " is not of this process");
}

}  // namespace

bool ProgramRanks::Add(const std::vector<int>& group) {
  if (std::ranges::find(groups_, group) != groups_.end()) return true;
  std::vector<int> all = ranks_;
  const auto is_here = [&](int rank) { return std::ranges::find(all, rank) != all.end(); };
  if (!std::ranges::all_of(group, is_here)) {
    if (std::ranges::count_if(group, is_here) == 1) {
      // Another dimension of the mesh: what was there is repeated along it.
      all.clear();
      for (int rank : group) {
        for (int known : ranks_) all.push_back(known - rank_ + rank);
      }
    } else {
      all = group;  // of which what was there has to be a part
    }
  }
  std::ranges::sort(all);
  const int size = static_cast<int>(world_->device_ids.size());
  if (std::ranges::adjacent_find(all) != all.end() || all.front() < 0 || all.back() >= size) {
    return false;
  }
  for (const auto& known : groups_) {
    if (!IsTile(all, known)) return false;
  }
  if (!IsTile(all, group)) return false;
  ranks_ = std::move(all);
  groups_.push_back(group);
  return true;
}

stablehlo::Groups ProgramRanks::GroupsLike(const std::vector<int>& group) const {
  stablehlo::Groups groups;
  for (const auto& tile : Tiles(ranks_, group)) {
    auto& partitions = groups.emplace_back();
    for (int rank : tile) {
      partitions.push_back(std::ranges::lower_bound(ranks_, rank) - ranks_.begin());
    }
  }
  return groups;
}

std::vector<int> ProgramRanks::device_ids() const {
  std::vector<int> ids;
  for (int rank : ranks_) ids.push_back(world_->device_ids[rank]);
  return ids;
}

void ProgramRanks::Meet(const std::string& what, Values& values,
                        const Meeting::Together& together) {
  std::shared_ptr<Meeting> meeting;
  {
    std::lock_guard lock(mutex_);
    if (meeting_ == nullptr) {
      std::string name = "programs of " + world_->name;
      for (int rank : ranks_) name += " " + std::to_string(rank);
      meeting_ = Meeting::Of(name);
    }
    meeting = meeting_;
  }
  auto promise = std::make_shared<std::promise<std::pair<Values, std::exception_ptr>>>();
  meeting->Arrive("program " + std::to_string(meeting->Next(rank_)),
                  world_->one_process ? ranks_ : std::vector<int>{rank_},
                  {rank_, what, std::move(values),
                   [promise](Values results, std::exception_ptr error) {
                     promise->set_value({std::move(results), std::move(error)});
                   },
                   Meeting::Clock::now() + world_->timeout},
                  together);
  std::exception_ptr error;
  std::tie(values, error) = promise->get_future().get();
  if (error) std::rethrow_exception(error);
}

void ProgramRanks::Agree(trace::Operation& operation) {
  {
    std::lock_guard lock(mutex_);
    if (agreed_) return;
  }
  TORCH_CHECK(!world_->described, operation.name(),
              ": the program exchanges values with ranks that are only described "
              "(torch.tpu.aot.world); it can be compiled, not run");
  static const trace::Type* one = trace::Intern({trace::DType::kU64, {1}});
  const uint64_t hash = std::hash<std::string>()(operation.Module());
  const SpmdProgram gather{.kind = SpmdProgram::Kind::kAllGather,
                           .size = partitions(),
                           .input = *one,
                           .output = {trace::DType::kU64, {partitions()}}};
  Values hashes = {DeviceOf(world_->device_ids[rank_]).FromHost(one, &hash)};
  Meet("a program's first run", hashes, [&, ids = device_ids()](const std::vector<Values>& all) {
    Values column;
    for (const Values& of_rank : all) column.push_back(of_rank[0]);
    std::vector<Values> results;
    for (ValuePtr& value : RunSpmd(gather, ids, column)) results.push_back({value});
    return results;
  });
  std::vector<uint64_t> all(partitions());
  hashes[0]->ToHost(all.data(), all.size() * sizeof(uint64_t));
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == all[0]) continue;
    throw trace::ProgramsDiffer(
        c10::str("ranks ", ranks_[0], " and ", ranks_[i], " have recorded different programs"));
  }
  std::lock_guard lock(mutex_);
  agreed_ = true;
}

void ProgramRanks::Run(trace::Operation& operation, trace::Device& device,
                       std::span<ValuePtr> inputs, bool donate, ValuePtr* results) {
  Values mine;  // arguments, then results
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (operation.uses(static_cast<int>(i))) mine.push_back(std::move(inputs[i]));
  }
  std::vector<const trace::Type*> types = operation.results();
  types.resize(operation.num_outputs(), trace::Intern({trace::DType::kPred, {}}));
  // What is run is the program of the rank that comes last: it is everybody's.
  const auto together = [&](const std::vector<Values>& all) {
    auto executable = operation.Executable();
    {
      std::lock_guard lock(mutex_);
      if (devices_.empty()) {
        device_ids_ = executable->device_ids();
        if (world_->one_process) {
          for (int id : device_ids()) devices_.push_back(&DeviceOf(id));
        } else {
          devices_ = {&device};
        }
      }
    }
    const auto donatable = donate ? operation.donatable() : std::vector<int64_t>();
    return RunPartitions({std::move(executable), device_ids_}, devices_, all, types,
                         operation.name(), donatable);
  };
  try {
    Meet(operation.name(), mine, together);
  } catch (...) {
    for (size_t i = 0, k = 0; i < inputs.size(); ++i) {
      if (operation.uses(static_cast<int>(i))) inputs[i] = std::move(mine[k++]);
    }
    throw;
  }
  for (size_t i = 0; i < operation.results().size(); ++i) results[i] = std::move(mine[i]);
  for (size_t i = 0; i < operation.checks().size(); ++i) {
    const trace::CheckSpec& check = operation.checks()[i];
    device.AddCheck({std::move(mine[operation.results().size() + i]),
                     operation.name() + ": " + check.message, check.index_error});
  }
}

}  // namespace torch_tpu::distributed
