#include "trace/loaded_operations.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <unordered_map>
#include <utility>

#include "trace/operation.h"
#include "trace/runtime.h"

namespace torch_tpu::trace {
namespace {

// Of the mappings that are left beside others', executables may take the first share; then they go
// until the second is reached.
constexpr double kHighShare = 0.6, kLowShare = 0.4;
constexpr double kMinShare = 0.1;  // of the executables, unloaded at once
// Counting takes milliseconds where there are tens of thousands. So it is done again when as many
// programs were loaded as fit into what is left, if each took this many mappings; most take three.
constexpr int64_t kMappingsOfLarge = 64;
constexpr int64_t kMinLoadsBetweenCounts = 8;

int64_t MappingLimit() {
  int64_t limit = 0;
  if (const char* text = std::getenv("TORCH_TPU_MAX_MAPPINGS")) limit = std::atoll(text);
  if (limit <= 0) std::ifstream("/proc/sys/vm/max_map_count") >> limit;
  return limit;
}

// 0 if that cannot be known.
int64_t CountMappings() {
  const int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  std::vector<char> block(1 << 16);
  int64_t lines = 0;
  for (ssize_t n; (n = read(file, block.data(), block.size())) > 0;) {
    lines += std::count(block.begin(), block.begin() + n, '\n');
  }
  close(file);
  return lines;
}

}  // namespace

LoadedOperations& LoadedOperations::Get() {
  static auto* loaded = new LoadedOperations;
  return *loaded;
}

LoadedOperations::LoadedOperations() : limit_(MappingLimit()) {
  if (limit_ > 0) DivideWhatIsLeft(CountMappings());
}

void LoadedOperations::DivideWhatIsLeft(int64_t others) {
  // Beyond the limit a program can only hope that the limit is not that hard.
  const double left = static_cast<double>(std::max(limit_ - others, limit_ / 8));
  high_ = others + static_cast<int64_t>(kHighShare * left);
  low_ = others + static_cast<int64_t>(kLowShare * left);
}

void LoadedOperations::Add(Operation* operation) {
  clock_.fetch_add(1, std::memory_order_relaxed);
  loads_until_count_.fetch_sub(1, std::memory_order_relaxed);
  std::lock_guard guard(mutex_);
  operations_.insert(operation);
}

void LoadedOperations::Remove(Operation* operation) {
  std::lock_guard guard(mutex_);
  operations_.erase(operation);
}

int64_t LoadedOperations::count() const {
  std::lock_guard guard(mutex_);
  std::unordered_set<const pjrt::Executable*> executables;
  for (const Operation* operation : operations_) executables.insert(operation->loaded());
  return static_cast<int64_t>(executables.size());
}

void LoadedOperations::MakeRoom() {
  if (limit_ <= 0 || loads_until_count_.load(std::memory_order_relaxed) > 0) return;
  std::unique_lock turn(turn_, std::try_to_lock);
  if (!turn) return;
  int64_t mappings = CountMappings();
  if (mappings >= high_) {
    while (mappings > low_) {
      // Not all mappings are executables', so one round may not be enough.
      const double share = static_cast<double>(mappings - low_) / static_cast<double>(mappings);
      if (!Unload(std::max(share, kMinShare))) {
        DivideWhatIsLeft(mappings);  // none of them is ours
        break;
      }
      mappings = CountMappings();
    }
  }
  loads_until_count_.store(std::max(kMinLoadsBetweenCounts, (high_ - mappings) / kMappingsOfLarge),
                           std::memory_order_relaxed);
}

bool LoadedOperations::Unload(double share) {
  std::unordered_set<const pjrt::Executable*> victims;
  {
    std::lock_guard guard(mutex_);
    // An executable that several operations share is as old as the last use of any.
    std::unordered_map<const pjrt::Executable*, uint32_t> ages;
    const uint32_t now = Now();
    for (const Operation* operation : operations_) {
      const uint32_t age = now - operation->last_used();
      auto [found, first] = ages.emplace(operation->loaded(), age);
      if (!first) found->second = std::min(found->second, age);
    }
    if (ages.empty()) return false;
    std::vector<std::pair<uint32_t, const pjrt::Executable*>> oldest;
    for (const auto& [executable, age] : ages) oldest.emplace_back(age, executable);
    const auto count = std::min(
        oldest.size(), 1 + static_cast<size_t>(share * static_cast<double>(oldest.size())));
    std::nth_element(oldest.begin(), oldest.begin() + static_cast<ptrdiff_t>(count - 1),
                     oldest.end(), std::greater<>());
    for (size_t i = 0; i < count; ++i) victims.insert(oldest[i].second);
  }
  // No launch is being served while executables are taken away, so that none can be in the hands of
  // one. A launch that waits loads its executable again.
  std::vector<std::shared_ptr<pjrt::Executable>> taken;
  {
    const Runtime::LaunchPause pause;
    std::lock_guard guard(mutex_);
    for (auto it = operations_.begin(); it != operations_.end();) {
      auto executable = victims.count((*it)->loaded()) > 0 ? (*it)->Unload() : nullptr;
      it = executable ? operations_.erase(it) : std::next(it);
      if (executable) taken.push_back(std::move(executable));
    }
  }
  // Their executions end before they are destroyed.
  Runtime::Get().AwaitLaunched();
  unloaded_.fetch_add(static_cast<int64_t>(victims.size()), std::memory_order_relaxed);
  return !taken.empty();
}

}  // namespace torch_tpu::trace
