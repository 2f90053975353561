#include "trace/trace.h"

#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <cmath>
#include <unordered_map>

#include "trace/device.h"

namespace torch_tpu::trace {
namespace {

thread_local Trace* current_trace = nullptr;
std::atomic<Mode> current_mode{Mode::kStrict};

stablehlo::Value NumberConstant(stablehlo::Builder& builder, const HostNumber& number) {
  const Type type{number.dtype, {}};
  if (stablehlo::IsComplex(number.dtype)) {
    return builder.ConstantComplex(type, number.real, number.imag);
  }
  if (stablehlo::IsFloat(number.dtype)) return builder.Constant(type, number.real);
  return builder.ConstantInt(type, number.integer);
}

// Where an input of a node comes from, once values are forgotten.
struct Source {
  enum class Kind { kNone, kPlaceholder, kNode, kNumber, kClosedOver } kind = Kind::kNone;
  int node = 0, index = 0;
  HostNumber number;
};

struct Step {
  std::shared_ptr<Operation> operation;
  std::vector<Source> inputs;
  SourceLine source;
};

// offset + by, for the generator's offset in the middle of a trace.
std::shared_ptr<Operation> AdvanceOperation(const Type* type, uint64_t by) {
  return std::make_shared<Operation>(
      "advance_generator", std::vector<const Type*>{type},
      [type, by](stablehlo::Builder& builder, const stablehlo::Values& inputs) {
        const auto step = builder.ConstantInt(*type, static_cast<int64_t>(by));
        return Lowered{{stablehlo::Add(inputs[0], step)}, {}};
      });
}

}  // namespace

Trace* Trace::Current() { return current_trace; }
Trace& Trace::Installed() {
  TORCH_CHECK(current_trace != nullptr, "nothing is being captured");
  return *current_trace;
}
void Trace::Abort(const std::string& why) {
  for (Trace* trace = current_trace; trace != nullptr; trace = trace->enclosing_) {
    trace->aborted_ = true;
  }
  throw CaptureAborted(why);
}
Trace::Scope::Scope(Trace* trace) : previous_(current_trace) { current_trace = trace; }
Trace::Scope::~Scope() { current_trace = previous_; }

Mode CurrentMode() { return current_mode.load(std::memory_order_relaxed); }
void SetMode(Mode mode) { current_mode.store(mode); }

ValuePtr Trace::Placeholder(const Type* type) {
  placeholders_.push_back(type);
  return c10::make_intrusive<Value>(type, device_, this, -1,
                                    static_cast<int>(placeholders_.size()) - 1);
}

ValuePtr Trace::Import(const ValuePtr& value) {
  if (enclosing_ == nullptr) Abort("a value of another capture is used");
  const ValuePtr outer = value->trace() == enclosing_ ? value : enclosing_->Import(value);
  for (const Imported& known : imported_) {
    if (known.outer == outer) return known.placeholder;
  }
  imported_.push_back({outer, Placeholder(outer->type())});
  return imported_.back().placeholder;
}

std::vector<ValuePtr> Trace::Record(std::shared_ptr<Operation> operation,
                                    std::vector<ValuePtr> inputs) {
  for (ValuePtr& input : inputs) {
    if (input && input->pending() && input->trace() != this) input = Import(input);
  }
  std::vector<ValuePtr> results;
  const int node = static_cast<int>(nodes_.size());
  for (size_t i = 0; i < operation->results().size(); ++i) {
    results.push_back(c10::make_intrusive<Value>(operation->results()[i], device_, this, node,
                                                 static_cast<int>(i)));
  }
  nodes_.push_back({std::move(operation), std::move(inputs), source_});
  return results;
}

std::pair<ValuePtr, ValuePtr> Trace::DrawRandom(uint64_t count, const std::string& who) {
  if (!random_allowed_) Abort(who + " draws random numbers");
  static const Type* word = Intern(Type{DType::kU64, {}});
  if (!seed_ && !other_seed_) {
    seed_ = Placeholder(word);
    offset_ = Placeholder(word);
  }
  const bool other = other_seed_ != nullptr;
  uint64_t& draws = other ? other_draws_ : draws_;
  ValuePtr offset = other ? other_offset_ : offset_;
  if (draws > 0) offset = Record(AdvanceOperation(word, draws), {std::move(offset)})[0];
  draws += count;
  return {other ? other_seed_ : seed_, std::move(offset)};
}

void Trace::DrawRandomFrom(ValuePtr seed, ValuePtr offset) {
  other_seed_ = std::move(seed);
  other_offset_ = std::move(offset);
  other_draws_ = 0;
}

std::shared_ptr<Operation> Trace::Close(std::string name, const std::vector<ValuePtr>& outputs,
                                        std::vector<std::pair<int, int>> aliases,
                                        std::vector<int> donated) {
  std::unordered_map<const Value*, int> captured;
  auto source_of = [&](const ValuePtr& value) -> Source {
    if (!value) return {};
    if (value->pending() && value->trace() != this) {
      return {Source::Kind::kPlaceholder, 0, Import(value)->index(), {}};
    }
    if (value->pending()) {
      if (value->node() < 0) return {Source::Kind::kPlaceholder, 0, value->index(), {}};
      return {Source::Kind::kNode, value->node(), value->index(), {}};
    }
    if (value->number) return {Source::Kind::kNumber, 0, 0, *value->number};
    auto [it, inserted] = captured.emplace(value.get(), static_cast<int>(closed_over_.size()));
    if (inserted) closed_over_.push_back(value);
    return {Source::Kind::kClosedOver, 0, it->second, {}};
  };
  std::vector<Step> steps;
  for (const Node& node : nodes_) {
    Step step{node.operation, {}, node.source};
    for (const ValuePtr& input : node.inputs) step.inputs.push_back(source_of(input));
    steps.push_back(std::move(step));
  }
  std::vector<Source> ends;
  for (const ValuePtr& output : outputs) ends.push_back(source_of(output));

  std::vector<const Type*> parameters = placeholders_;
  for (const ValuePtr& value : closed_over_) parameters.push_back(value->type());
  const size_t num_placeholders = placeholders_.size();
  auto lower = [steps = std::move(steps), ends = std::move(ends), num_placeholders](
                   stablehlo::Builder& builder, const stablehlo::Values& inputs) {
    std::vector<stablehlo::Values> results;
    Lowered lowered;
    auto resolve = [&](const Source& source, const Type* type) -> stablehlo::Value {
      switch (source.kind) {
        case Source::Kind::kNone:
          return stablehlo::ZeroConstant(builder, *type);
        case Source::Kind::kPlaceholder:
          return inputs[source.index];
        case Source::Kind::kNode:
          return results[source.node][source.index];
        case Source::Kind::kNumber:
          return NumberConstant(builder, source.number);
        case Source::Kind::kClosedOver:
          return inputs[num_placeholders + source.index];
      }
      return {};
    };
    for (const Step& step : steps) {
      builder.SetSource(step.source.file, step.source.line);
      stablehlo::Values arguments;
      for (size_t i = 0; i < step.inputs.size(); ++i) {
        arguments.push_back(resolve(step.inputs[i], step.operation->parameters()[i]));
      }
      Lowered part = step.operation->Inline(builder, arguments);
      results.push_back(std::move(part.results));
      for (auto& check : part.checks) {
        check.spec.message = step.operation->name() + ": " + check.spec.message;
        lowered.checks.push_back(std::move(check));
      }
    }
    for (const Source& end : ends) lowered.results.push_back(resolve(end, nullptr));
    return lowered;
  };
  auto operation =
      std::make_shared<Operation>(std::move(name), std::move(parameters), std::move(lower),
                                  std::move(aliases), std::move(donated));
  if (enclosing_ == nullptr) operation->RunTogether(together_);
  return operation;
}

void Run(const std::shared_ptr<Operation>& operation, Device& device, std::span<ValuePtr> inputs,
         bool donate, ValuePtr* results) {
  if (C10_UNLIKELY(current_trace != nullptr)) {
    if (operation->together() != nullptr) Trace::Abort("a program of several ranks is used");
    auto values = current_trace->Record(operation, {inputs.begin(), inputs.end()});
    for (size_t i = 0; i < values.size(); ++i) results[i] = std::move(values[i]);
    return;
  }
  Operation& op = *operation;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (C10_UNLIKELY(op.uses(static_cast<int>(i)) && inputs[i]->pending())) {
      Trace::Abort("the data of a value being captured is needed by " + op.name());
    }
  }
  if (Together* together = op.together(); C10_UNLIKELY(together != nullptr)) {
    together->Run(op, device, inputs, donate, results);
    return;
  }
  if (C10_UNLIKELY(!op.compiled())) op.Compile();
  const bool debug = CurrentMode() == Mode::kDebug;
  device.queue().Push([&](Launch& launch) {
    launch.operation = &op;
    // What went in is looked at when something wrong comes out.
    launch.donate = donate && !debug;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!op.uses(static_cast<int>(i))) continue;
      if (debug) {
        launch.arguments.push_back(inputs[i]);
      } else {
        launch.arguments.push_back(std::move(inputs[i]));
      }
    }
    for (size_t i = 0; i < op.results().size(); ++i) {
      results[i] = c10::make_intrusive<Value>(op.results()[i], &device, &op.name());
      launch.outputs.push_back(results[i]);
    }
    static const Type* pred = Intern(Type{DType::kPred, {}});
    for (const CheckSpec& spec : op.checks()) {
      launch.outputs.push_back(c10::make_intrusive<Value>(pred, &device, &op.name()));
      device.AddCheck({launch.outputs.back(), op.name() + ": " + spec.message, spec.index_error});
    }
  });
  if (C10_UNLIKELY(debug)) device.Synchronize();
}

}  // namespace torch_tpu::trace
