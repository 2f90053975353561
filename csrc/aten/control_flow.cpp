#include "aten/control_flow.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "aten/errors.h"
#include "aten/storage.h"
#include "lowering/call.h"
#include "trace/operation.h"
#include "trace/trace.h"

namespace torch_tpu::aten {
namespace {

using stablehlo::Builder;
using stablehlo::Dims;
using stablehlo::Values;
using trace::CheckSpec;
using trace::DType;
using trace::Lowered;
using trace::Operation;
using trace::Type;
using trace::ValuePtr;

// Random numbers that the iterations of a loop of unknown length have to themselves. They follow
// one another from where the generator stands when the loop begins, and it moves on by this much.
constexpr uint64_t kDrawsOfLoop = uint64_t{1} << 40;

std::string Describe(const at::Tensor& tensor) {
  return c10::str(tensor.scalar_type(), tensor.sizes());
}

// The storages of the operands, which bodies may write to.
class Storages {
 public:
  explicit Storages(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined() || !tensor.device().is_privateuseone()) continue;
      StorageState& state = StateOf(tensor);
      if (tensor.storage().nbytes() == 0 || std::ranges::find(states_, &state) != states_.end()) {
        continue;
      }
      values_.push_back(ReadStorage(tensor));
      states_.push_back(&state);
    }
  }
  size_t size() const { return states_.size(); }
  const ValuePtr& value(size_t i) const { return values_[i]; }
  // Gives the storages values, and returns those they had.
  std::vector<ValuePtr> Exchange(std::vector<ValuePtr> values) const {
    for (size_t i = 0; i < size(); ++i) Swap(i, values[i]);
    return values;
  }
  void Set(size_t i, ValuePtr value) const { Swap(i, value); }

 private:
  void Swap(size_t i, ValuePtr& value) const {
    std::lock_guard guard(states_[i]->lock);
    states_[i]->value.swap(value);
  }
  std::vector<StorageState*> states_;
  std::vector<ValuePtr> values_;
};

// Inputs of the enclosing operation, each value once.
class InputList {
 public:
  int Add(const ValuePtr& value) {
    auto [it, added] = index_.emplace(value.get(), static_cast<int>(values_.size()));
    if (added) values_.push_back(value);
    return it->second;
  }
  const std::vector<ValuePtr>& values() const { return values_; }
  std::vector<const Type*> types() const {
    std::vector<const Type*> types;
    for (const ValuePtr& value : values_) types.push_back(value->type());
    return types;
  }

 private:
  std::vector<ValuePtr> values_;
  std::unordered_map<const trace::Value*, int> index_;
};

// A captured body. Its operation computes the outputs that are defined, then the values that the
// storages have afterwards.
struct Region {
  // Where the operation's parameters come from.
  struct Source {
    enum class Kind { kArgument, kStorage, kSeed, kOffset, kInput } kind;
    int index = 0;
  };
  std::shared_ptr<Operation> operation;
  std::vector<Source> sources;
  std::vector<at::Tensor> outputs;  // their values belong to a trace that is gone
  std::vector<bool> writes;         // by storage
  bool random = false;
  uint64_t draws = 0;

  size_t num_results() const { return operation->results().size() - writes.size(); }

  // `random`: seed and offset; empty where nothing draws.
  Lowered Inline(Builder& builder, const Values& arguments, const Values& storages,
                 const Values& random, const Values& inputs) const {
    Values parameters;
    for (const Source& source : sources) {
      switch (source.kind) {
        case Source::Kind::kArgument:
          parameters.push_back(arguments[source.index]);
          break;
        case Source::Kind::kStorage:
          parameters.push_back(storages[source.index]);
          break;
        case Source::Kind::kSeed:
          parameters.push_back(random[0]);
          break;
        case Source::Kind::kOffset:
          parameters.push_back(random[1]);
          break;
        case Source::Kind::kInput:
          parameters.push_back(inputs[source.index]);
          break;
      }
    }
    return operation->Inline(builder, parameters);
  }

