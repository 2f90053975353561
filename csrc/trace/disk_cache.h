#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace torch_tpu::trace {

// Serialized executables, and what else `torch.compile` keeps of a program, in a directory, from
// run to run and shared by processes. An entry is a file named by the hash of its key and holds the
// key, so that a collision is a miss; a file is written whole or not at all, and one that is torn,
// foreign or not the user's own is a miss. When the files exceed the limit the longest unused go.
// Thread-safe. Nothing here throws: a cache that cannot be used is one that is empty.
class DiskCache {
 public:
  // Makes `directory`, readable by this user alone, if it is missing. Refuses one that belongs to
  // somebody else or that others may write to: whoever can write executables can run code.
  DiskCache(std::string directory, int64_t limit_bytes);
  // As the environment says: TORCH_TPU_CACHE_DIR (else torch_tpu in the user's cache directory),
  // TORCH_TPU_CACHE_SIZE (bytes, or with K, M, G), TORCH_TPU_CACHE=0 for none.
  static DiskCache FromEnvironment();

  bool usable() const { return why_unusable_.empty(); }
  std::optional<std::string> Load(std::string_view key);
  void Store(std::string_view key, std::string_view contents);
  // Removes all entries.
  void Clear();

  struct Info {
    std::string directory;
    std::string why_unusable;  // "" if it is in use
    int64_t entries = 0, bytes = 0, limit = 0;
    int64_t hits = 0, misses = 0, stored = 0;  // of this process
  };
  Info info() const;

 private:
  std::string PathOf(std::string_view key) const;
  void Evict();

  const std::string directory_;
  const int64_t limit_;
  std::string why_unusable_;
  std::atomic<int64_t> hits_{0}, misses_{0}, stored_{0};
  std::mutex mutex_;
  int64_t bytes_ = -1;  // of all entries, an estimate once they were counted
};

// 16 hexadecimal digits for each of two independent 64-bit hashes. Not against adversaries.
std::string HashText(std::string_view bytes);

// What a compiled program depends on besides its module and options, as text: the plugin's contents
// (found once for a file of this size and time, and noted in `directory`), the processor's
// features and number, and XLA's flags.
std::string MachineIdentity(const std::string& plugin_path, const std::string& directory);

}  // namespace torch_tpu::trace
