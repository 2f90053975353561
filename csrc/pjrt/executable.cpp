#include "pjrt/executable.h"

#include <utility>

#include "pjrt/buffer.h"

namespace torch_tpu::pjrt {
namespace {

void Destroy(const Plugin* plugin, PJRT_LoadedExecutable* executable) {
  TORCH_TPU_PJRT_ARGS(PJRT_LoadedExecutable_Destroy_Args, args);
  args.executable = executable;
  plugin->Ignore(plugin->api()->PJRT_LoadedExecutable_Destroy(&args));
}

}  // namespace

Executable::Executable(const Plugin* plugin, PJRT_LoadedExecutable* executable,
                       std::shared_ptr<const void> owner)
    : plugin_(plugin), owner_(std::move(owner)), executable_(executable) {
  try {
    const Program program = this->program();
    outputs_ = program.outputs();
    name_ = program.name();
    fingerprint_ = program.fingerprint();
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
  PJRT_Buffer* const* list = arguments.data();
  PJRT_Buffer** filled = outputs.data();
  Run({&list, 1}, arguments.size(), &filled, non_donatable, device,
      complete != nullptr ? &event : nullptr);
  if (complete != nullptr) *complete = Event(plugin_, event);
}

void Executable::ExecuteUnchecked(PJRT_Buffer* const* arguments, size_t num_arguments,
                                  PJRT_Buffer** outputs, std::span<const int64_t> non_donatable,
                                  PJRT_Device* device) const {
  Run({&arguments, 1}, num_arguments, &outputs, non_donatable, device, nullptr);
}

void Executable::Run(std::span<PJRT_Buffer* const* const> arguments, size_t num_arguments,
                     PJRT_Buffer** const* outputs, std::span<const int64_t> non_donatable,
                     PJRT_Device* device, PJRT_Event** complete) const {
  TORCH_TPU_PJRT_ARGS(PJRT_ExecuteOptions, options);
  options.non_donatable_input_indices = non_donatable.data();
  options.num_non_donatable_input_indices = non_donatable.size();
  TORCH_TPU_PJRT_ARGS(PJRT_LoadedExecutable_Execute_Args, args);
  args.executable = executable_;
  args.options = &options;
  args.argument_lists = arguments.data();
  args.num_devices = arguments.size();
  args.num_args = num_arguments;
  args.output_lists = outputs;
  args.device_complete_events = complete;
  args.execute_device = device;
  plugin_->Check(plugin_->api()->PJRT_LoadedExecutable_Execute(&args));
}

void Executable::ExecutePartitions(const std::vector<std::vector<PJRT_Buffer*>>& arguments,
                                   std::vector<std::vector<PJRT_Buffer*>>& outputs,
                                   std::span<const int64_t> non_donatable) const {
  const size_t count = arguments.empty() ? 0 : arguments[0].size();
  std::vector<PJRT_Buffer* const*> argument_lists;
  for (const auto& list : arguments) argument_lists.push_back(list.data());
  outputs.assign(arguments.size(), std::vector<PJRT_Buffer*>(num_outputs(), nullptr));
  std::vector<PJRT_Buffer**> output_lists;
  for (auto& list : outputs) output_lists.push_back(list.data());
  Run(argument_lists, count, output_lists.data(), non_donatable, nullptr, nullptr);
}

std::vector<int> Executable::device_ids() const {
  TORCH_TPU_PJRT_ARGS(PJRT_LoadedExecutable_AddressableDevices_Args, list);
  list.executable = executable_;
  plugin_->Check(plugin_->api()->PJRT_LoadedExecutable_AddressableDevices(&list));
  std::vector<int> ids;
  for (size_t i = 0; i < list.num_addressable_devices; ++i) {
    TORCH_TPU_PJRT_ARGS(PJRT_Device_GetDescription_Args, description);
    description.device = list.addressable_devices[i];
    plugin_->Check(plugin_->api()->PJRT_Device_GetDescription(&description));
    TORCH_TPU_PJRT_ARGS(PJRT_DeviceDescription_Id_Args, id);
    id.device_description = description.device_description;
    plugin_->Check(plugin_->api()->PJRT_DeviceDescription_Id(&id));
    ids.push_back(id.id);
  }
  return ids;
}

Program Executable::program() const {
  TORCH_TPU_PJRT_ARGS(PJRT_LoadedExecutable_GetExecutable_Args, args);
  args.loaded_executable = executable_;
  plugin_->Check(plugin_->api()->PJRT_LoadedExecutable_GetExecutable(&args));
  return Program(plugin_, args.executable);
}

}  // namespace torch_tpu::pjrt