  // What it checks on a platform. Needed before it is inlined, for a region says first how many
  // values it gives.
  std::vector<CheckSpec> Checks(stablehlo::Platform platform) const {
    Builder scratch("checks", platform);
    Values parameters;
    for (const Type* type : operation->parameters()) parameters.push_back(scratch.Parameter(*type));
    std::vector<CheckSpec> specs;
    for (auto& check : operation->Inline(scratch, parameters).checks) {
      specs.push_back(std::move(check.spec));
    }
    return specs;
  }
};

// Captures a body over arguments like these tensors. Adds to `inputs` what it takes from outside.
Region CaptureRegion(const std::string& name, const RegionBody& body,
                     const std::vector<at::Tensor>& like, const Storages& storages,
                     InputList& inputs) {
  using Source = Region::Source;
  trace::Trace& outer = trace::Trace::Installed();
  trace::Trace capture(&outer.device(), &outer);
  capture.AllowRandom();
  std::vector<ValuePtr> placeholders;
  for (const at::Tensor& tensor : like) {
    placeholders.push_back(capture.Placeholder(LogicalType(tensor)));
  }
  std::vector<ValuePtr> before;
  for (size_t i = 0; i < storages.size(); ++i) {
    before.push_back(capture.Placeholder(storages.value(i)->type()));
  }
  Region region;
  std::vector<ValuePtr> results;
  {
    trace::Trace::Scope scope(&capture);
    std::vector<at::Tensor> arguments;
    for (size_t i = 0; i < like.size(); ++i) {
      arguments.push_back(DenseLike(like[i], placeholders[i]));
    }
    const std::vector<ValuePtr> outside = storages.Exchange(before);
    std::vector<ValuePtr> after;
    try {
      region.outputs = body(arguments);
      for (const at::Tensor& output : region.outputs) {
        if (!output.defined()) continue;
        if (!output.device().is_privateuseone()) {
          trace::Trace::Abort(c10::str("a result of ", name, " is on ", output.device()));
        }
        results.push_back(Materialize(output));
      }
    } catch (...) {
      storages.Exchange(outside);
      throw;
    }
    after = storages.Exchange(outside);
    for (size_t i = 0; i < storages.size(); ++i) {
      region.writes.push_back(after[i] != before[i]);
      if (after[i]->type() != before[i]->type()) {
        trace::Trace::Abort(name + " changes the dtype of what is written");
      }
      results.push_back(std::move(after[i]));
    }
  }
  if (capture.aborted()) throw trace::CaptureAborted(name + " cannot be captured");
  region.operation = capture.Close(name, results);
  region.sources.resize(region.operation->parameters().size());
  size_t next = 0;
  for (size_t i = 0; i < like.size(); ++i) {
    region.sources[next++] = {Source::Kind::kArgument, static_cast<int>(i)};
  }
  for (size_t i = 0; i < storages.size(); ++i) {
    region.sources[next++] = {Source::Kind::kStorage, static_cast<int>(i)};
  }
  if (capture.random()) {
    region.random = true;
    region.draws = capture.draws();
    region.sources[capture.random_index()] = {Source::Kind::kSeed, 0};
    region.sources[capture.random_index() + 1] = {Source::Kind::kOffset, 0};
  }
  for (const auto& imported : capture.imported()) {
    region.sources[imported.placeholder->index()] = {Source::Kind::kInput,
                                                     inputs.Add(imported.outer)};
  }
  next = region.sources.size() - capture.closed_over().size();
  for (const ValuePtr& value : capture.closed_over()) {
    region.sources[next++] = {Source::Kind::kInput, inputs.Add(value)};
  }
  return region;
}

Values Select(const Values& all, const std::vector<int>& indices) {
  Values selected;
  for (int index : indices) selected.push_back(all[index]);
  return selected;
}

std::vector<int> AddStorages(const Storages& storages, InputList& inputs) {
  std::vector<int> indices;
  for (size_t i = 0; i < storages.size(); ++i) indices.push_back(inputs.Add(storages.value(i)));
  return indices;
}

// Seed and offset for regions that draw at most this much together.
std::vector<int> AddRandom(bool random, uint64_t draws, const std::string& name,
                           InputList& inputs) {
  if (!random) return {};
  const auto [seed, offset] = trace::Trace::Installed().DrawRandom(draws, name);
  return {inputs.Add(seed), inputs.Add(offset)};
}

