#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trace/value.h"

namespace torch_tpu::distributed {

// Where ranks of a group that are threads of this process come together: the last one to come to a
// call does for all of them what it takes. Thread-safe.
class Meeting : public std::enable_shared_from_this<Meeting> {
 public:
  using Values = std::vector<trace::ValuePtr>;
  using Clock = std::chrono::steady_clock;

  // The one of that name in this process.
  static std::shared_ptr<Meeting> Of(const std::string& name);

  struct Arrival {
    int rank = 0;
    std::string what;  // must be the same for all
    Values values;
    // Gets the rank's results, or why there are none and its own values back. Must not throw.
    std::function<void(Values, std::exception_ptr)> then;
    Clock::time_point deadline;
  };
  // From all values, by participant, the results.
  using Together = std::function<std::vector<Values>(const std::vector<Values>&)>;

  // Counts a rank's calls, for who has no other name for them: from 0.
  uint64_t Next(int rank);
  // `call` says which call of the group it is; `participants` are the ranks that come to it.
  void Arrive(const std::string& call, const std::vector<int>& participants, Arrival arrival,
              const Together& together);
  // Everybody who waits, and whoever comes later, gets this error. The first one counts.
  std::exception_ptr Fail(std::exception_ptr error);
  std::exception_ptr failure() const;

 private:
  struct Call {
    std::vector<int> participants;
    std::vector<Arrival> arrivals;
  };
  // Ends calls whose time is over, as long as there are any.
  void Watch();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Call> calls_;
  std::map<int, uint64_t> counts_;
  std::exception_ptr failure_;
  bool watched_ = false;
};

}  // namespace torch_tpu::distributed
