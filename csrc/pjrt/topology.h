#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pjrt/compile_options.h"
#include "pjrt/named_values.h"
#include "pjrt/program.h"

namespace torch_tpu::pjrt {

// A device that need not be here.
struct DeviceDescription {
  int id = 0;               // global
  std::string kind;         // "TPU v5 lite"
  std::string description;  // with its coordinates
};

// A described set of chips to compile for; none of them need be present. Thread-safe.
class Topology {
 public:
  // `name` as the plugin spells it: for libtpu "v5e:2x2", "v4:2x2x1". Error kInvalidArgument for an
  // empty one (libtpu takes it for a generation that is no longer sold), kUnimplemented if the
  // plugin knows no topologies.
  Topology(std::shared_ptr<const Plugin> plugin, const std::string& name,
           const NamedValues& options = {});
  ~Topology();
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  const std::vector<DeviceDescription>& devices() const { return devices_; }
  std::string platform_version() const;
  // Compiles StableHLO (text or bytecode) ahead of time. libtpu may end the process instead of
  // giving an error.
  Program Compile(std::string_view module, const CompileOptions& options) const;

 private:
  std::shared_ptr<const Plugin> plugin_;
  PJRT_TopologyDescription* topology_ = nullptr;
  std::vector<DeviceDescription> devices_;
};

}  // namespace torch_tpu::pjrt
