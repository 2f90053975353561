#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pjrt/error.h"
#include "pjrt_c_api.h"

namespace torch_tpu::pjrt {

// A loaded PJRT plugin: the function table and what was negotiated with it. Neither the library nor
// this object is ever unloaded, so plain pointers to it stay valid until the process ends.
class Plugin {
 public:
  // Loads and initializes the plugin at `path`. Error kNotFound if there is no such file,
  // kInvalidArgument if it is no PJRT plugin, kFailedPrecondition if its API major version is not
  // ours or its function table is too short for what this library calls.
  static std::shared_ptr<const Plugin> Load(const std::string& path);

  const PJRT_Api* api() const { return api_; }
  const std::string& path() const { return path_; }
  int major_version() const;
  int minor_version() const;
  // PJRT_Plugin_Attributes as text ("stablehlo_current_version" -> "1.16.0"); empty if unsupported.
  const std::vector<std::pair<std::string, std::string>>& attributes() const { return attributes_; }
  // Types of the extensions the plugin offers, and one of them by type (nullptr if absent).
  // Numbers, not PJRT_Extension_Type, because newer plugins have types this header does not list.
  std::vector<int> extension_types() const;
  const PJRT_Extension_Base* extension(int type) const;

  // Throws Error if `error` is not null; the error object is destroyed either way.
  void Check(PJRT_Error* error) const {
    if (error != nullptr) throw TakeError(error);
  }
  // The error as an exception object; destroys `error`, which must not be null.
  Error TakeError(PJRT_Error* error) const;
  // For destructors, which cannot report: destroys `error` if there is one.
  void Ignore(PJRT_Error* error) const noexcept;

 private:
  Plugin() = default;
  const PJRT_Api* api_ = nullptr;
  std::string path_;
  std::vector<std::pair<std::string, std::string>> attributes_;
};

// A named value of the plugin as text; lists of integers are joined by dots, as versions are.
std::string ToString(const PJRT_NamedValue& value);

// An argument struct of the C API, zeroed and with its size filled in.
#define TORCH_TPU_PJRT_ARGS(type, name) \
  type name{};                          \
  name.struct_size = type##_STRUCT_SIZE

// True if the plugin's function table is long enough to hold `member` and it is set.
#define TORCH_TPU_PJRT_HAS(api, member) \
  ((api)->struct_size >= offsetof(PJRT_Api, member) + sizeof((api)->member) && (api)->member)

}  // namespace torch_tpu::pjrt
