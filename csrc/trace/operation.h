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
  // `aliases`: parameter whose buffer a result may take over.
  Operation(std::string name, std::vector<const Type*> parameters, Lower lower,
            std::vector<std::pair<int, int>> aliases = {});

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

  // Enqueues the computation on `device`. `arguments`: one buffer for each *used* parameter, in
  // order; those at positions in `keep` must survive. `outputs` has room for results and checks.
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
  void Compile();

 private:
  // What running the lowering tells.
  struct Outline {
    std::vector<const Type*> results;
    std::vector<CheckSpec> checks;
    std::vector<bool> used;
  };
  Outline Trial(stablehlo::Platform platform) const;
  std::string Emit(stablehlo::Platform platform, const std::vector<bool>& used) const;

  const std::string& name_;
  const std::vector<const Type*> parameters_;
  const Lower lower_;
  const std::vector<std::pair<int, int>> aliases_;
  std::vector<const Type*> results_;
  std::vector<CheckSpec> checks_;
  std::vector<bool> used_;
  std::vector<int64_t> donatable_;
  size_t num_used_ = 0;
  std::mutex mutex_;
  std::shared_ptr<pjrt::Executable> executable_;
  std::atomic<const pjrt::Executable*> ready_{nullptr};
};

// Totals since the process began.
struct CompilationCounts {
  int64_t count = 0;
  int64_t from_disk = 0;  // of these
  double seconds = 0;
};
CompilationCounts Compilations();

}  // namespace torch_tpu::trace
