#include "distributed/watch.h"

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <utility>

#include "distributed/serial_queue.h"

namespace torch_tpu::distributed {
namespace {

constexpr auto kPatience = std::chrono::seconds(5);
constexpr const char* kFailed = "tpu_dist/failed";

std::string WaitsKey(uint64_t sequence, int rank) {
  return "tpu_dist/waits/" + std::to_string(sequence) + "/" + std::to_string(rank);
}

}  // namespace

// Shared with threads that wait for the store, for as long as that takes.
struct Watch::Connection {
  explicit Connection(c10::intrusive_ptr<c10d::Store> store) : given(std::move(store)) {}
  std::mutex mutex;
  const c10::intrusive_ptr<c10d::Store> given;
  c10::intrusive_ptr<c10d::Store> own;
  std::atomic<bool> lost{false};
};

Watch::Watch(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
    : rank_(rank), size_(size), connection_(std::make_shared<Connection>(std::move(store))) {}

// On a connection of its own: the program may block the given one for as long as it waits for a key
// there. And on another thread: the store's host may be gone, and connecting to it is tried for the
// store's time-out, half an hour.
template <class Function>
auto Watch::WithStore(Function function) {
  using Result = decltype(function(*connection_->given));
  if (connection_->lost) return Result();
  auto answer = std::make_shared<std::promise<Result>>();
  auto future = answer->get_future();
  RunElsewhere([answer, connection = connection_, function = std::move(function)] {
    Result result{};
    try {
      std::lock_guard lock(connection->mutex);
      if (!connection->own) {
        connection->own = connection->given->clone();
        connection->own->setTimeout(kPatience);
      }
      result = function(*connection->own);
    } catch (const std::exception&) {
      connection->lost = true;
    }
    answer->set_value(std::move(result));
  });
  if (future.wait_for(kPatience) != std::future_status::ready) {
    connection_->lost = true;
    return Result();
  }
  return future.get();
}

void Watch::Waits(uint64_t sequence, const std::string& what) {
  WithStore([key = WaitsKey(sequence, rank_), what](c10d::Store& store) {
    store.set(key, what);
    return true;
  });
}

std::vector<int> Watch::Missing(uint64_t sequence) {
  return WithStore([sequence, size = size_, me = rank_](c10d::Store& store) {
    std::vector<int> missing;
    for (int rank = 0; rank < size; ++rank) {
      if (rank != me && !store.check({WaitsKey(sequence, rank)})) missing.push_back(rank);
    }
    return missing;
  });
}

void Watch::Failed(const std::string& message) {
  WithStore([text = "rank " + std::to_string(rank_) + ": " + message](c10d::Store& store) {
    store.compareSet(kFailed, "", text);
    return true;
  });
}

std::optional<std::string> Watch::Failure() {
  return WithStore([](c10d::Store& store) -> std::optional<std::string> {
    if (!store.check({kFailed})) return std::nullopt;
    return store.get_to_str(kFailed);
  });
}

}  // namespace torch_tpu::distributed
