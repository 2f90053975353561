#include "trace/runtime.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "pjrt/host_dot.h"

namespace torch_tpu::trace {

Runtime& Runtime::Get() {
  // Leaked: buffers may be freed by other statics after the end of main.
  static auto* runtime = new Runtime;
  return *runtime;
}

void Runtime::Configure(std::optional<std::string> cpu_plugin, std::optional<std::string> libtpu) {
  std::lock_guard guard(mutex_);
  cpu_plugin_ = std::move(cpu_plugin);
  libtpu_ = std::move(libtpu);
}

void Runtime::SetStore(std::shared_ptr<pjrt::KeyValueStore> store) {
  std::lock_guard guard(mutex_);
  store_ = std::move(store);
}

pjrt::PluginChoice Runtime::Choice() const { return pjrt::ChoosePlugin(libtpu_, cpu_plugin_); }

int Runtime::RequestedDevices() const {
  const char* text = std::getenv("TORCH_TPU_DEVICES");
  if (text == nullptr || *text == 0) return 1;
  char* end = nullptr;
  const long count = std::strtol(text, &end, 10);
  if (*end != 0 || count < 1 || count > 64) {
    throw pjrt::Error(
        pjrt::Code::kInvalidArgument,
        std::string("TORCH_TPU_DEVICES must be a number from 1 to 64, got \"") + text + "\"");
  }
  return static_cast<int>(count);
}

int Runtime::DeviceCount() noexcept {
  if (started()) return static_cast<int>(devices_.size());
  try {
    if (Choice().source == pjrt::PluginChoice::Source::kCpuPackage) return RequestedDevices();
    Start();
    return static_cast<int>(devices_.size());
  } catch (...) {
    return 0;
  }
}

bool Runtime::InBadFork() const { return started_in_ != 0 && started_in_ != getpid(); }

void Runtime::Start() {
  if (InBadFork()) {
    throw std::runtime_error(
        "Cannot re-initialize TPU in forked subprocess. To use TPU with multiprocessing, you must "
        "use the 'spawn' start method");
  }
  std::lock_guard guard(mutex_);
  if (started()) return;
  const pjrt::PluginChoice choice = Choice();
  // XLA's logging goes to stderr and is set up while the plugin loads; only errors are wanted.
  const bool quiet = std::getenv("TF_CPP_MIN_LOG_LEVEL") == nullptr;
  if (quiet) setenv("TF_CPP_MIN_LOG_LEVEL", "3", 0);
  auto plugin = pjrt::Plugin::Load(choice.path);
  pjrt::ClientOptions options;
  // XLA:CPU plugins take the number of devices as an option; the others have what they have.
  bool threads_set = false;
  if (choice.source != pjrt::PluginChoice::Source::kTpu) {
    const int devices = RequestedDevices();
    options.emplace_back("cpu_device_count", static_cast<int64_t>(devices));
    // A program over several devices holds a thread of XLA:CPU's pool for each until all have come;
    // others must not wait for them. The pool's size is what this variable says.
    if (devices > 1 && std::getenv("NPROC") == nullptr) {
      const int processors = static_cast<int>(std::thread::hardware_concurrency());
      setenv("NPROC", std::to_string(2 * devices + processors).c_str(), 0);
      threads_set = true;
    }
  }
  std::shared_ptr<pjrt::Client> client;
  try {
    client = pjrt::Client::Create(plugin, options, store_);
  } catch (const pjrt::Error& error) {
    if (error.code() != pjrt::Code::kInvalidArgument || options.empty()) throw;
    client = pjrt::Client::Create(plugin, {}, store_);
  }
  if (quiet) unsetenv("TF_CPP_MIN_LOG_LEVEL");
  if (threads_set) unsetenv("NPROC");
  size_t count = client->devices().size();
  platform_ =
      client->platform_name() == "cpu" ? stablehlo::Platform::kCpu : stablehlo::Platform::kTpu;
  if (platform_ == stablehlo::Platform::kCpu) {
    count = std::min<size_t>(count, static_cast<size_t>(RequestedDevices()));
    host_dot_ = pjrt::RegisterHostDot(*plugin);
  }
  for (size_t i = 0; i < count; ++i) {
    devices_.push_back(
        std::make_unique<Device>(static_cast<int>(i), client.get(), &client->devices()[i]));
  }
  client_ = std::move(client);
  if (disk_cache().usable()) {
    identity_ = MachineIdentity(choice.path, disk_cache().info().directory) + "client " +
                client_->platform_version() + ", " + std::to_string(client_->devices().size()) +
                " of " + client_->devices()[0].kind() + "\n";
  }
  started_in_ = getpid();
  // The client's threads do not survive a fork: the child's first use must come to Start and fail.
  pthread_atfork(
      [] {
        for (const auto& device : Runtime::Get().devices_) device->queue().Hold();
      },
      [] {
        for (const auto& device : Runtime::Get().devices_) device->queue().Release();
      },
      [] {
        Runtime::Get().ready_.store(false);
        Value::AbandonBuffers();
      });
  // The plugin's own threads and statics go away later than this.
  std::atexit([] {
    if (!Runtime::Get().started()) return;
    for (const auto& device : Runtime::Get().devices_) device->queue().Stop();
  });
  ready_.store(true, std::memory_order_release);
}

void Runtime::DrainQueues() {
  if (!started()) return;
  for (const auto& device : devices_) device->queue().Drain();
}

void Runtime::AwaitLaunched() {
  if (!started()) return;
  for (const auto& device : devices_) device->AwaitLaunched();
}

Runtime::LaunchPause::LaunchPause() {
  for (const auto& device : Runtime::Get().devices_) device->queue().Pause();
}

Runtime::LaunchPause::~LaunchPause() {
  for (const auto& device : Runtime::Get().devices_) device->queue().Resume();
}

const pjrt::Client& Runtime::client() {
  if (!started()) Start();
  return *client_;
}

pjrt::CompileOptions Runtime::OptionsFor(ProgramSize size) {
  pjrt::CompileOptions options;
  options.portable = true;
  if (platform_ != stablehlo::Platform::kCpu) return options;
  // XLA:CPU's defaults let min and max drop NaN and reassociate sums.
  options.env_option_overrides = {{"xla_cpu_enable_fast_min_max", false},
                                  {"xla_cpu_enable_fast_math", false}};
  if (size == ProgramSize::kGraph) return options;
  // Measured on 8x8 to 1024x1024 programs of one to ten operations: without the fusion emitters and
  // at a low optimization level compilation takes a quarter of the time, and small programs run as
  // fast.
  std::vector<std::pair<std::string, pjrt::CompileOptions::OptionValue>> cheap = {
      {"xla_cpu_use_fusion_emitters", false}};
  if (size == ProgramSize::kSmall) {
    cheap.emplace_back("xla_backend_optimization_level", int64_t{0});
    cheap.emplace_back("xla_cpu_parallel_codegen_split_count", int64_t{1});
  } else {
    cheap.emplace_back("xla_backend_optimization_level", int64_t{1});
  }
  std::lock_guard guard(mutex_);
  for (auto& option : cheap) {
    if (refused_options_.count(option.first) == 0) {
      options.env_option_overrides.push_back(std::move(option));
    }
  }
  return options;
}

DiskCache& Runtime::disk_cache() {
  static auto* cache = new DiskCache(DiskCache::FromEnvironment());
  return *cache;
}

std::shared_ptr<pjrt::Executable> Runtime::FindInMemory(const std::string& key) {
  std::lock_guard guard(mutex_);
  const auto found = in_memory_.find(key);
  return found != in_memory_.end() ? found->second.lock() : nullptr;
}

void Runtime::KeepInMemory(const std::string& key,
                           const std::shared_ptr<pjrt::Executable>& executable) {
  std::lock_guard guard(mutex_);
  if (in_memory_.size() >= prune_in_memory_at_) {
    std::erase_if(in_memory_, [](const auto& entry) { return entry.second.expired(); });
    prune_in_memory_at_ = std::max<size_t>(256, 2 * in_memory_.size());
  }
  in_memory_[key] = executable;
}

Runtime::Compiled Runtime::LoadOrCompile(const std::string& module,
                                         const pjrt::CompileOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  auto seconds_since = [](std::chrono::steady_clock::time_point then) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
  };
  const std::string key = identity_ + options.Serialize() + "\n" + module;
  const std::string hash = HashText(key);
  if (auto executable = FindInMemory(hash)) {
    return {std::move(executable), CompileSource::kMemory, seconds_since(start), 0};
  }
  DiskCache& cache = disk_cache();
  if (const auto serialized = cache.Load(key)) {
    try {
      std::shared_ptr<pjrt::Executable> executable = client_->Deserialize(*serialized);
      KeepInMemory(hash, executable);
      return {std::move(executable), CompileSource::kDisk, seconds_since(start), 0};
    } catch (const pjrt::Error&) {  // compiled and stored anew
    }
  }
  const double loading = seconds_since(start);
  const auto compile_start = std::chrono::steady_clock::now();
  std::shared_ptr<pjrt::Executable> executable = client_->Compile(module, options);
  const double compiling = seconds_since(compile_start);
  KeepInMemory(hash, executable);
  if (cache.usable()) {
    try {
      cache.Store(key, executable->program().Serialize());
    } catch (const pjrt::Error&) {  // a plugin that cannot serialize
    }
  }
  return {std::move(executable), CompileSource::kCompiler, loading, compiling};
}

Runtime::Compiled Runtime::Compile(const std::string& module, ProgramSize size,
                                   const std::vector<int>& partitions) {
  if (!started()) Start();
  for (;;) {
    pjrt::CompileOptions options = OptionsFor(size);
    if (!partitions.empty()) {
      options.portable = false;
      options.num_partitions = static_cast<int>(partitions.size());
      options.device_assignment = partitions;
      options.use_spmd_partitioning = true;
    }
    try {
      return LoadOrCompile(module, options);
    } catch (const pjrt::Error& error) {
      // Plugins differ in the options they know; do without one that this one refuses.
      const std::string message = error.what();
      bool retry = false;
      for (const auto& option : options.env_option_overrides) {
        if (message.find("No such compile option") == std::string::npos ||
            message.find(option.first) == std::string::npos) {
          continue;
        }
        std::lock_guard guard(mutex_);
        retry = refused_options_.insert(option.first).second;
      }
      if (!retry) throw;
    }
  }
}

}  // namespace torch_tpu::trace
