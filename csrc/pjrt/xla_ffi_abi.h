#pragma once

#include <cstddef>
#include <cstdint>

#include "pjrt_c_api.h"

// The part of XLA's binary interface for host functions (FFI 0.1) that this library touches: what a
// plugin hands to a handler, and how a handler is registered. Later versions only append members.
// Fields that are never read keep their places as `unused`.
namespace torch_tpu::pjrt::ffi {

struct Error;  // the plugin's

struct Extension {
  size_t struct_size;
  int32_t type;
  Extension* next;
};
inline constexpr int32_t kMetadataExtension = 1;

struct ApiVersion {
  size_t struct_size;
  Extension* extensions;
  int32_t major;
  int32_t minor;
};

// A call with this extension asks what the handler is and wants nothing computed.
struct Metadata {
  size_t struct_size;
  ApiVersion api_version;
  uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct ErrorCreateArgs {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  int32_t code;  // as PJRT_Error_Code
};

struct Api {
  size_t struct_size;
  Extension* extensions;
  ApiVersion version;
  const void* unused;
  Error* (*error_create)(ErrorCreateArgs*);
};

inline constexpr int32_t kFloat32 = 11;
struct Buffer {
  size_t struct_size;
  Extension* extensions;
  int32_t dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

// Arguments and results alike.
struct Buffers {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int32_t* kinds;  // all 1: buffers
  Buffer** buffers;
};

inline constexpr int32_t kExecuteStage = 3;
struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  void* unused;
  int32_t stage;
  Buffers arguments;
  Buffers results;
};

// Null means success.
using Handler = Error* (*)(CallFrame*);

struct RegisterHandlerArgs {
  size_t struct_size;
  const char* target_name;
  size_t target_name_size;
  void* handler;
  const char* platform_name;
  size_t platform_name_size;
  int32_t traits;
};

// The PJRT extension of type PJRT_Extension_Type_FFI.
struct PjrtExtension {
  PJRT_Extension_Base base;
  void* unused[2];
  PJRT_Error* (*register_handler)(RegisterHandlerArgs*);  // since its second version
};

}  // namespace torch_tpu::pjrt::ffi
