#include "trace/dump.h"

#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "trace/operation.h"

namespace torch_tpu::trace {
namespace {

struct Settings {
  std::string directory;  // empty: nothing is dumped
  std::optional<stablehlo::Platform> platform;
};

const Settings& TheSettings() {
  static const Settings settings = [] {
    Settings s;
    if (const char* directory = std::getenv("TORCH_TPU_DUMP")) s.directory = directory;
    if (const char* text = std::getenv("TORCH_TPU_DUMP_PLATFORM")) {
      const std::string_view platform = text;
      if (platform == "tpu") s.platform = stablehlo::Platform::kTpu;
      if (platform == "cpu") s.platform = stablehlo::Platform::kCpu;
    }
    return s;
  }();
  return settings;
}

// FNV-1a.
uint64_t Hash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3ull;
  return hash;
}

std::string FileName(const std::string& operation, const std::string& module) {
  std::string name = operation.substr(0, 100);
  for (char& c : name) {
    if (!isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.') c = '_';
  }
  char hash[24];
  snprintf(hash, sizeof hash, "-%016" PRIx64, Hash(module));
  return name + hash + ".mlir";
}

}  // namespace

void DumpModule(const Operation& operation, const std::string& module) {
  const Settings& settings = TheSettings();
  if (settings.directory.empty()) return;
  const std::string text = settings.platform ? operation.Module(*settings.platform) : module;
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(settings.directory, error);
  const fs::path path = fs::path(settings.directory) / FileName(operation.name(), text);
  if (fs::exists(path, error)) return;
  // Other processes see the whole file or none.
  fs::path partial = path;
  partial += "." + std::to_string(getpid()) + ".partial";
  bool written = false;
  {
    std::ofstream file(partial);
    file << text;
    written = file.flush().good();
  }
  if (written) fs::rename(partial, path, error);
  if (!written || error) {
    static std::atomic<bool> told{false};
    if (!told.exchange(true)) {
      fprintf(stderr, "torch_tpu: TORCH_TPU_DUMP: cannot write %s\n", path.c_str());
    }
  }
}

}  // namespace torch_tpu::trace
