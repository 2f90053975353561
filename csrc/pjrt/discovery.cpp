#include "pjrt/discovery.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "pjrt/error.h"

namespace torch_tpu::pjrt {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kGoogleVendor = "0x1ae0";
// v2 and v3, an internal one, v4, v5p, v5e, v6e, 7x.
constexpr std::array<std::string_view, 7> kTpuDevices = {"0x0027", "0x0056", "0x005e", "0x0062",
                                                         "0x0063", "0x006f", "0x0076"};

// The first word of a file, in lower case; empty if it cannot be read.
std::string ReadWord(const fs::path& path) {
  std::string word;
  std::ifstream(path) >> word;
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return word;
}

// True if `matches` holds for the name of an entry of `directory`.
template <typename Predicate>
bool AnyEntry(const fs::path& directory, Predicate matches) {
  std::error_code error;
  fs::directory_iterator entry(directory, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    if (matches(entry->path())) return true;
  }
  return false;
}

bool IsNumber(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
}

// Older drivers make /dev/accel0, the kernel's accel subsystem /dev/accel/accel0.
bool IsAccelNode(const fs::path& path) {
  constexpr std::string_view kPrefix = "accel";
  const std::string name = path.filename().string();
  return name.starts_with(kPrefix) && IsNumber(std::string_view(name).substr(kPrefix.size()));
}

bool TpuOnBus(const fs::path& sysfs_root) {
  return AnyEntry(sysfs_root / "bus" / "pci" / "devices", [](const fs::path& device) {
    return ReadWord(device / "vendor") == kGoogleVendor &&
           std::find(kTpuDevices.begin(), kTpuDevices.end(), ReadWord(device / "device")) !=
               kTpuDevices.end();
  });
}

bool DeviceNode(const fs::path& dev_root) {
  // /dev/vfio/vfio is there on any machine with the module loaded; only numbered groups are
  // devices.
  return AnyEntry(dev_root, IsAccelNode) || AnyEntry(dev_root / "accel", IsAccelNode) ||
         AnyEntry(dev_root / "vfio",
                  [](const fs::path& path) { return IsNumber(path.filename().string()); });
}

}  // namespace

bool TpuPresent(const std::string& sysfs_root, const std::string& dev_root) {
  return TpuOnBus(sysfs_root) && DeviceNode(dev_root);
}

PluginChoice ChoosePlugin(const std::optional<std::string>& libtpu_path,
                          const std::optional<std::string>& cpu_path) {
  if (const char* path = std::getenv("TORCH_TPU_PLUGIN"); path != nullptr && *path != '\0') {
    return {path, PluginChoice::Source::kEnvironment};
  }
  const bool tpu = TpuPresent();
  if (libtpu_path && tpu) return {*libtpu_path, PluginChoice::Source::kTpu};
  if (cpu_path) return {*cpu_path, PluginChoice::Source::kCpuPackage};
  throw Error(Code::kNotFound,
              std::string("no PJRT plugin: TORCH_TPU_PLUGIN is not set; ") +
                  (libtpu_path ? "libtpu is installed" : "libtpu is not installed") +
                  (tpu ? " and a TPU is present" : " and there is no TPU in this machine") +
                  "; no package with an XLA:CPU plugin is installed. Install one of them, or set "
                  "TORCH_TPU_PLUGIN to the path of a plugin");
}

}  // namespace torch_tpu::pjrt
