#include "pjrt/ffi.h"

namespace torch_tpu::pjrt {

bool RegisterHostFunction(const Plugin& plugin, std::string_view name, ffi::Handler handler) {
  const PJRT_Extension_Base* base = plugin.extension(PJRT_Extension_Type_FFI);
  if (base == nullptr || base->struct_size < sizeof(ffi::PjrtExtension)) return false;
  const auto* extension = reinterpret_cast<const ffi::PjrtExtension*>(base);
  if (extension->register_handler == nullptr) return false;
  static constexpr std::string_view kPlatform = "Host";
  ffi::RegisterHandlerArgs args{};
  args.struct_size = offsetof(ffi::RegisterHandlerArgs, traits) + sizeof(args.traits);
  args.target_name = name.data();
  args.target_name_size = name.size();
  args.handler = reinterpret_cast<void*>(handler);
  args.platform_name = kPlatform.data();
  args.platform_name_size = kPlatform.size();
  plugin.Check(extension->register_handler(&args));
  return true;
}

bool AnswersMetadata(ffi::CallFrame* frame) {
  for (ffi::Extension* e = frame->extensions; e != nullptr; e = e->next) {
    if (e->type != ffi::kMetadataExtension) continue;
    // The oldest version all plugins take; one silently drops handlers of a newer.
    ffi::Metadata* metadata = reinterpret_cast<ffi::MetadataExtension*>(e)->metadata;
    metadata->api_version.major = 0;
    metadata->api_version.minor = 1;
    metadata->traits = 0;
    return true;
  }
  return false;
}

ffi::Error* InvalidArgument(ffi::CallFrame* frame, const char* message) {
  ffi::ErrorCreateArgs args{};
  args.struct_size = offsetof(ffi::ErrorCreateArgs, code) + sizeof(args.code);
  args.message = message;
  args.code = PJRT_Error_Code_INVALID_ARGUMENT;
  return frame->api->error_create(&args);
}

}  // namespace torch_tpu::pjrt
