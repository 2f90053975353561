#include "pjrt/plugin.h"

#include <dlfcn.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>

namespace torch_tpu::pjrt {
namespace {

// The last function of the table that this library calls without asking whether it is there.
constexpr size_t kRequiredTableSize = offsetof(PJRT_Api, PJRT_Executable_OutputDimensions) +
                                      sizeof(PJRT_Executable_OutputDimensions*);

// The bytes, because a number that is no enumerator must not be read as one.
int TypeOf(const PJRT_Extension_Base& extension) {
  int type;
  static_assert(sizeof type == sizeof extension.type);
  std::memcpy(&type, &extension.type, sizeof type);
  return type;
}

// Names of required functions the plugin left empty.
std::string MissingFunctions(const PJRT_Api* api) {
  std::string missing;
#define REQUIRE(name)                       \
  if (api->name == nullptr) {               \
    missing += missing.empty() ? "" : ", "; \
    missing += #name;                       \
  }
  REQUIRE(PJRT_Error_Destroy)
  REQUIRE(PJRT_Error_Message)
  REQUIRE(PJRT_Error_GetCode)
  REQUIRE(PJRT_Event_Destroy)
  REQUIRE(PJRT_Event_IsReady)
  REQUIRE(PJRT_Event_Error)
  REQUIRE(PJRT_Event_Await)
  REQUIRE(PJRT_Event_OnReady)
  REQUIRE(PJRT_Client_Create)
  REQUIRE(PJRT_Client_Destroy)
  REQUIRE(PJRT_Client_PlatformName)
  REQUIRE(PJRT_Client_PlatformVersion)
  REQUIRE(PJRT_Client_AddressableDevices)
  REQUIRE(PJRT_Client_Compile)
  REQUIRE(PJRT_Client_BufferFromHostBuffer)
  REQUIRE(PJRT_DeviceDescription_Id)
  REQUIRE(PJRT_DeviceDescription_Kind)
  REQUIRE(PJRT_DeviceDescription_ToString)
  REQUIRE(PJRT_Device_GetDescription)
  REQUIRE(PJRT_Device_LocalHardwareId)
  REQUIRE(PJRT_Executable_Destroy)
  REQUIRE(PJRT_Executable_Name)
  REQUIRE(PJRT_Executable_NumOutputs)
  REQUIRE(PJRT_Executable_OutputElementTypes)
  REQUIRE(PJRT_Executable_OutputDimensions)
  REQUIRE(PJRT_LoadedExecutable_Destroy)
  REQUIRE(PJRT_LoadedExecutable_GetExecutable)
  REQUIRE(PJRT_LoadedExecutable_Execute)
  REQUIRE(PJRT_Buffer_Destroy)
  REQUIRE(PJRT_Buffer_ElementType)
  REQUIRE(PJRT_Buffer_Dimensions)
  REQUIRE(PJRT_Buffer_OnDeviceSizeInBytes)
  REQUIRE(PJRT_Buffer_Device)
  REQUIRE(PJRT_Buffer_IsDeleted)
  REQUIRE(PJRT_Buffer_CopyToDevice)
  REQUIRE(PJRT_Buffer_ToHostBuffer)
  REQUIRE(PJRT_Buffer_ReadyEvent)
#undef REQUIRE
  return missing;
}

}  // namespace

std::string ToString(const PJRT_NamedValue& value) {
  switch (value.type) {
    case PJRT_NamedValue_kString:
      return std::string(value.string_value, value.value_size);
    case PJRT_NamedValue_kInt64:
      return std::to_string(value.int64_value);
    case PJRT_NamedValue_kInt64List: {
      std::string text;
      for (size_t i = 0; i < value.value_size; ++i) {
        text += (i == 0 ? "" : ".") + std::to_string(value.int64_array_value[i]);
      }
      return text;
    }
    case PJRT_NamedValue_kFloat:
      return std::to_string(value.float_value);
    case PJRT_NamedValue_kBool:
      return value.bool_value ? "true" : "false";
  }
  return "";
}

std::shared_ptr<const Plugin> Plugin::Load(const std::string& path) {
  // Loading a library again gives the same function table, which must be initialized only once. The
  // registry is never destroyed: buffers in static storage may be freed after any destructor of
  // ours.
  static std::mutex* mutex = new std::mutex;
  static auto* loaded = new std::map<const PJRT_Api*, std::shared_ptr<const Plugin>>;

  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (path.empty() || error || !std::filesystem::exists(absolute, error)) {
    throw Error(Code::kNotFound, "PJRT plugin not found: there is no file '" + path + "'");
  }
  std::lock_guard lock(*mutex);
  void* library = dlopen(absolute.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw Error(Code::kInvalidArgument, "cannot load the PJRT plugin '" + path + "': " +
                                            (reason != nullptr ? reason : "unknown reason"));
  }
  using GetApi = const PJRT_Api* (*)();
  auto get_api = reinterpret_cast<GetApi>(dlsym(library, "GetPjrtApi"));
  const PJRT_Api* api = get_api != nullptr ? get_api() : nullptr;
  if (api == nullptr) {
    dlclose(library);
    throw Error(Code::kInvalidArgument,
                "'" + path + "' is not a PJRT plugin: " +
                    (get_api == nullptr ? "it does not export GetPjrtApi"
                                        : "its GetPjrtApi returned nothing"));
  }
  if (auto found = loaded->find(api); found != loaded->end()) {
    dlclose(library);  // only the count of the second dlopen
    return found->second;
  }

  // From here on the library stays loaded even if it is refused: it may have started threads.
  if (api->struct_size < offsetof(PJRT_Api, PJRT_Error_Destroy) ||
      api->pjrt_api_version.major_version != PJRT_API_MAJOR) {
    throw Error(Code::kFailedPrecondition, "the PJRT plugin '" + path + "' has API major version " +
                                               std::to_string(api->pjrt_api_version.major_version) +
                                               ", needed is " + std::to_string(PJRT_API_MAJOR));
  }
  const std::string version = std::to_string(api->pjrt_api_version.major_version) + "." +
                              std::to_string(api->pjrt_api_version.minor_version);
  if (api->struct_size < kRequiredTableSize) {
    throw Error(Code::kFailedPrecondition,
                "the PJRT plugin '" + path + "' (API " + version +
                    ") is too old: its function table of " + std::to_string(api->struct_size) +
                    " bytes is shorter than the needed " + std::to_string(kRequiredTableSize));
  }
  if (const std::string missing = MissingFunctions(api); !missing.empty()) {
    throw Error(Code::kFailedPrecondition, "the PJRT plugin '" + path + "' (API " + version +
                                               ") does not implement " + missing);
  }

  auto plugin = std::shared_ptr<Plugin>(new Plugin);
  plugin->api_ = api;
  plugin->path_ = path;
  if (TORCH_TPU_PJRT_HAS(api, PJRT_Plugin_Initialize)) {
    TORCH_TPU_PJRT_ARGS(PJRT_Plugin_Initialize_Args, args);
    plugin->Check(api->PJRT_Plugin_Initialize(&args));
  }
  if (TORCH_TPU_PJRT_HAS(api, PJRT_Plugin_Attributes)) {
    TORCH_TPU_PJRT_ARGS(PJRT_Plugin_Attributes_Args, args);
    if (PJRT_Error* failure = api->PJRT_Plugin_Attributes(&args)) {
      plugin->Ignore(failure);
    } else {
      for (size_t i = 0; i < args.num_attributes; ++i) {
        const PJRT_NamedValue& value = args.attributes[i];
        plugin->attributes_.emplace_back(std::string(value.name, value.name_size), ToString(value));
      }
    }
  }
  loaded->emplace(api, plugin);
  return plugin;
}

int Plugin::major_version() const { return api_->pjrt_api_version.major_version; }
int Plugin::minor_version() const { return api_->pjrt_api_version.minor_version; }

std::vector<int> Plugin::extension_types() const {
  std::vector<int> types;
  for (const PJRT_Extension_Base* e = api_->extension_start; e != nullptr; e = e->next) {
    types.push_back(TypeOf(*e));
  }
  return types;
}

const PJRT_Extension_Base* Plugin::extension(int type) const {
  for (const PJRT_Extension_Base* e = api_->extension_start; e != nullptr; e = e->next) {
    if (TypeOf(*e) == type) return e;
  }
  return nullptr;
}

Error Plugin::TakeError(PJRT_Error* error) const {
  Code code = Code::kUnknown;
  TORCH_TPU_PJRT_ARGS(PJRT_Error_GetCode_Args, get_code);
  get_code.error = error;
  if (PJRT_Error* failure = api_->PJRT_Error_GetCode(&get_code)) {
    Ignore(failure);
  } else {
    code = static_cast<Code>(get_code.code);
  }
  TORCH_TPU_PJRT_ARGS(PJRT_Error_Message_Args, get_message);
  get_message.error = error;
  api_->PJRT_Error_Message(&get_message);
  std::string message(get_message.message, get_message.message_size);  // lives as long as `error`
  Ignore(error);
  return Error(code, message);
}

void Plugin::Ignore(PJRT_Error* error) const noexcept {
  if (error == nullptr) return;
  TORCH_TPU_PJRT_ARGS(PJRT_Error_Destroy_Args, args);
  args.error = error;
  api_->PJRT_Error_Destroy(&args);
}

}  // namespace torch_tpu::pjrt