// Tensors over the first results of a node, None where there is none; the rest are what became of
// the storages that are written to.
std::vector<at::Tensor> Finish(const std::vector<at::Tensor>& like, const Storages& storages,
                               const std::vector<bool>& written, std::vector<ValuePtr> results) {
  std::vector<at::Tensor> outputs;
  size_t next = 0;
  for (const at::Tensor& tensor : like) {
    outputs.push_back(tensor.defined() ? DenseLike(tensor, std::move(results[next++]))
                                       : at::Tensor());
  }
  for (size_t i = 0; i < storages.size(); ++i) {
    if (written[i]) storages.Set(i, std::move(results[next++]));
  }
  return outputs;
}

stablehlo::Value ToPredicate(stablehlo::Value value) {
  return stablehlo::Reshape(stablehlo::Convert(value, DType::kPred), {});
}

// --- branches

struct Branches {
  Region on_true, on_false;
  std::vector<bool> written;  // by storage
  int predicate;
  std::vector<int> storages, random;  // among the inputs
};

Lowered LowerCond(Builder& builder, const Values& inputs, const Branches& branches) {
  const Values storages = Select(inputs, branches.storages);
  const Values random = Select(inputs, branches.random);
  std::vector<Type> types;
  const size_t num_results = branches.on_true.num_results();
  for (size_t i = 0; i < branches.on_true.operation->results().size(); ++i) {
    if (i >= num_results && !branches.written[i - num_results]) continue;
    types.push_back(*branches.on_true.operation->results()[i]);
  }
  const size_t num_values = types.size();
  const Type pred{DType::kPred, {}};
  std::vector<CheckSpec> specs = branches.on_true.Checks(builder.platform());
  const size_t num_true = specs.size();
  for (CheckSpec& spec : branches.on_false.Checks(builder.platform())) {
    specs.push_back(std::move(spec));
  }
  types.insert(types.end(), specs.size(), pred);
  // The checks of the branch that is not taken hold.
  auto region = [&](const Region& taken, size_t holding_before, size_t holding_after) {
    return [&, holding_before, holding_after](const Values&) {
      Lowered lowered = taken.Inline(builder, {}, storages, random, inputs);
      Values values;
      for (size_t i = 0; i < lowered.results.size(); ++i) {
        if (i < num_results || branches.written[i - num_results]) {
          values.push_back(lowered.results[i]);
        }
      }
      for (size_t i = 0; i < holding_before; ++i) values.push_back(builder.ConstantInt(pred, 1));
      for (const auto& check : lowered.checks) values.push_back(check.ok);
      for (size_t i = 0; i < holding_after; ++i) values.push_back(builder.ConstantInt(pred, 1));
      return values;
    };
  };
  const Values values = stablehlo::If(ToPredicate(inputs[branches.predicate]), types,
                                      region(branches.on_true, 0, specs.size() - num_true),
                                      region(branches.on_false, num_true, 0));
  Lowered lowered;
  lowered.results.assign(values.begin(), values.begin() + num_values);
  for (size_t i = 0; i < specs.size(); ++i) {
    lowered.checks.push_back({values[num_values + i], std::move(specs[i])});
  }
  return lowered;
}

// --- loops

struct Loop {
  Region body;
  std::shared_ptr<const Region> condition;         // null: a scan
  std::vector<bool> written;                       // by storage
  std::vector<int> carried, xs, storages, random;  // among the inputs
  int64_t trips = 0;                               // of a scan
};

// The loop's state while it is lowered. In order: carried values, storages that are written to,
// stacks, then what there is of: a counter, whether the loop goes on, results of checks.
class LoopLowering {
 public:
  LoopLowering(Builder& builder, const Values& inputs, const Loop& loop)
      : builder_(builder),
        inputs_(inputs),
        loop_(loop),
        unwritten_(Select(inputs, loop.storages)),
        num_carried_(loop.carried.size()),
        num_written_(std::ranges::count(loop.written, true)),
        num_stacks_(loop.body.num_results() - num_carried_) {}

