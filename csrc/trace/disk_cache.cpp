#include "trace/disk_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

namespace torch_tpu::trace {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[8] = {'T', 'T', 'P', 'U', 'E', 'X', 'E', '1'};
constexpr std::string_view kSuffix = ".executable";

// Multiplies and shifts over words; `seed` makes it another function.
uint64_t Hash(std::string_view bytes, uint64_t seed) {
  uint64_t hash = seed ^ (bytes.size() * 0x9E3779B97F4A7C15ull);
  auto mix = [&hash](uint64_t word) {
    hash = (hash ^ word) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
  };
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    mix(word);
  }
  uint64_t rest = 0;
  if (i < bytes.size()) std::memcpy(&rest, bytes.data() + i, bytes.size() - i);
  mix(rest);
  mix(seed);
  return hash;
}

struct Header {
  char magic[8];
  uint64_t key_bytes, contents_bytes, checksum;
};

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }

 private:
  const int descriptor_;
};

// The contents of a regular file of this user's; nullopt if it is anything else.
std::optional<std::string> ReadOwn(const std::string& path) {
  const File file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status;
  if (file.get() < 0 || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_uid != geteuid()) {
    return std::nullopt;
  }
  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = read(file.get(), bytes.data() + done, bytes.size() - done);
    if (n <= 0) return std::nullopt;
    done += static_cast<size_t>(n);
  }
  return bytes;
}

// Others see the whole file or none.
bool WriteWhole(const std::string& path, std::initializer_list<std::string_view> parts) {
  std::string partial = path + ".XXXXXX";
  bool written = true;
  {
    const File file(mkostemp(partial.data(), O_CLOEXEC));
    if (file.get() < 0) return false;
    for (std::string_view part : parts) {
      while (written && !part.empty()) {
        const ssize_t n = write(file.get(), part.data(), part.size());
        written = n > 0;
        if (written) part.remove_prefix(static_cast<size_t>(n));
      }
    }
  }
  if (written && rename(partial.c_str(), path.c_str()) == 0) return true;
  unlink(partial.c_str());
  return false;
}

struct Entry {
  fs::path path;
  int64_t bytes;
  fs::file_time_type used;
};

std::vector<Entry> EntriesOf(const std::string& directory) {
  std::vector<Entry> entries;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;  // another process may remove it meanwhile
    // Also what a process that died left half-written.
    if (it->path().filename().string().find(kSuffix) == std::string::npos) continue;
    const auto bytes = static_cast<int64_t>(it->file_size(gone));
    const auto used = it->last_write_time(gone);
    if (!gone) entries.push_back({it->path(), bytes, used});
  }
  return entries;
}

std::string DefaultDirectory() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    return std::string(cache) + "/torch_tpu";
  }
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? std::string(home) + "/.cache/torch_tpu" : "";
}

// "512M"; nullopt if it is no size.
std::optional<int64_t> ParseSize(const char* text) {
  char* end = nullptr;
  const double number = std::strtod(text, &end);
  double unit = 1;
  switch (*end) {
    case 'K':
      unit = 1 << 10;
      break;
    case 'M':
      unit = 1 << 20;
      break;
    case 'G':
      unit = 1 << 30;
      break;
    case '\0':
      break;
    default:
      return std::nullopt;
  }
  if (end == text || number < 0 || (*end != '\0' && end[1] != '\0')) return std::nullopt;
  return static_cast<int64_t>(number * unit);
}

// The processor's model and features as the kernel lists them.
std::string ProcessorFeatures() {
  std::ifstream file("/proc/cpuinfo");
  std::string line, features;
  while (std::getline(file, line) && !line.empty()) {
    for (const char* field : {"model name", "flags", "Features", "CPU part"}) {
      if (line.rfind(field, 0) == 0) features += line + "\n";
    }
  }
  return features;
}

// The hash of a large file, noted in `directory` beside the file's size and time.
std::string HashOfFile(const std::string& path, const std::string& directory) {
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (file.get() < 0 || fstat(file.get(), &status) != 0) return "";
  std::ostringstream text;
  text << path << "\n"
       << status.st_size << " " << status.st_ino << " " << status.st_mtim.tv_sec << "."
       << status.st_mtim.tv_nsec << "\n";
  const std::string note = directory + "/plugin-" + HashText(path);
  if (const auto noted = ReadOwn(note); noted && noted->rfind(text.str(), 0) == 0) {
    return noted->substr(text.str().size());
  }
  const auto size = static_cast<size_t>(status.st_size);
  void* bytes = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (bytes == MAP_FAILED) return "";
  const std::string hash = HashText({static_cast<const char*>(bytes), size});
  munmap(bytes, size);
  WriteWhole(note, {text.str(), hash});
  return hash;
}

}  // namespace

std::string HashText(std::string_view bytes) {
  char text[33];
  snprintf(text, sizeof text, "%016llx%016llx",
           static_cast<unsigned long long>(Hash(bytes, 0x243F6A8885A308D3ull)),
           static_cast<unsigned long long>(Hash(bytes, 0x13198A2E03707344ull)));
  return text;
}

