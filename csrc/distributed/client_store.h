#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "pjrt/key_value_store.h"

namespace torch_tpu::distributed {

// A store of c10d for the client's own use. Nobody else uses its keys.
class ClientStore final : public pjrt::KeyValueStore {
 public:
  explicit ClientStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  std::string Get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::optional<std::string> TryGet(const std::string& key) override;
  void Put(const std::string& key, const std::string& value) override;

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace torch_tpu::distributed
