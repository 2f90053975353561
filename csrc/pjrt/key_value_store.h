#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "pjrt_c_api.h"

namespace torch_tpu::pjrt {

// Where the processes of one client leave what the others have to know of them, such as addresses.
// Thread-safe. Throws Error.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  // Waits until the key is there; kDeadlineExceeded if that takes longer.
  virtual std::string Get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  // None if the key is not there.
  virtual std::optional<std::string> TryGet(const std::string& key) = 0;
  virtual void Put(const std::string& key, const std::string& value) = 0;
};

// Has the client that is created with `args` use `store`, which must live as long as it does.
void SetKeyValueStore(PJRT_Client_Create_Args& args, KeyValueStore& store);

}  // namespace torch_tpu::pjrt