std::string MachineIdentity(const std::string& plugin_path, const std::string& directory) {
  const char* flags = std::getenv("XLA_FLAGS");
  return "plugin " + HashOfFile(plugin_path, directory) + "\nprocessors " +
         std::to_string(std::thread::hardware_concurrency()) + "\n" + ProcessorFeatures() +
         "XLA_FLAGS " + (flags != nullptr ? flags : "") + "\n";
}

DiskCache::DiskCache(std::string directory, int64_t limit_bytes)
    : directory_(std::move(directory)), limit_(limit_bytes) {
  if (directory_.empty()) {
    why_unusable_ = "turned off";
    return;
  }
  std::error_code error;
  fs::create_directories(fs::path(directory_).parent_path(), error);
  mkdir(directory_.c_str(), 0700);
  struct stat status;
  if (stat(directory_.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    why_unusable_ = directory_ + " is not a directory and cannot be made one";
  } else if (status.st_uid != geteuid()) {
    why_unusable_ = directory_ + " belongs to another user";
  } else if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    why_unusable_ = directory_ + " is writable by others";
  }
}

DiskCache DiskCache::FromEnvironment() {
  constexpr int64_t kDefaultLimit = int64_t{4} << 30;
  const char* on = std::getenv("TORCH_TPU_CACHE");
  const char* directory = std::getenv("TORCH_TPU_CACHE_DIR");
  const char* size = std::getenv("TORCH_TPU_CACHE_SIZE");
  const bool off = on != nullptr && std::string_view(on) == "0";
  const std::string where =
      directory != nullptr && *directory != '\0' ? directory : DefaultDirectory();
  const auto limit = size != nullptr ? ParseSize(size) : std::nullopt;
  return DiskCache(off ? "" : where, limit.value_or(kDefaultLimit));
}

std::string DiskCache::PathOf(std::string_view key) const {
  return directory_ + "/" + HashText(key) + std::string(kSuffix);
}

std::optional<std::string> DiskCache::Load(std::string_view key) {
  if (!usable()) return std::nullopt;
  const std::string path = PathOf(key);
  std::optional<std::string> file = ReadOwn(path);
  Header header;
  if (file && file->size() >= sizeof header) {
    std::memcpy(&header, file->data(), sizeof header);
    const std::string_view body = std::string_view(*file).substr(sizeof header);
    if (std::memcmp(header.magic, kMagic, sizeof kMagic) == 0 && header.key_bytes == key.size() &&
        body.size() >= key.size() && body.size() - key.size() == header.contents_bytes &&
        body.substr(0, key.size()) == key && Hash(body, header.key_bytes) == header.checksum) {
      utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // used now
      hits_.fetch_add(1, std::memory_order_relaxed);
      return std::string(body.substr(key.size()));
    }
  }
  misses_.fetch_add(1, std::memory_order_relaxed);
  return std::nullopt;
}

void DiskCache::Store(std::string_view key, std::string_view contents) {
  if (!usable()) return;
  const auto size = static_cast<int64_t>(sizeof(Header) + key.size() + contents.size());
  if (size > limit_) return;
  Header header;
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.key_bytes = key.size();
  header.contents_bytes = contents.size();
  std::string body(key);
  body += contents;
  header.checksum = Hash(body, header.key_bytes);
  if (!WriteWhole(PathOf(key), {{reinterpret_cast<const char*>(&header), sizeof header}, body})) {
    return;
  }
  stored_.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard guard(mutex_);
  if (bytes_ < 0) {
    bytes_ = 0;
    for (const Entry& entry : EntriesOf(directory_)) bytes_ += entry.bytes;
  } else {
    bytes_ += size;
  }
  if (bytes_ > limit_) Evict();
}

void DiskCache::Evict() {
  std::vector<Entry> entries = EntriesOf(directory_);
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.used < b.used; });
  bytes_ = 0;
  for (const Entry& entry : entries) bytes_ += entry.bytes;
  // Some room more, so that not every entry from now on looks through the directory.
  const int64_t wanted = limit_ - limit_ / 8;
  std::error_code error;
  for (const Entry& entry : entries) {
    if (bytes_ <= wanted) break;
    fs::remove(entry.path, error);
    bytes_ -= entry.bytes;
  }
}

void DiskCache::Clear() {
  if (!usable()) return;
  std::lock_guard guard(mutex_);
  std::error_code error;
  for (const Entry& entry : EntriesOf(directory_)) fs::remove(entry.path, error);
  bytes_ = -1;
}

DiskCache::Info DiskCache::info() const {
  Info info;
  info.directory = directory_;
  info.why_unusable = why_unusable_;
  info.limit = limit_;
  info.hits = hits_.load();
  info.misses = misses_.load();
  info.stored = stored_.load();
  if (usable()) {
    for (const Entry& entry : EntriesOf(directory_)) {
      ++info.entries;
      info.bytes += entry.bytes;
    }
  }
  return info;
}

}  // namespace torch_tpu::trace