  Lowered Lower() {
    specs_ = loop_.body.Checks(builder_.platform());
    num_body_checks_ = specs_.size();
    if (loop_.condition) {
      for (CheckSpec& spec : loop_.condition->Checks(builder_.platform())) {
        specs_.push_back(std::move(spec));
      }
    }
    const bool scan = loop_.condition == nullptr;
    // A condition that checks something is evaluated where its checks can leave the loop: once
    // before it, and at the end of the body.
    const bool early = specs_.size() > num_body_checks_;
    counts_ = scan || loop_.body.random;
    Values state = Select(inputs_, loop_.carried);
    for (size_t i = 0; i < loop_.storages.size(); ++i) {
      if (loop_.written[i]) state.push_back(unwritten_[i]);
    }
    for (size_t i = 0; i < num_stacks_; ++i) {
      Type type = *loop_.body.operation->results()[num_carried_ + i];
      type.dims.insert(type.dims.begin(), loop_.trips);
      state.push_back(stablehlo::ZeroConstant(builder_, type));
    }
    counter_ = state.size();
    if (counts_) state.push_back(stablehlo::ScalarInt(builder_, DType::kS32, 0));
    go_ = state.size();
    Values holding(specs_.size(), builder_.ConstantInt({DType::kPred, {}}, 1));
    if (early) {
      Lowered first = Condition(state);
      state.push_back(first.results[0]);
      for (size_t i = 0; i < first.checks.size(); ++i) {
        holding[num_body_checks_ + i] = first.checks[i].ok;
      }
    }
    checks_ = state.size();
    state.insert(state.end(), holding.begin(), holding.end());
    const Values last = stablehlo::While(
        state,
        [&](const Values& now) -> Values {
          if (scan) {
            return {stablehlo::Lt(now[counter_],
                                  stablehlo::ScalarInt(builder_, DType::kS32, loop_.trips))};
          }
          // After a failed check a loop might not end.
          stablehlo::Value goes_on = early ? now[go_] : Condition(now).results[0];
          for (size_t i = checks_; i < now.size(); ++i) {
            goes_on = stablehlo::And(goes_on, now[i]);
          }
          return {goes_on};
        },
        [&](const Values& now) { return Next(now, early); });
    Lowered lowered;
    auto take = [&](size_t from, size_t count) {
      lowered.results.insert(lowered.results.end(), last.begin() + from,
                             last.begin() + from + count);
    };
    take(0, num_carried_);
    take(num_carried_ + num_written_, num_stacks_);
    take(num_carried_, num_written_);
    for (size_t i = 0; i < specs_.size(); ++i) {
      lowered.checks.push_back({last[checks_ + i], std::move(specs_[i])});
    }
    return lowered;
  }

 private:
  Values Carried(const Values& state) const {
    return {state.begin(), state.begin() + static_cast<ptrdiff_t>(num_carried_)};
  }
  Values Storages(const Values& state) const {
    Values storages = unwritten_;
    size_t next = num_carried_;
    for (size_t i = 0; i < storages.size(); ++i) {
      if (loop_.written[i]) storages[i] = state[next++];
    }
    return storages;
  }

  Lowered Condition(const Values& state) const {
    Lowered lowered =
        loop_.condition->Inline(builder_, Carried(state), Storages(state), {}, inputs_);
    lowered.results[0] = ToPredicate(lowered.results[0]);
    return lowered;
  }

  // Seed and offset of this iteration.
  Values Random(const Values& state) const {
    if (!loop_.body.random) return {};
    const Values start = Select(inputs_, loop_.random);
    const auto before = stablehlo::Multiply(
        stablehlo::Convert(state[counter_], DType::kU64),
        stablehlo::ScalarInt(builder_, DType::kU64, static_cast<int64_t>(loop_.body.draws)));
    return {start[0], stablehlo::Add(start[1], before)};
  }

  // Where the part of this iteration starts in an array of `rank` dimensions.
  Values Start(const Values& state, int rank) const {
    Values starts(rank, stablehlo::ScalarInt(builder_, DType::kS32, 0));
    starts[0] = state[counter_];
    return starts;
  }

