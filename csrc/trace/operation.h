#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pjrt/executable.h"
#include "stablehlo/builder.h"
#include "trace/together.h"
#include "trace/value.h"

namespace torch_tpu::trace {

// A check compiled into an operation: an extra pred[] result after the declared ones.
struct CheckSpec {
  std::string message;
  bool index_error = true;
};

// What a lowering produced.
struct Lowered {
  stablehlo::Values results;
  struct Check {
    stablehlo::Value ok;
    CheckSpec spec;
  };
  std::vector<Check> checks;
};

// A computation of fixed types: one operator call, or a whole trace. Immutable once built; compiled
// when it first runs. Shared by every call of the same signature.
class Operation {
 public:
  // Writes the computation into a module whose parameters have the operation's parameter types.
  using Lower = std::function<Lowered(stablehlo::Builder&, const stablehlo::Values&)>;

  // Runs the lowering once to learn the results, the checks and which parameters are used.
  // `aliases`: parameter whose buffer a result may take over. `donated`: parameters whose buffers
  // anything may take over.
  Operation(std::string name, std::vector<const Type*> parameters, Lower lower,
            std::vector<std::pair<int, int>> aliases = {}, std::vector<int> donated = {});

  // Waits for launches that are still queued.
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Lives for ever.
  const std::string& name() const { return name_; }
  const std::vector<const Type*>& parameters() const { return parameters_; }
  bool uses(int parameter) const { return used_[parameter]; }
  // Results, without the checks.
  const std::vector<const Type*>& results() const { return results_; }
  const std::vector<CheckSpec>& checks() const { return checks_; }
  Lowered Inline(stablehlo::Builder& builder, const stablehlo::Values& parameters) const {
    return lower_(builder, parameters);
  }

  // Enqueues the computation on `device`; only whoever serves a launch queue may. `arguments`: one
  // buffer for each *used* parameter, in order; those at positions in `keep` must survive.
  // `outputs` has room for results and checks.
  void Execute(Device& device, PJRT_Buffer* const* arguments, size_t num_arguments,
               std::span<const int64_t> keep, PJRT_Buffer** outputs);
  size_t num_outputs() const { return results_.size() + checks_.size(); }
  size_t num_arguments() const { return num_used_; }
  bool compiled() const { return ready_.load(std::memory_order_acquire) != nullptr; }
  // Positions (among used parameters) that an execution may donate; the others always survive.
  const std::vector<int64_t>& donatable() const { return donatable_; }
  // StableHLO text of the module as it is compiled here, and as it would be for another platform
  // (there it may use other parameters and check other things).
  std::string Module() const;
  std::string Module(stablehlo::Platform platform) const;
  // Which parameters that platform's module has.
  std::vector<bool> Uses(stablehlo::Platform platform) const { return Trial(platform).used; }
  // Says that this is a whole graph, worth the compiler's time. Before it is compiled.
  void OptimizeFully() { optimize_fully_ = true; }
  // Says that these ranks run it together; null for one that runs on one device. Before it is
  // compiled.
  void RunTogether(std::shared_ptr<Together> together) { together_ = std::move(together); }
  Together* together() const { return together_.get(); }
  // The executable, made if it is not there.
  std::shared_ptr<pjrt::Executable> Executable();
  // Makes the executable, if it is not there. May unload those of other operations; not while a
  // launch queue is being served.
  void Compile();
  // For the compile log: why this operation was not there ("": what its parameters' types tell),
  // and the Python line it is for. Before the operation is shared between threads.
  void Explain(std::string reason, std::string where) {
    reason_ = std::move(reason);
    where_ = std::move(where);
  }

  // For LoadedOperations. The executable, or nullptr.
  const pjrt::Executable* loaded() const { return ready_.load(std::memory_order_acquire); }
  // LoadedOperations' clock when it was last executed.
  uint32_t last_used() const { return last_used_.load(std::memory_order_relaxed); }
  // Gives the executable away; nullptr if it is just being made. No launch may be served meanwhile.
  std::shared_ptr<pjrt::Executable> Unload();

 private:
  // What running the lowering tells.
  struct Outline {
    std::vector<const Type*> results;
    std::vector<CheckSpec> checks;
    std::vector<bool> used;
  };
  Outline Trial(stablehlo::Platform platform) const;
  // Compile without unloading others.
  void Load();
  std::string Emit(stablehlo::Platform platform, const std::vector<bool>& used) const;

  const std::string& name_;
  const std::vector<const Type*> parameters_;
  const Lower lower_;
  const std::vector<std::pair<int, int>> aliases_;
  const std::vector<int> donated_;
  bool optimize_fully_ = false;
  std::shared_ptr<Together> together_;
  std::vector<const Type*> results_;
  std::vector<CheckSpec> checks_;
  std::vector<bool> used_;
  std::vector<int64_t> donatable_;
  size_t num_used_ = 0;
  std::mutex mutex_;
  std::shared_ptr<pjrt::Executable> executable_;
  std::atomic<const pjrt::Executable*> ready_{nullptr};
  std::atomic<uint32_t> last_used_{0};
  bool ever_loaded_ = false;
  std::string reason_, where_;
};

// Totals since the process began.
struct CompilationCounts {
  int64_t count = 0;
  int64_t from_disk = 0, from_memory = 0;  // of these
  double seconds = 0;
};
CompilationCounts Compilations();

}  // namespace torch_tpu::trace
