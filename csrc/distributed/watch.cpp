#include "distributed/watch.h"

#include <utility>

namespace torch_tpu::distributed {
namespace {

constexpr auto kPatience = std::chrono::seconds(5);
constexpr const char* kFailed = "tpu_dist/failed";

std::string WaitsKey(uint64_t sequence, int rank) {
  return "tpu_dist/waits/" + std::to_string(sequence) + "/" + std::to_string(rank);
}

}  // namespace

Watch::Watch(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
    : rank_(rank), size_(size), given_(std::move(store)) {}

// On a connection of its own: the program may block the given one for as long as it waits for a key
// there.
template <class Function>
auto Watch::WithStore(Function&& function) {
  using Result = decltype(function(*given_));
  std::lock_guard lock(mutex_);
  try {
    if (!own_) {
      own_ = given_->clone();
      own_->setTimeout(kPatience);
    }
    return function(*own_);
  } catch (const std::exception&) {
    return Result();
  }
}

void Watch::Waits(uint64_t sequence, const std::string& what) {
  WithStore([&](c10d::Store& store) {
    store.set(WaitsKey(sequence, rank_), what);
    return true;
  });
}

std::vector<int> Watch::Missing(uint64_t sequence) {
  return WithStore([&](c10d::Store& store) {
    std::vector<int> missing;
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_ && !store.check({WaitsKey(sequence, rank)})) missing.push_back(rank);
    }
    return missing;
  });
}

void Watch::Failed(const std::string& message) {
  WithStore([&](c10d::Store& store) {
    store.compareSet(kFailed, "", "rank " + std::to_string(rank_) + ": " + message);
    return true;
  });
}

std::optional<std::string> Watch::Failure() {
  return WithStore([&](c10d::Store& store) -> std::optional<std::string> {
    if (!store.check({kFailed})) return std::nullopt;
    return store.get_to_str(kFailed);
  });
}

}  // namespace torch_tpu::distributed
