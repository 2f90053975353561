#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pjrt/buffer.h"
#include "pjrt/compile_options.h"
#include "pjrt/executable.h"
#include "pjrt/key_value_store.h"
#include "pjrt/named_values.h"
#include "pjrt/plugin.h"

namespace torch_tpu::pjrt {

// Options of PJRT_Client_Create by name.
using ClientOptions = NamedValues;

struct MemoryStats {
  int64_t bytes_in_use = 0;
  std::optional<int64_t> peak_bytes_in_use, bytes_limit;
};

class Client;

// An addressable device. Owned by its client.
class Device {
 public:
  int id() const { return id_; }  // global id
  int local_hardware_id() const { return local_id_; }
  const std::string& kind() const { return kind_; }  // "cpu", "TPU v5 lite"
  const std::string& description() const { return description_; }
  // nullopt where the plugin keeps no statistics.
  std::optional<MemoryStats> memory_stats() const;
  PJRT_Device* raw() const { return device_; }

 private:
  friend class Client;
  const Plugin* plugin_ = nullptr;
  PJRT_Device* device_ = nullptr;
  int id_ = 0, local_id_ = 0;
  std::string kind_, description_;
};

// All methods are thread-safe. Executables keep their client alive; buffers do not, for they are
// many.
class Client : public std::enable_shared_from_this<Client> {
 public:
  // `store` is for clients whose devices are those of several processes.
  static std::shared_ptr<Client> Create(std::shared_ptr<const Plugin> plugin,
                                        const ClientOptions& options = {},
                                        std::shared_ptr<KeyValueStore> store = nullptr);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const Plugin& plugin() const { return *plugin_; }
  PJRT_Client* raw() const { return client_; }
  const std::string& platform_name() const { return platform_name_; }  // "cpu", "tpu"
  const std::string& platform_version() const { return platform_version_; }
  const std::vector<Device>& devices() const { return devices_; }  // addressable ones

  // Copies `data` (dense, row-major) to the device. The bytes are copied before this returns.
  Buffer FromHost(const void* data, PJRT_Buffer_Type type, std::span<const int64_t> dims,
                  const Device& device) const;
  // The same, but the copy may go on after the return: `done` is called (from any thread, exactly
  // once, also if this throws) when `data` is not needed any more.
  Buffer FromHostAsync(const void* data, PJRT_Buffer_Type type, std::span<const int64_t> dims,
                       const Device& device, std::function<void()> done) const;

  // Compiles StableHLO (text or bytecode).
  std::shared_ptr<Executable> Compile(std::string_view module, const CompileOptions& options) const;
  // An executable serialized by Executable::Serialize of the same plugin.
  std::shared_ptr<Executable> Deserialize(std::string_view bytes) const;

 private:
  Client() = default;
  Buffer Upload(const void* data, PJRT_Buffer_Type type, std::span<const int64_t> dims,
                const Device& device, PJRT_HostBufferSemantics semantics, Event* done) const;

  std::shared_ptr<const Plugin> plugin_;
  std::shared_ptr<KeyValueStore> store_;
  PJRT_Client* client_ = nullptr;
  std::string platform_name_, platform_version_;
  std::vector<Device> devices_;
};

}  // namespace torch_tpu::pjrt
