#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pjrt/plugin.h"

namespace torch_tpu::pjrt {

struct TensorType {
  PJRT_Buffer_Type type;
  std::vector<int64_t> dims;
  bool operator==(const TensorType&) const = default;
};

// "f32[8,128]"
std::string ToString(const TensorType& type);

struct CompiledMemory {  // bytes a device
  int64_t generated_code = 0, arguments = 0, outputs = 0, aliased = 0, temporary = 0;
  std::optional<int64_t> peak;
};

// A compiled program that is not loaded on any device: what a loaded executable is made of, or what
// was compiled for a topology. Thread-safe.
class Program {
 public:
  // Takes ownership of `program`.
  Program(const Plugin* plugin, PJRT_Executable* program) : plugin_(plugin), program_(program) {}
  Program(Program&& other) noexcept : plugin_(other.plugin_), program_(other.program_) {
    other.program_ = nullptr;
  }
  Program& operator=(Program&&) = delete;
  ~Program();

  std::string name() const;
  std::string fingerprint() const;  // "" if unsupported
  std::vector<TensorType> outputs() const;
  std::string Serialize() const;
  std::optional<CompiledMemory> memory() const;
  // Cost analysis by name ("flops", "bytes accessed", ...); empty where unsupported.
  std::vector<std::pair<std::string, double>> costs() const;
  // The program after the compiler's passes: a serialized HloModuleProtoWithConfig or another
  // format of the plugin's, named by `format`.
  struct Optimized {
    std::string format, code;
  };
  Optimized optimized() const;

 private:
  const Plugin* plugin_;
  PJRT_Executable* program_;
};

}  // namespace torch_tpu::pjrt
