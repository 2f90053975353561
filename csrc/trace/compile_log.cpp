#include "trace/compile_log.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace torch_tpu::trace {
namespace {

constexpr size_t kCapacity = 4096;

std::mutex mutex;
uint64_t numbered = 0;
std::deque<CompileRecord>& Records() {
  static auto* records = new std::deque<CompileRecord>;
  return *records;
}

// TORCH_TPU_LOG is a list of topics, separated by commas.
bool Prints() {
  static const bool prints = [] {
    const char* text = std::getenv("TORCH_TPU_LOG");
    const std::string topics = "," + std::string(text != nullptr ? text : "") + ",";
    return topics.find(",compile,") != std::string::npos;
  }();
  return prints;
}

// "f32[8,64]"
std::string ShortName(const stablehlo::Type& type) {
  std::string text(stablehlo::Name(type.dtype));
  text += '[';
  for (size_t i = 0; i < type.dims.size(); ++i) {
    if (i > 0) text += ',';
    text += std::to_string(type.dims[i]);
  }
  return text + ']';
}

}  // namespace

const char* Name(CompileSource source) {
  switch (source) {
    case CompileSource::kMemory:
      return "memory";
    case CompileSource::kDisk:
      return "disk";
    case CompileSource::kCompiler:
      return "compiler";
  }
  return "";
}

void LogCompilation(CompileRecord record) {
  std::lock_guard guard(mutex);
  record.number = ++numbered;
  if (Prints()) {
    const std::string where = record.where.empty() ? "" : ", at " + record.where;
    // Graphs are no operators.
    const char* kind = record.operation.starts_with("compiled") ? "" : "aten.";
    fprintf(stderr, "torch_tpu: compile %llu: %s%s: %.1f ms, from %s, %lld operations: %s%s\n",
            static_cast<unsigned long long>(record.number), kind, record.operation.c_str(),
            record.seconds * 1e3, Name(record.source), static_cast<long long>(record.operations),
            record.reason.c_str(), where.c_str());
  }
  auto& records = Records();
  if (records.size() == kCapacity) records.pop_front();
  records.push_back(std::move(record));
}

std::vector<CompileRecord> CompileLog(bool clear) {
  std::lock_guard guard(mutex);
  auto& records = Records();
  std::vector<CompileRecord> copy(records.begin(), records.end());
  if (clear) records.clear();
  return copy;
}

int64_t CountOperations(std::string_view module) {
  // Each stands on a line of its own that begins with its results.
  int64_t count = 0;
  for (size_t end = module.find('\n'); end != std::string_view::npos;
       end = module.find('\n', end + 1)) {
    const size_t first = module.find_first_not_of(' ', end + 1);
    count += first != std::string_view::npos && module[first] == '%';
  }
  return count;
}

std::string CompareWithLast(const std::string& name,
                            const std::vector<const stablehlo::Type*>& parameters) {
  static auto* last = new std::unordered_map<std::string, std::vector<const stablehlo::Type*>>;
  std::vector<const stablehlo::Type*> before;
  {
    std::lock_guard guard(mutex);
    auto [found, first] = last->emplace(name, parameters);
    if (first) return "first program of this name";
    before = std::exchange(found->second, parameters);
  }
  if (before.size() != parameters.size()) {
    return "had " + std::to_string(before.size()) + " arguments, now " +
           std::to_string(parameters.size());
  }
  std::string text;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (*parameters[i] == *before[i]) continue;
    if (!text.empty()) text += "; ";
    text += "argument " + std::to_string(i) + " was " + ShortName(*before[i]) + ", now " +
            ShortName(*parameters[i]);
  }
  return text.empty() ? "another view or setting of the same arguments" : text;
}

}  // namespace torch_tpu::trace
