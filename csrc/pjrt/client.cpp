#include "pjrt/client.h"

#include <utility>

namespace torch_tpu::pjrt {
namespace {

PJRT_DeviceDescription* Description(const Plugin& plugin, PJRT_Device* device) {
  TORCH_TPU_PJRT_ARGS(PJRT_Device_GetDescription_Args, args);
  args.device = device;
  plugin.Check(plugin.api()->PJRT_Device_GetDescription(&args));
  return args.device_description;
}

// Calls a function when it goes out of scope, unless something else has taken that over.
class CallAtExit {
 public:
  explicit CallAtExit(std::function<void()> function) : function_(std::move(function)) {}
  ~CallAtExit() {
    if (function_) function_();
  }
  CallAtExit(const CallAtExit&) = delete;
  CallAtExit& operator=(const CallAtExit&) = delete;
  void Cancel() { function_ = nullptr; }

 private:
  std::function<void()> function_;
};

}  // namespace

std::optional<MemoryStats> Device::memory_stats() const {
  const PJRT_Api* api = plugin_->api();
  if (!TORCH_TPU_PJRT_HAS(api, PJRT_Device_MemoryStats)) return std::nullopt;
  TORCH_TPU_PJRT_ARGS(PJRT_Device_MemoryStats_Args, args);
  args.device = device_;
  if (PJRT_Error* error = api->PJRT_Device_MemoryStats(&args)) {
    Error reason = plugin_->TakeError(error);
    if (reason.code() == Code::kUnimplemented) return std::nullopt;
    throw reason;
  }
  MemoryStats stats;
  stats.bytes_in_use = args.bytes_in_use;
  if (args.peak_bytes_in_use_is_set) stats.peak_bytes_in_use = args.peak_bytes_in_use;
  if (args.bytes_limit_is_set) stats.bytes_limit = args.bytes_limit;
  return stats;
}

std::shared_ptr<Client> Client::Create(std::shared_ptr<const Plugin> plugin,
                                       const ClientOptions& options,
                                       std::shared_ptr<KeyValueStore> store) {
  const PJRT_Api* api = plugin->api();
  const std::vector<PJRT_NamedValue> values = ToPjrt(options);
  auto client = std::shared_ptr<Client>(new Client);
  client->plugin_ = plugin;
  {
    TORCH_TPU_PJRT_ARGS(PJRT_Client_Create_Args, args);
    args.create_options = values.data();
    args.num_options = values.size();
    if (store != nullptr) SetKeyValueStore(args, *store);
    client->store_ = std::move(store);
    plugin->Check(api->PJRT_Client_Create(&args));
    client->client_ = args.client;
  }
  {
    TORCH_TPU_PJRT_ARGS(PJRT_Client_PlatformName_Args, args);
    args.client = client->client_;
    plugin->Check(api->PJRT_Client_PlatformName(&args));
    client->platform_name_.assign(args.platform_name, args.platform_name_size);
  }
  {
    TORCH_TPU_PJRT_ARGS(PJRT_Client_PlatformVersion_Args, args);
    args.client = client->client_;
    plugin->Check(api->PJRT_Client_PlatformVersion(&args));
    client->platform_version_.assign(args.platform_version, args.platform_version_size);
  }
  TORCH_TPU_PJRT_ARGS(PJRT_Client_AddressableDevices_Args, list);
  list.client = client->client_;
  plugin->Check(api->PJRT_Client_AddressableDevices(&list));
  for (size_t i = 0; i < list.num_addressable_devices; ++i) {
    Device device;
    device.plugin_ = plugin.get();
    device.device_ = list.addressable_devices[i];
    PJRT_DeviceDescription* description = Description(*plugin, device.device_);
    TORCH_TPU_PJRT_ARGS(PJRT_DeviceDescription_Id_Args, id);
    id.device_description = description;
    plugin->Check(api->PJRT_DeviceDescription_Id(&id));
    device.id_ = id.id;
    TORCH_TPU_PJRT_ARGS(PJRT_Device_LocalHardwareId_Args, local_id);
    local_id.device = device.device_;
    plugin->Check(api->PJRT_Device_LocalHardwareId(&local_id));
    device.local_id_ = local_id.local_hardware_id;
    TORCH_TPU_PJRT_ARGS(PJRT_DeviceDescription_Kind_Args, kind);
    kind.device_description = description;
    plugin->Check(api->PJRT_DeviceDescription_Kind(&kind));
    device.kind_.assign(kind.device_kind, kind.device_kind_size);
    TORCH_TPU_PJRT_ARGS(PJRT_DeviceDescription_ToString_Args, text);
    text.device_description = description;
    plugin->Check(api->PJRT_DeviceDescription_ToString(&text));
    device.description_.assign(text.to_string, text.to_string_size);
    client->devices_.push_back(std::move(device));
  }
  return client;
}

Client::~Client() {
  if (client_ == nullptr) return;
  TORCH_TPU_PJRT_ARGS(PJRT_Client_Destroy_Args, args);
  args.client = client_;
  plugin_->Ignore(plugin_->api()->PJRT_Client_Destroy(&args));
}

Buffer Client::Upload(const void* data, PJRT_Buffer_Type type, std::span<const int64_t> dims,
                      const Device& device, PJRT_HostBufferSemantics semantics, Event* done) const {
  // Plugins abort the process on a type they do not know and on negative dimensions.
  if (ByteSize(type) == 0) throw Error(Code::kInvalidArgument, "copy to device: invalid type");
  bool empty = false;
  for (int64_t dim : dims) {
    if (dim < 0) throw Error(Code::kInvalidArgument, "copy to device: negative dimension");
    empty |= dim == 0;
  }
  if (data == nullptr && !empty) {
    throw Error(Code::kInvalidArgument, "copy to device: null source");
  }
  // An empty tensor may have no memory; plugins want an address all the same.
  static constexpr char kNothing = 0;
  TORCH_TPU_PJRT_ARGS(PJRT_Client_BufferFromHostBuffer_Args, args);
  args.client = client_;
  args.data = data != nullptr ? data : &kNothing;
  args.type = type;
  args.dims = dims.data();
  args.num_dims = dims.size();
  args.host_buffer_semantics = semantics;
  args.device = device.raw();
  plugin_->Check(plugin_->api()->PJRT_Client_BufferFromHostBuffer(&args));
  *done = Event(plugin_.get(), args.done_with_host_buffer);
  return Buffer(plugin_.get(), args.buffer);
}

Buffer Client::FromHost(const void* data, PJRT_Buffer_Type type, std::span<const int64_t> dims,
                        const Device& device) const {
  Event done;
  return Upload(data, type, dims, device, PJRT_HostBufferSemantics_kImmutableOnlyDuringCall, &done);
}

Buffer Client::FromHostAsync(const void* data, PJRT_Buffer_Type type, std::span<const int64_t> dims,
                             const Device& device, std::function<void()> done) const {
  CallAtExit if_it_fails(done);
  Event copied;
  Buffer buffer = Upload(data, type, dims, device,
                         PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes, &copied);
  if (!copied) return buffer;  // the copy is complete
  try {
    copied.OnReady([done = std::move(done)](std::optional<Error>) { done(); });
  } catch (...) {
    // The copy may be under way: the source must not go away before it ends.
    try {
      copied.Await();
    } catch (const Error&) {
    }
    throw;
  }
  if_it_fails.Cancel();
  return buffer;
}

std::shared_ptr<Executable> Client::Compile(std::string_view module,
                                            const CompileOptions& options) const {
  static constexpr std::string_view kFormat = "mlir";
  const std::string serialized = options.Serialize();
  TORCH_TPU_PJRT_ARGS(PJRT_Program, program);
  program.code = const_cast<char*>(module.data());  // read only here
  program.code_size = module.size();
  program.format = kFormat.data();
  program.format_size = kFormat.size();
  TORCH_TPU_PJRT_ARGS(PJRT_Client_Compile_Args, args);
  args.client = client_;
  args.program = &program;
  args.compile_options = serialized.data();
  args.compile_options_size = serialized.size();
  plugin_->Check(plugin_->api()->PJRT_Client_Compile(&args));
  return std::make_shared<Executable>(plugin_.get(), args.executable, shared_from_this());
}

std::shared_ptr<Executable> Client::Deserialize(std::string_view bytes) const {
  if (!TORCH_TPU_PJRT_HAS(plugin_->api(), PJRT_Executable_DeserializeAndLoad)) {
    throw Error(Code::kUnimplemented, "the PJRT plugin cannot load serialized executables");
  }
  TORCH_TPU_PJRT_ARGS(PJRT_Executable_DeserializeAndLoad_Args, args);
  args.client = client_;
  args.serialized_executable = bytes.data();
  args.serialized_executable_size = bytes.size();
  plugin_->Check(plugin_->api()->PJRT_Executable_DeserializeAndLoad(&args));
  return std::make_shared<Executable>(plugin_.get(), args.loaded_executable, shared_from_this());
}

}  // namespace torch_tpu::pjrt