  Values Next(const Values& state, bool early) const {
    Values arguments = Carried(state);
    for (int x : loop_.xs) {
      Dims dims = inputs_[x].dims();
      dims[0] = 1;
      const auto part = stablehlo::DynamicSlice(inputs_[x], Start(state, inputs_[x].rank()), dims);
      dims.erase(dims.begin());
      arguments.push_back(stablehlo::Reshape(part, dims));
    }
    Lowered lowered =
        loop_.body.Inline(builder_, arguments, Storages(state), Random(state), inputs_);
    Values next = Carried(lowered.results);
    for (size_t i = 0; i < loop_.written.size(); ++i) {
      if (loop_.written[i]) next.push_back(lowered.results[loop_.body.num_results() + i]);
    }
    for (size_t i = 0; i < num_stacks_; ++i) {
      const auto stack = state[num_carried_ + num_written_ + i];
      Dims dims = stack.dims();
      dims[0] = 1;
      next.push_back(stablehlo::DynamicUpdateSlice(
          stack, stablehlo::Reshape(lowered.results[num_carried_ + i], dims),
          Start(state, stack.rank())));
    }
    if (counts_) {
      next.push_back(
          stablehlo::Add(state[counter_], stablehlo::ScalarInt(builder_, DType::kS32, 1)));
    }
    Values holding(state.begin() + static_cast<ptrdiff_t>(checks_), state.end());
    for (size_t i = 0; i < num_body_checks_; ++i) {
      holding[i] = stablehlo::And(holding[i], lowered.checks[i].ok);
    }
    if (early) {
      const Lowered again = Condition(next);
      next.push_back(again.results[0]);
      for (size_t i = 0; i < again.checks.size(); ++i) {
        auto& held = holding[num_body_checks_ + i];
        held = stablehlo::And(held, again.checks[i].ok);
      }
    }
    next.insert(next.end(), holding.begin(), holding.end());
    return next;
  }

  Builder& builder_;
  const Values& inputs_;
  const Loop& loop_;
  const Values unwritten_;
  const size_t num_carried_, num_written_, num_stacks_;
  std::vector<CheckSpec> specs_;  // of the body, then of the condition
  size_t num_body_checks_ = 0;
  bool counts_ = false;
  size_t counter_ = 0, go_ = 0, checks_ = 0;  // positions in the state
};

void CheckCarried(const std::string& name, const std::vector<at::Tensor>& carried,
                  const std::vector<at::Tensor>& next) {
  TORCH_CHECK(next.size() >= carried.size(), name, ": ", carried.size(),
              " tensors are carried, but the body returns ", next.size());
  for (size_t i = 0; i < carried.size(); ++i) {
    TORCH_CHECK(next[i].defined() && LogicalType(next[i]) == LogicalType(carried[i]), name,
                ": carried tensor ", i, " is ", Describe(carried[i]), ", but the body returns ",
                next[i].defined() ? Describe(next[i]) : "None");
  }
}

std::vector<at::Tensor> RecordLoop(const std::string& name, const RegionBody* condition,
                                   const RegionBody& body, const std::vector<at::Tensor>& carried,
                                   const std::vector<at::Tensor>& xs,
                                   const std::vector<at::Tensor>& operands) {
  InputList inputs;
  const Storages storages(operands);
  auto loop = std::make_shared<Loop>();
  std::vector<at::Tensor> arguments = carried;
  for (const at::Tensor& tensor : carried) loop->carried.push_back(inputs.Add(Materialize(tensor)));
  for (const at::Tensor& x : xs) {
    TORCH_CHECK(x.dim() > 0 && x.size(0) == xs[0].size(0), name,
                ": the first dimensions differ: ", xs[0].sizes(), " and ", x.sizes());
    loop->xs.push_back(inputs.Add(Materialize(x)));
    arguments.push_back(MakeTensor(x.sizes().slice(1), {}, x.scalar_type(), x.device().index()));
  }
  loop->storages = AddStorages(storages, inputs);
  loop->body = CaptureRegion(name + "_body", body, arguments, storages, inputs);
  CheckCarried(name, carried, loop->body.outputs);
  loop->written = loop->body.writes;
  uint64_t draws = kDrawsOfLoop;
  if (condition != nullptr) {
    TORCH_CHECK(loop->body.outputs.size() == carried.size(), name, ": ", carried.size(),
                " tensors are carried, but the body returns ", loop->body.outputs.size());
    Region region = CaptureRegion(name + "_condition", *condition, carried, storages, inputs);
    TORCH_CHECK(
        region.outputs.size() == 1 && region.outputs[0].defined() && region.outputs[0].numel() == 1,
        name, ": the condition must return one bool");
    if (region.random) trace::Trace::Abort("the condition of a loop draws random numbers");
    if (std::ranges::count(region.writes, true) > 0) {
      trace::Trace::Abort("the condition of a loop writes to a tensor");
    }
    loop->condition = std::make_shared<const Region>(std::move(region));
  } else {
    loop->trips = xs[0].size(0);
    draws = static_cast<uint64_t>(loop->trips) * loop->body.draws;
  }
  loop->random = AddRandom(loop->body.random, draws, name, inputs);
  // Stacks have a first dimension more.
  std::vector<at::Tensor> like(loop->body.outputs.begin(), loop->body.outputs.end());
  for (size_t i = carried.size(); i < like.size(); ++i) {
    if (!like[i].defined()) continue;
    std::vector<int64_t> sizes = like[i].sizes().vec();
    sizes.insert(sizes.begin(), loop->trips);
    like[i] = MakeTensor(sizes, {}, like[i].scalar_type(), like[i].device().index());
  }
  loop->body.outputs.clear();
  auto operation = std::make_shared<Operation>(
      name, inputs.types(), [loop](Builder& builder, const Values& values) {
        return LoopLowering(builder, values, *loop).Lower();
      });
  return Finish(like, storages, loop->written,
                trace::Trace::Installed().Record(std::move(operation), inputs.values()));
}

}  // namespace

