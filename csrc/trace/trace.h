#pragma once

#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "trace/operation.h"
#include "trace/together.h"
#include "trace/value.h"

namespace torch_tpu::trace {

// Thrown when what is being captured needs the data of a pending value (.item(), .cpu(), shapes
// that depend on data).
class CaptureAborted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A line of Python; no file where it is not known.
struct SourceLine {
  std::string file;
  int line = 0;
};

// One recorded call: an operation and its inputs.
struct Node {
  std::shared_ptr<Operation> operation;
  std::vector<ValuePtr> inputs;  // one for each parameter; null where the parameter is unused
  SourceLine source;
};

// A sequence of nodes over placeholders, recorded instead of executed. Belongs to one device;
// recording is serialized by the caller that installed it.
class Trace {
 public:
  // `enclosing`: a trace that is being recorded too, in which this one is to be a part of a node.
  // Its values may be used here; they become placeholders (`imported`).
  explicit Trace(Device* device, Trace* enclosing = nullptr)
      : device_(device), enclosing_(enclosing) {}
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  Device& device() const { return *device_; }
  ValuePtr Placeholder(const Type* type);
  // The ranks that are to run the program together, null as long as there are none; one for this
  // trace and those that enclose it.
  std::shared_ptr<Together>& together() {
    return enclosing_ != nullptr ? enclosing_->together() : together_;
  }
  // Appends a node; its results are pending values.
  std::vector<ValuePtr> Record(std::shared_ptr<Operation> operation, std::vector<ValuePtr> inputs);
  size_t size() const { return nodes_.size(); }
  // The values of the enclosing trace that were used, and the placeholders that stand for them.
  struct Imported {
    ValuePtr outer, placeholder;
  };
  const std::vector<Imported>& imported() const { return imported_; }
  // The line that nodes recorded from now on come from.
  void SetSource(SourceLine source) { source_ = std::move(source); }

  // Random numbers. A trace that allows them has two more placeholders, the generator's seed and
  // offset (u64[]), made by the first call here; each call draws `count` numbers after those of the
  // calls before it. One that does not is aborted.
  void AllowRandom() { random_allowed_ = true; }
  std::pair<ValuePtr, ValuePtr> DrawRandom(uint64_t count, const std::string& who);
  // Numbers are drawn from this seed and offset (values of this trace) until null is given.
  void DrawRandomFrom(ValuePtr seed, ValuePtr offset);
  // Numbers that one run of the trace draws from the generator.
  uint64_t draws() const { return draws_; }
  // Whether there are placeholders for the generator's seed and offset: `random_index()`, and the
  // one after it. They are the last two, unless values of an enclosing trace were used after them.
  bool random() const { return seed_ != nullptr; }
  int random_index() const { return seed_->index(); }

  // The whole trace as one operation: parameters are the placeholders, then `closed_over()`.
  // `aliases` (placeholder, output) and `donated` (placeholders) as for Operation.
  std::shared_ptr<Operation> Close(std::string name, const std::vector<ValuePtr>& outputs,
                                   std::vector<std::pair<int, int>> aliases = {},
                                   std::vector<int> donated = {});
  // Computed values that nodes refer to; filled by Close.
  const std::vector<ValuePtr>& closed_over() const { return closed_over_; }

  // The trace this thread records into, or nullptr.
  static Trace* Current();
  // The same where there has to be one; throws c10::Error if there is not.
  static Trace& Installed();
  // Gives up what this thread captures: marks it, with the traces that enclose it, and throws
  // CaptureAborted. The mark is what counts, for on its way through Python the exception loses its
  // type.
  [[noreturn]] static void Abort(const std::string& why);
  bool aborted() const { return aborted_; }
  class Scope {
   public:
    explicit Scope(Trace* trace);
    ~Scope();

   private:
    Trace* previous_;
  };

 private:
  // The placeholder that stands for a value of an enclosing trace.
  ValuePtr Import(const ValuePtr& value);

  Device* const device_;
  Trace* const enclosing_;
  std::vector<const Type*> placeholders_;
  std::vector<Node> nodes_;
  std::vector<Imported> imported_;
  std::vector<ValuePtr> closed_over_;
  SourceLine source_;
  bool random_allowed_ = false;
  ValuePtr seed_, offset_;
  uint64_t draws_ = 0;
  ValuePtr other_seed_, other_offset_;
  uint64_t other_draws_ = 0;
  bool aborted_ = false;
  std::shared_ptr<Together> together_;
};

enum class Mode { kStrict, kDebug };
Mode CurrentMode();
void SetMode(Mode mode);

// Queues `operation` on the values for its device, or records it where this thread captures; debug
// mode waits for the result. Compiles the operation first, if need be, and throws if that fails.
// `inputs` has one entry for each parameter (null where unused) and is taken over, except in debug
// mode and where this thread captures. With `donate` inputs that nothing else refers to when the
// launch is served may be overwritten. Returns one value for each result.
void Run(const std::shared_ptr<Operation>& operation, Device& device, std::span<ValuePtr> inputs,
         bool donate, ValuePtr* results);

}  // namespace torch_tpu::trace
