#include "pjrt/executable.h"

#include <utility>

#include "pjrt/buffer.h"

namespace torch_tpu::pjrt {
namespace {

// The description behind a loaded executable, which its caller has to destroy.
class Description {
 public:
  Description(const Plugin* plugin, PJRT_LoadedExecutable* loaded) : plugin_(plugin) {
    TORCH_TPU_PJRT_ARGS(PJRT_LoadedExecutable_GetExecutable_Args, args);
    args.loaded_executable = loaded;
    plugin->Check(plugin->api()->PJRT_LoadedExecutable_GetExecutable(&args));
    executable_ = args.executable;
  }
  ~Description() {
    TORCH_TPU_PJRT_ARGS(PJRT_Executable_Destroy_Args, args);
    args.executable = executable_;
    plugin_->Ignore(plugin_->api()->PJRT_Executable_Destroy(&args));
  }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  PJRT_Executable* get() const { return executable_; }

 private:
  const Plugin* plugin_;
  PJRT_Executable* executable_;
};

void Destroy(const Plugin* plugin, PJRT_LoadedExecutable* executable) {
  TORCH_TPU_PJRT_ARGS(PJRT_LoadedExecutable_Destroy_Args, args);
  args.executable = executable;
  plugin->Ignore(plugin->api()->PJRT_LoadedExecutable_Destroy(&args));
}

std::vector<TensorType> OutputTypes(const Plugin* plugin, PJRT_Executable* executable) {
  const PJRT_Api* api = plugin->api();
  TORCH_TPU_PJRT_ARGS(PJRT_Executable_NumOutputs_Args, count);
  count.executable = executable;
  plugin->Check(api->PJRT_Executable_NumOutputs(&count));
  TORCH_TPU_PJRT_ARGS(PJRT_Executable_OutputElementTypes_Args, types);
  types.executable = executable;
  plugin->Check(api->PJRT_Executable_OutputElementTypes(&types));
  TORCH_TPU_PJRT_ARGS(PJRT_Executable_OutputDimensions_Args, shapes);
  shapes.executable = executable;
  plugin->Check(api->PJRT_Executable_OutputDimensions(&shapes));
  if (types.num_output_types != count.num_outputs || shapes.num_outputs != count.num_outputs) {
    throw Error(Code::kInternal, "the PJRT plugin contradicts itself about the number of outputs");
  }
  std::vector<TensorType> outputs(count.num_outputs);
  const int64_t* dims = shapes.dims;
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].type = types.output_types[i];
    outputs[i].dims.assign(dims, dims + shapes.dim_sizes[i]);
    dims += shapes.dim_sizes[i];
  }
  return outputs;
}

std::string ExecutableName(const Plugin* plugin, PJRT_Executable* executable) {
  TORCH_TPU_PJRT_ARGS(PJRT_Executable_Name_Args, args);
  args.executable = executable;
  plugin->Check(plugin->api()->PJRT_Executable_Name(&args));
  return std::string(args.executable_name, args.executable_name_size);
}

std::string ExecutableFingerprint(const Plugin* plugin, PJRT_Executable* executable) {
  if (!TORCH_TPU_PJRT_HAS(plugin->api(), PJRT_Executable_Fingerprint)) return "";
  TORCH_TPU_PJRT_ARGS(PJRT_Executable_Fingerprint_Args, args);
  args.executable = executable;
  if (PJRT_Error* error = plugin->api()->PJRT_Executable_Fingerprint(&args)) {
    plugin->Ignore(error);
    return "";
  }
  return std::string(args.executable_fingerprint, args.executable_fingerprint_size);
}

}  // namespace

std::string ToString(const TensorType& type) {
  std::string text = std::string(TypeName(type.type)) + "[";
  for (size_t i = 0; i < type.dims.size(); ++i) {
    text += (i == 0 ? "" : ",") + std::to_string(type.dims[i]);
  }
  return text + "]";
}

Executable::Executable(const Plugin* plugin, PJRT_LoadedExecutable* executable,
                       std::shared_ptr<const void> owner)
    : plugin_(plugin), owner_(std::move(owner)), executable_(executable) {
  try {
    Description description(plugin, executable);
    outputs_ = OutputTypes(plugin, description.get());
    name_ = ExecutableName(plugin, description.get());
    fingerprint_ = ExecutableFingerprint(plugin, description.get());
  } catch (...) {
    Destroy(plugin, executable);
    throw;
  }
}

Executable::~Executable() { Destroy(plugin_, executable_); }