std::vector<at::Tensor> RecordCond(const at::Tensor& predicate, const RegionBody& on_true,
                                   const RegionBody& on_false,
                                   const std::vector<at::Tensor>& operands) {
  TORCH_CHECK(predicate.numel() == 1, "cond: the predicate must have one element, but is ",
              Describe(predicate));
  const std::string name = "cond";
  InputList inputs;
  const Storages storages(operands);
  auto branches = std::make_shared<Branches>();
  branches->predicate = inputs.Add(Materialize(predicate));
  branches->storages = AddStorages(storages, inputs);
  branches->on_true = CaptureRegion(name + "_true", on_true, {}, storages, inputs);
  branches->on_false = CaptureRegion(name + "_false", on_false, {}, storages, inputs);
  std::vector<at::Tensor> like = std::move(branches->on_true.outputs);
  const std::vector<at::Tensor> other = std::move(branches->on_false.outputs);
  TORCH_CHECK(like.size() == other.size(), "cond: one branch returns ", like.size(),
              " tensors and the other ", other.size());
  for (size_t i = 0; i < like.size(); ++i) {
    const bool both = like[i].defined() && other[i].defined();
    TORCH_CHECK(both ? LogicalType(like[i]) == LogicalType(other[i])
                     : like[i].defined() == other[i].defined(),
                "cond: result ", i, " is ", like[i].defined() ? Describe(like[i]) : "None",
                " in one branch and ", other[i].defined() ? Describe(other[i]) : "None",
                " in the other");
  }
  for (size_t i = 0; i < storages.size(); ++i) {
    branches->written.push_back(branches->on_true.writes[i] || branches->on_false.writes[i]);
  }
  branches->random =
      AddRandom(branches->on_true.random || branches->on_false.random,
                std::max(branches->on_true.draws, branches->on_false.draws), name, inputs);
  auto operation = std::make_shared<Operation>(name, inputs.types(),
                                               [branches](Builder& builder, const Values& values) {
                                                 return LowerCond(builder, values, *branches);
                                               });
  return Finish(like, storages, branches->written,
                trace::Trace::Installed().Record(std::move(operation), inputs.values()));
}

std::vector<at::Tensor> RecordWhile(const RegionBody& condition, const RegionBody& body,
                                    const std::vector<at::Tensor>& carried,
                                    const std::vector<at::Tensor>& operands) {
  return RecordLoop("while_loop", &condition, body, carried, {}, operands);
}

std::vector<at::Tensor> RecordScan(const RegionBody& body, const std::vector<at::Tensor>& carried,
                                   const std::vector<at::Tensor>& xs,
                                   const std::vector<at::Tensor>& operands) {
  TORCH_CHECK(!xs.empty() && xs[0].dim() > 0 && xs[0].size(0) > 0,
              "scan: there is nothing to go through");
  return RecordLoop("scan", nullptr, body, carried, xs, operands);
}

}  // namespace torch_tpu::aten
