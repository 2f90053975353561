#include "trace/operation.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <unordered_set>

#include "trace/compile_log.h"
#include "trace/device.h"
#include "trace/dump.h"
#include "trace/loaded_operations.h"
#include "trace/runtime.h"

namespace torch_tpu::trace {
namespace {

using stablehlo::Builder;
using stablehlo::Values;

SpinLock counts_lock;
CompilationCounts counts;

// The one copy of a name in this process. Never freed.
const std::string& InternName(const std::string& name) {
  static auto* lock = new SpinLock;
  static auto* names = new std::unordered_set<std::string>;
  std::lock_guard guard(*lock);
  return *names->insert(name).first;
}

// A module name that MLIR accepts as a symbol.
std::string SymbolName(const std::string& name) {
  std::string symbol = name.empty() ? "trace" : name;
  for (char& c : symbol) {
    if (!isalnum(static_cast<unsigned char>(c)) && c != '_') c = '_';
  }
  return symbol;
}

}  // namespace

CompilationCounts Compilations() {
  std::lock_guard guard(counts_lock);
  return counts;
}

Operation::Operation(std::string name, std::vector<const Type*> parameters, Lower lower,
                     std::vector<std::pair<int, int>> aliases, std::vector<int> donated)
    : name_(InternName(name)),
      parameters_(std::move(parameters)),
      lower_(std::move(lower)),
      aliases_(std::move(aliases)),
      donated_(std::move(donated)) {
  Outline outline = Trial(Runtime::Get().platform());
  results_ = std::move(outline.results);
  checks_ = std::move(outline.checks);
  used_ = std::move(outline.used);
  for (bool used : used_) num_used_ += used;
  int position = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!used_[i]) continue;
    bool donatable = std::ranges::find(donated_, static_cast<int>(i)) != donated_.end();
    for (auto [parameter, result] : aliases_) {
      donatable |= parameter == static_cast<int>(i) && results_[result] == parameters_[i];
    }
    if (donatable) donatable_.push_back(position);
    ++position;
  }
}

Operation::Outline Operation::Trial(stablehlo::Platform platform) const {
  Builder builder(SymbolName(name_), platform);
  Values inputs;
  for (const Type* type : parameters_) inputs.push_back(builder.Parameter(*type));
  Lowered lowered = lower_(builder, inputs);
  Values roots = lowered.results;
  Outline outline;
  for (const auto& result : lowered.results) outline.results.push_back(Intern(result.type()));
  for (auto& check : lowered.checks) {
    outline.checks.push_back(std::move(check.spec));
    roots.push_back(check.ok);
  }
  outline.used = builder.LiveParameters(roots);
  return outline;
}

Operation::~Operation() {
  if (!ever_loaded_) return;
  Runtime::Get().DrainQueues();
  LoadedOperations::Get().Remove(this);
}

std::string Operation::Module() const { return Emit(Runtime::Get().platform(), used_); }

std::string Operation::Module(stablehlo::Platform platform) const {
  return Emit(platform, Trial(platform).used);
}

std::string Operation::Emit(stablehlo::Platform platform, const std::vector<bool>& used) const {
  Builder builder(SymbolName(name_), platform);
  Values inputs;
  std::vector<int> positions(parameters_.size(), -1);
  int position = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!used[i]) {
      inputs.emplace_back();
      continue;
    }
    inputs.push_back(builder.Parameter(*parameters_[i]));
    positions[i] = position++;
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    // Rules may touch an argument that reaches no result.
    if (!used[i]) inputs[i] = stablehlo::ZeroConstant(builder, *parameters_[i]);
  }
  for (auto [parameter, result] : aliases_) {
    if (used[parameter] && results_[result] == parameters_[parameter]) {
      builder.Alias(positions[parameter], result);
    }
  }
  for (int parameter : donated_) {
    if (used[parameter]) builder.Donate(positions[parameter]);
  }
  Lowered lowered = lower_(builder, inputs);
  Values outputs = std::move(lowered.results);
  for (const auto& check : lowered.checks) outputs.push_back(check.ok);
  return builder.Finish(outputs);
}

void Operation::Compile() {
  LoadedOperations::Get().MakeRoom();
  Load();
}

std::shared_ptr<pjrt::Executable> Operation::Executable() {
  for (;;) {
    if (!compiled()) Compile();
    std::lock_guard guard(mutex_);
    if (executable_ != nullptr) return executable_;
  }
}

std::shared_ptr<pjrt::Executable> Operation::Unload() {
  std::unique_lock guard(mutex_, std::try_to_lock);
  if (!guard) return nullptr;
  ready_.store(nullptr, std::memory_order_release);
  return std::move(executable_);
}

void Operation::Load() {
  std::lock_guard guard(mutex_);
  if (compiled()) return;
  const auto start = std::chrono::steady_clock::now();
  const std::string module = Module();
  DumpModule(*this, module);
  static const bool print = std::getenv("TORCH_TPU_PRINT_MODULES") != nullptr;
  if (print) fprintf(stderr, "%s\n%s\n", name_.c_str(), module.c_str());
  constexpr int64_t kSmallElements = 2048;
  int64_t largest = 0;
  for (const Type* type : parameters_) largest = std::max(largest, type->numel());
  for (const Type* type : results_) largest = std::max(largest, type->numel());
  const std::chrono::duration<double> building = std::chrono::steady_clock::now() - start;
  using Size = Runtime::ProgramSize;
  const Size size = optimize_fully_             ? Size::kGraph
                    : largest <= kSmallElements ? Size::kSmall
                                                : Size::kLarge;
  auto made = Runtime::Get().Compile(module, size,
                                     together_ ? together_->device_ids() : std::vector<int>());
  executable_ = std::move(made.executable);
  const bool again = std::exchange(ever_loaded_, true);
  last_used_.store(LoadedOperations::Now(), std::memory_order_relaxed);
  ready_.store(executable_.get(), std::memory_order_release);
  LoadedOperations::Get().Add(this);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  if (again) {
    reason_ = "was unloaded to make room";
  } else if (std::string types = CompareWithLast(name_, parameters_); reason_.empty()) {
    reason_ = std::move(types);
  }
  LogCompilation({.operation = name_,
                  .source = made.source,
                  .seconds = elapsed.count(),
                  .building = building.count(),
                  .loading = made.loading,
                  .compiling = made.compiling,
                  .operations = CountOperations(module),
                  .reason = reason_,
                  .where = where_});
  std::lock_guard counts_guard(counts_lock);
  ++counts.count;
  counts.from_disk += made.source == CompileSource::kDisk;
  counts.from_memory += made.source == CompileSource::kMemory;
  counts.seconds += elapsed.count();
}

void Operation::Execute(Device& device, PJRT_Buffer* const* arguments, size_t num_arguments,
                        std::span<const int64_t> keep, PJRT_Buffer** outputs) {
  const pjrt::Executable* executable = ready_.load(std::memory_order_acquire);
  if (C10_UNLIKELY(executable == nullptr)) {
    Load();  // unloaded since it was pushed
    executable = executable_.get();
  }
  const uint32_t now = LoadedOperations::Now();
  if (C10_UNLIKELY(last_used_.load(std::memory_order_relaxed) != now)) {
    last_used_.store(now, std::memory_order_relaxed);
  }
  executable->ExecuteUnchecked(arguments, num_arguments, outputs, keep, device.pjrt().raw());
}

}  // namespace torch_tpu::trace