void Executable::Execute(std::span<PJRT_Buffer* const> arguments, std::span<PJRT_Buffer*> outputs,
                         std::span<const int64_t> non_donatable, PJRT_Device* device,
                         Event* complete) const {
  const PJRT_Api* api = plugin_->api();
  if (outputs.size() != outputs_.size()) {
    throw Error(Code::kInvalidArgument, name_ + ": room for " + std::to_string(outputs.size()) +
                                            " outputs, needed for " +
                                            std::to_string(outputs_.size()));
  }
  if (parameters_ && arguments.size() != parameters_->size()) {
    throw Error(Code::kInvalidArgument, name_ + ": " + std::to_string(arguments.size()) +
                                            " arguments, expected " +
                                            std::to_string(parameters_->size()));
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    auto refuse = [&](const std::string& why) {
      throw Error(Code::kInvalidArgument, name_ + ": argument " + std::to_string(i) + " " + why);
    };
    if (arguments[i] == nullptr) refuse("is null");
    TORCH_TPU_PJRT_ARGS(PJRT_Buffer_IsDeleted_Args, deleted);
    deleted.buffer = arguments[i];
    plugin_->Check(api->PJRT_Buffer_IsDeleted(&deleted));
    if (deleted.is_deleted) refuse("was deleted or donated");
    if (!parameters_) continue;
    TORCH_TPU_PJRT_ARGS(PJRT_Buffer_ElementType_Args, type);
    type.buffer = arguments[i];
    plugin_->Check(api->PJRT_Buffer_ElementType(&type));
    TORCH_TPU_PJRT_ARGS(PJRT_Buffer_Dimensions_Args, shape);
    shape.buffer = arguments[i];
    plugin_->Check(api->PJRT_Buffer_Dimensions(&shape));
    const TensorType actual{type.type, {shape.dims, shape.dims + shape.num_dims}};
    if (actual != (*parameters_)[i]) {
      refuse("is " + ToString(actual) + ", expected " + ToString((*parameters_)[i]));
    }
  }
  PJRT_Event* event = nullptr;
  Run(arguments.data(), arguments.size(), outputs.data(), non_donatable, device,
      complete != nullptr ? &event : nullptr);
  if (complete != nullptr) *complete = Event(plugin_, event);
}

void Executable::ExecuteUnchecked(PJRT_Buffer* const* arguments, size_t num_arguments,
                                  PJRT_Buffer** outputs, std::span<const int64_t> non_donatable,
                                  PJRT_Device* device) const {
  Run(arguments, num_arguments, outputs, non_donatable, device, nullptr);
}

void Executable::Run(PJRT_Buffer* const* arguments, size_t num_arguments, PJRT_Buffer** outputs,
                     std::span<const int64_t> non_donatable, PJRT_Device* device,
                     PJRT_Event** complete) const {
  TORCH_TPU_PJRT_ARGS(PJRT_ExecuteOptions, options);
  options.non_donatable_input_indices = non_donatable.data();
  options.num_non_donatable_input_indices = non_donatable.size();
  TORCH_TPU_PJRT_ARGS(PJRT_LoadedExecutable_Execute_Args, args);
  args.executable = executable_;
  args.options = &options;
  args.argument_lists = &arguments;
  args.num_devices = 1;
  args.num_args = num_arguments;
  args.output_lists = &outputs;
  args.device_complete_events = complete;
  args.execute_device = device;
  plugin_->Check(plugin_->api()->PJRT_LoadedExecutable_Execute(&args));
}

std::string Executable::Serialize() const {
  if (!TORCH_TPU_PJRT_HAS(plugin_->api(), PJRT_Executable_Serialize)) {
    throw Error(Code::kUnimplemented, "the PJRT plugin cannot serialize executables");
  }
  Description description(plugin_, executable_);
  TORCH_TPU_PJRT_ARGS(PJRT_Executable_Serialize_Args, args);
  args.executable = description.get();
  plugin_->Check(plugin_->api()->PJRT_Executable_Serialize(&args));
  const std::unique_ptr<PJRT_SerializedExecutable, void (*)(PJRT_SerializedExecutable*)> backing(
      args.serialized_executable, args.serialized_executable_deleter);
  return std::string(args.serialized_bytes, args.serialized_bytes_size);
}

std::optional<CompiledMemory> Executable::memory() const {
  if (!TORCH_TPU_PJRT_HAS(plugin_->api(), PJRT_Executable_GetCompiledMemoryStats)) {
    return std::nullopt;
  }
  Description description(plugin_, executable_);
  TORCH_TPU_PJRT_ARGS(PJRT_Executable_GetCompiledMemoryStats_Args, args);
  args.executable = description.get();
  args.peak_memory_in_bytes = -1;  // older plugins do not write it
  if (PJRT_Error* error = plugin_->api()->PJRT_Executable_GetCompiledMemoryStats(&args)) {
    Error reason = plugin_->TakeError(error);
    if (reason.code() == Code::kUnimplemented) return std::nullopt;
    throw reason;
  }
  CompiledMemory memory;
  memory.generated_code = args.generated_code_size_in_bytes;
  memory.arguments = args.argument_size_in_bytes;
  memory.outputs = args.output_size_in_bytes;
  memory.aliased = args.alias_size_in_bytes;
  memory.temporary = args.temp_size_in_bytes;
  if (args.peak_memory_in_bytes >= 0) memory.peak = args.peak_memory_in_bytes;
  return memory;
}

std::vector<std::pair<std::string, double>> Executable::costs() const {
  std::vector<std::pair<std::string, double>> costs;
  if (!TORCH_TPU_PJRT_HAS(plugin_->api(), PJRT_Executable_GetCostAnalysis)) return costs;
  Description description(plugin_, executable_);
  TORCH_TPU_PJRT_ARGS(PJRT_Executable_GetCostAnalysis_Args, args);
  args.executable = description.get();
  if (PJRT_Error* error = plugin_->api()->PJRT_Executable_GetCostAnalysis(&args)) {
    Error reason = plugin_->TakeError(error);
    if (reason.code() == Code::kUnimplemented) return costs;
    throw reason;
  }
  for (size_t i = 0; i < args.num_properties; ++i) {
    const PJRT_NamedValue& value = args.properties[i];
    std::string name(value.name, value.name_size);
    if (value.type == PJRT_NamedValue_kFloat) {
      costs.emplace_back(std::move(name), value.float_value);
    } else if (value.type == PJRT_NamedValue_kInt64) {
      costs.emplace_back(std::move(name), static_cast<double>(value.int64_value));
    }
  }
  return costs;
}

}  // namespace torch_tpu::pjrt
