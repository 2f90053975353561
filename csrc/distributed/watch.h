#pragma once

#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace torch_tpu::distributed {

// What the ranks of a group tell one another through the store when a collective is slow or fails.
// Nothing is written or read while all goes well. Thread-safe. A store that cannot be reached (its
// host may be what died) counts as one that has nothing to tell.
class Watch {
 public:
  Watch(c10::intrusive_ptr<c10d::Store> store, int rank, int size);

  // This rank waits in collective number `sequence`.
  void Waits(uint64_t sequence, const std::string& what);
  // The ranks that have not said that they wait in it.
  std::vector<int> Missing(uint64_t sequence);
  // This rank has given up. Only the first rank of the group to say so is remembered.
  void Failed(const std::string& message);
  // "rank 1: …": why the first rank gave up, if one has.
  std::optional<std::string> Failure();

 private:
  struct Connection;
  // What `function(store)` returns, or a default value if the store does not answer in time.
  template <class Function>
  auto WithStore(Function function);
  const int rank_, size_;
  const std::shared_ptr<Connection> connection_;
};

}  // namespace torch_tpu::distributed
