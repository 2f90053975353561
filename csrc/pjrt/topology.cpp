#include "pjrt/topology.h"

#include <utility>

namespace torch_tpu::pjrt {
namespace {

DeviceDescription Describe(const Plugin& plugin, PJRT_DeviceDescription* device) {
  const PJRT_Api* api = plugin.api();
  TORCH_TPU_PJRT_ARGS(PJRT_DeviceDescription_Id_Args, id);
  id.device_description = device;
  plugin.Check(api->PJRT_DeviceDescription_Id(&id));
  TORCH_TPU_PJRT_ARGS(PJRT_DeviceDescription_Kind_Args, kind);
  kind.device_description = device;
  plugin.Check(api->PJRT_DeviceDescription_Kind(&kind));
  TORCH_TPU_PJRT_ARGS(PJRT_DeviceDescription_ToString_Args, text);
  text.device_description = device;
  plugin.Check(api->PJRT_DeviceDescription_ToString(&text));
  return {id.id, {kind.device_kind, kind.device_kind_size}, {text.to_string, text.to_string_size}};
}

}  // namespace

Topology::Topology(std::shared_ptr<const Plugin> plugin, const std::string& name,
                   const NamedValues& options)
    : plugin_(std::move(plugin)) {
  if (name.empty()) throw Error(Code::kInvalidArgument, "the name of a topology is empty");
  const PJRT_Api* api = plugin_->api();
  if (!TORCH_TPU_PJRT_HAS(api, PJRT_TopologyDescription_Create) ||
      !TORCH_TPU_PJRT_HAS(api, PJRT_Compile)) {
    throw Error(Code::kUnimplemented, "the PJRT plugin cannot compile for a topology");
  }
  const std::vector<PJRT_NamedValue> values = ToPjrt(options);
  TORCH_TPU_PJRT_ARGS(PJRT_TopologyDescription_Create_Args, args);
  args.topology_name = name.data();
  args.topology_name_size = name.size();
  args.create_options = values.data();
  args.num_options = values.size();
  plugin_->Check(api->PJRT_TopologyDescription_Create(&args));
  topology_ = args.topology;
  TORCH_TPU_PJRT_ARGS(PJRT_TopologyDescription_GetDeviceDescriptions_Args, devices);
  devices.topology = topology_;
  plugin_->Check(api->PJRT_TopologyDescription_GetDeviceDescriptions(&devices));
  for (size_t i = 0; i < devices.num_descriptions; ++i) {
    devices_.push_back(Describe(*plugin_, devices.descriptions[i]));
  }
}

Topology::~Topology() {
  if (topology_ == nullptr) return;
  TORCH_TPU_PJRT_ARGS(PJRT_TopologyDescription_Destroy_Args, args);
  args.topology = topology_;
  plugin_->Ignore(plugin_->api()->PJRT_TopologyDescription_Destroy(&args));
}

std::string Topology::platform_version() const {
  TORCH_TPU_PJRT_ARGS(PJRT_TopologyDescription_PlatformVersion_Args, args);
  args.topology = topology_;
  plugin_->Check(plugin_->api()->PJRT_TopologyDescription_PlatformVersion(&args));
  return std::string(args.platform_version, args.platform_version_size);
}

Program Topology::Compile(std::string_view module, const CompileOptions& options) const {
  const std::string serialized = options.Serialize();
  static constexpr std::string_view kFormat = "mlir";
  std::string code(module);
  TORCH_TPU_PJRT_ARGS(PJRT_Program, program);
  program.code = code.data();
  program.code_size = code.size();
  program.format = kFormat.data();
  program.format_size = kFormat.size();
  TORCH_TPU_PJRT_ARGS(PJRT_Compile_Args, args);
  args.topology = topology_;
  args.program = &program;
  args.compile_options = serialized.data();
  args.compile_options_size = serialized.size();
  plugin_->Check(plugin_->api()->PJRT_Compile(&args));
  return Program(plugin_.get(), args.executable);
}

}  // namespace torch_tpu::pjrt
