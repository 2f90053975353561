#pragma once

#include <optional>
#include <string>

namespace torch_tpu::pjrt {

struct PluginChoice {
  enum class Source { kEnvironment, kTpu, kCpuPackage };
  std::string path;
  Source source;
};

// Which plugin to load: TORCH_TPU_PLUGIN if set (an empty value counts as unset); else
// `libtpu_path` if it is given and a TPU is present in this machine; else `cpu_path`. Error
// kNotFound with what was looked for if nothing is left.
PluginChoice ChoosePlugin(const std::optional<std::string>& libtpu_path,
                          const std::optional<std::string>& cpu_path);

// A TPU chip on the PCI bus (Google's vendor id and one of the TPU device ids) with its driver's
// device node (/dev/accel* or /dev/vfio/*). `sysfs_root` and `dev_root` are for tests.
bool TpuPresent(const std::string& sysfs_root = "/sys", const std::string& dev_root = "/dev");

}  // namespace torch_tpu::pjrt
