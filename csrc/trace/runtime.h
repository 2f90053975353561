#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "pjrt/client.h"
#include "pjrt/discovery.h"
#include "stablehlo/builder.h"
#include "trace/compile_log.h"
#include "trace/device.h"
#include "trace/disk_cache.h"

namespace torch_tpu::trace {

// The process's client, made on first use. Lives until the process ends.
class Runtime {
 public:
  static Runtime& Get();

  // Where the Python package found the plugins; before first use.
  void Configure(std::optional<std::string> cpu_plugin, std::optional<std::string> libtpu);

  // What processes with one client use to find one another; before first use.
  void SetStore(std::shared_ptr<pjrt::KeyValueStore> store);

  // Number of devices. Does not start the client where the answer is known without (XLA:CPU).
  // 0 if no client can be started.
  int DeviceCount() noexcept;
  Device& device(int index) {
    if (C10_UNLIKELY(!ready_.load(std::memory_order_acquire))) Start();
    return *devices_[index];
  }
  // Waits until everything queued on any device has been launched.
  void DrainQueues();
  // Waits until everything launched so far on any device is computed.
  void AwaitLaunched();
  // As long as it lives no launch is served on any device.
  class LaunchPause {
   public:
    LaunchPause();
    ~LaunchPause();
    LaunchPause(const LaunchPause&) = delete;
    LaunchPause& operator=(const LaunchPause&) = delete;
  };
  bool started() const { return ready_.load(std::memory_order_acquire); }
  // Starts the client; throws pjrt::Error, or std::runtime_error in a forked child.
  void Start();
  // True in a process that was forked after its parent started the client.
  bool InBadFork() const;
  pjrt::PluginChoice Choice() const;
  const pjrt::Client& client();
  // What modules are written for: the client's platform.
  stablehlo::Platform platform() const { return platform_; }
  // Programs may call the host's dot product (pjrt/host_dot.h).
  bool host_dot() const { return host_dot_; }
  // What a program is: small ones are compiled in the cheapest way, whole graphs in the best one.
  enum class ProgramSize { kSmall, kLarge, kGraph };
  struct Compiled {
    std::shared_ptr<pjrt::Executable> executable;  // shared with others that have the same module
    CompileSource source = CompileSource::kCompiler;
    double loading = 0, compiling = 0;  // seconds
  };
  // `partitions`: of a program that runs on several devices at once, their global ids.
  Compiled Compile(const std::string& module, ProgramSize size,
                   const std::vector<int>& partitions = {});
  // Executables kept on disk, whatever the plugin and the run.
  static DiskCache& disk_cache();

 private:
  int RequestedDevices() const;
  pjrt::CompileOptions OptionsFor(ProgramSize size);
  std::shared_ptr<pjrt::Executable> FindInMemory(const std::string& key);
  void KeepInMemory(const std::string& key, const std::shared_ptr<pjrt::Executable>& executable);
  Compiled LoadOrCompile(const std::string& module, const pjrt::CompileOptions& options);
  std::mutex mutex_;
  std::atomic<bool> ready_{false};
  pid_t started_in_ = 0;
  std::optional<std::string> cpu_plugin_, libtpu_;
  std::shared_ptr<pjrt::KeyValueStore> store_;
  std::shared_ptr<pjrt::Client> client_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::set<std::string> refused_options_;
  // Executables that somebody holds, by the hash of module and options.
  std::unordered_map<std::string, std::weak_ptr<pjrt::Executable>> in_memory_;
  size_t prune_in_memory_at_ = 256;
  stablehlo::Platform platform_ = stablehlo::Platform::kCpu;
  bool host_dot_ = false;
  std::string identity_;  // what executables depend on besides module and options
};

}  // namespace torch_tpu::trace
