#include "distributed/meeting.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <algorithm>

#include "distributed/serial_queue.h"

namespace torch_tpu::distributed {

std::shared_ptr<Meeting> Meeting::Of(const std::string& name) {
  static auto* mutex = new std::mutex;
  static auto* meetings = new std::map<std::string, std::weak_ptr<Meeting>>;
  std::lock_guard lock(*mutex);
  std::erase_if(*meetings, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<Meeting> meeting = (*meetings)[name].lock();
  if (meeting == nullptr) (*meetings)[name] = meeting = std::make_shared<Meeting>();
  return meeting;
}

uint64_t Meeting::Next(int rank) {
  std::lock_guard lock(mutex_);
  return counts_[rank]++;
}

void Meeting::Arrive(const std::string& call, const std::vector<int>& participants, Arrival arrival,
                     const Together& together) {
  std::unique_lock lock(mutex_);
  if (failure_) {
    lock.unlock();
    arrival.then(std::move(arrival.values), failure());
    return;
  }
  Call& mine = calls_[call];
  mine.participants = participants;
  mine.arrivals.push_back(std::move(arrival));
  const Arrival& first = mine.arrivals.front();
  if (const Arrival& last = mine.arrivals.back(); last.what != first.what) {
    const std::string message =
        c10::str("tpu_dist: rank ", last.rank, " called ", last.what, ", but rank ", first.rank,
                 " called ", first.what, "; ranks of a group must make the same calls");
    // Before the lock is let go: who comes next must not find the call complete.
    failure_ = std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, message));
    lock.unlock();
    Fail(failure());
    return;
  }
  if (mine.arrivals.size() < participants.size()) {
    if (!watched_) {
      watched_ = true;
      RunElsewhere([self = shared_from_this()] { self->Watch(); });
    }
    changed_.notify_all();
    return;
  }
  std::vector<Arrival> arrivals = std::move(mine.arrivals);
  calls_.erase(call);
  lock.unlock();
  const auto place = [&](const Arrival& a) {
    return std::find(participants.begin(), participants.end(), a.rank) - participants.begin();
  };
  std::sort(arrivals.begin(), arrivals.end(),
            [&](const Arrival& a, const Arrival& b) { return place(a) < place(b); });
  std::vector<Values> values, results;
  for (Arrival& a : arrivals) values.push_back(std::move(a.values));
  std::exception_ptr error;
  try {
    results = together(values);
  } catch (...) {
    error = Fail(std::current_exception());
    results = std::move(values);
  }
  for (size_t i = 0; i < arrivals.size(); ++i) arrivals[i].then(std::move(results[i]), error);
}

std::exception_ptr Meeting::Fail(std::exception_ptr error) {
  std::map<std::string, Call> calls;
  {
    std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(error);
    calls.swap(calls_);
    error = failure_;
    changed_.notify_all();
  }
  for (auto& [name, call] : calls) {
    for (Arrival& arrival : call.arrivals) arrival.then(std::move(arrival.values), error);
  }
  return error;
}

std::exception_ptr Meeting::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void Meeting::Watch() {
  std::unique_lock lock(mutex_);
  while (!calls_.empty()) {
    const auto deadline_of = [](const Call& call) {
      Clock::time_point earliest = Clock::time_point::max();
      for (const Arrival& a : call.arrivals) earliest = std::min(earliest, a.deadline);
      return earliest;
    };
    const auto next = std::ranges::min_element(
        calls_, {}, [&](const auto& entry) { return deadline_of(entry.second); });
    const Clock::time_point deadline = deadline_of(next->second);
    if (Clock::now() < deadline) {
      changed_.wait_until(lock, deadline);
      continue;
    }
    std::string missing;
    for (int rank : next->second.participants) {
      const auto is = [rank](const Arrival& a) { return a.rank == rank; };
      if (std::ranges::none_of(next->second.arrivals, is)) {
        missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
      }
    }
    const std::string message = c10::str("tpu_dist: ", next->second.arrivals.front().what,
                                         " timed out: rank ", missing, " did not call it");
    if (!failure_) {
      failure_ = std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, message));
    }
    lock.unlock();
    Fail(failure());
    lock.lock();
  }
  watched_ = false;
}

}  // namespace torch_tpu::distributed
