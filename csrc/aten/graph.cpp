#include "aten/graph.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "aten/backward_thread.h"
#include "aten/errors.h"
#include "aten/generator.h"
#include "aten/host_number.h"
#include "aten/storage.h"
#include "aten/storage_locks.h"
#include "aten/tensor_signature.h"
#include "lowering/host_dot.h"
#include "trace/runtime.h"
#include "trace/trace.h"

namespace torch_tpu::aten {
namespace {

using trace::Type;
using trace::ValuePtr;

constexpr uint64_t kNumber = 0xB100, kUndefined = 0xB200, kShared = 0xB300;

bool IsNumber(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.device().is_privateuseone();
}

// A tensor over an existing storage.
at::Tensor TensorOn(const c10::Storage& storage, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                    int64_t offset, caffe2::TypeMeta dtype, bool conjugate, bool negative) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(sizes, strides, offset);
  if (conjugate) tensor._set_conj(true);
  if (negative) tensor._set_neg(true);
  return tensor;
}

c10::Storage NewStorage(size_t bytes, c10::DeviceIndex device, ValuePtr value) {
  return MakeTensor({static_cast<int64_t>(bytes)}, {}, caffe2::TypeMeta::Make<uint8_t>(), device,
                    bytes, std::move(value))
      .storage();
}

// The type a storage has after a first write of all of `tensor`.
const Type* TypeOnceWritten(const at::Tensor& tensor) {
  return trace::Intern(trace::BaseAfterWrite(nullptr, ViewOf(tensor),
                                             static_cast<int64_t>(tensor.storage().nbytes())));
}

// Where a value comes from when the program runs.
struct Source {
  enum class Kind { kNothing, kResult, kParameter, kConstant } kind = Kind::kNothing;
  int index = -1;
  ValuePtr constant;
};

struct OutputTensor {
  bool defined = false;
  bool same = false;  // the input itself
  int input = -1;     // a view of this input's storage, or
  int storage = -1;   // of this new one
  caffe2::TypeMeta dtype;
  c10::SmallVector<int64_t, 5> sizes, strides;
  int64_t offset = 0;
  bool conjugate = false, negative = false;
};

}  // namespace

at::Tensor CapturedRandomState() {
  trace::Trace& capture = trace::Trace::Installed();
  const auto [seed, offset] = capture.DrawRandom(0, "a saved random state");
  static const auto operation = std::make_shared<trace::Operation>(
      "random_state", std::vector<const Type*>{seed->type(), offset->type()},
      [](stablehlo::Builder&, const stablehlo::Values& inputs) {
        stablehlo::Values words;
        for (const stablehlo::Value& word : inputs) {
          words.push_back(stablehlo::Reshape(stablehlo::Convert(word, trace::DType::kS64), {1}));
        }
        return trace::Lowered{{stablehlo::Concatenate(words, 0)}, {}};
      });
  at::Tensor state = MakeTensor({2}, {}, at::kLong, capture.device().index());
  Assign(state, capture.Record(operation, {seed, offset})[0]);
  return state;
}

void DrawCapturedFrom(const at::Tensor& state) {
  trace::Trace& capture = trace::Trace::Installed();
  if (!state.defined()) {
    capture.DrawRandomFrom(nullptr, nullptr);
    return;
  }
  static const auto operation = std::make_shared<trace::Operation>(
      "from_random_state", std::vector<const Type*>{trace::Intern({trace::DType::kS64, {2}})},
      [](stablehlo::Builder&, const stablehlo::Values& inputs) {
        trace::Lowered lowered;
        for (int64_t i : {0, 1}) {
          const auto word = stablehlo::Reshape(stablehlo::Slice(inputs[0], {i}, {i + 1}, {1}), {});
          lowered.results.push_back(stablehlo::Convert(word, trace::DType::kU64));
        }
        return lowered;
      });
  auto words = capture.Record(operation, {Materialize(state)});
  capture.DrawRandomFrom(std::move(words[0]), std::move(words[1]));
}

// What is known of the inputs of one call.
struct Graph::Inputs {
  std::vector<at::Tensor>& tensors;
  std::vector<StorageState*> states;  // null for numbers and undefined tensors
  std::vector<ValuePtr> values;       // of the storages; null where nothing was written
  std::vector<int> first;             // the first input with the same storage
  bool shared = false;
  bool assume_written = false;
  c10::DeviceIndex device = -1;

  explicit Inputs(std::vector<at::Tensor>& all) : tensors(all) {
    const size_t n = tensors.size();
    states.resize(n);
    values.resize(n);
    first.resize(n);
    std::vector<std::pair<StorageState*, int>> order;
    order.reserve(n);
    for (size_t i = 0; i < n; ++i) {
      first[i] = static_cast<int>(i);
      const at::Tensor& tensor = tensors[i];
      if (!tensor.defined()) continue;
      if (IsNumber(tensor)) {
        TORCH_CHECK(tensor.device().is_cpu() && tensor.dim() == 0,
                    "a tpu program takes tpu tensors and 0-d CPU tensors, but its input ", i,
                    " is on ", tensor.device(), " with shape ", tensor.sizes());
        continue;
      }
      TORCH_CHECK(device < 0 || device == tensor.device().index(),
                  "the inputs of a tpu program must be on one device, but input ", i, " is on ",
                  tensor.device(), " and an earlier one on tpu:", static_cast<int>(device));
      device = tensor.device().index();
      states[i] = &StateOf(tensor);
      order.emplace_back(states[i], static_cast<int>(i));
    }
    if (device < 0) device = 0;
    std::sort(order.begin(), order.end());
    for (size_t i = 1; i < order.size(); ++i) {
      if (order[i].first != order[i - 1].first) continue;
      first[order[i].second] = first[order[i - 1].second];
      shared = true;
    }
    for (size_t i = 0; i < n; ++i) {
      if (states[i] == nullptr) continue;
      std::lock_guard guard(states[i]->lock);
      values[i] = states[i]->value;
    }
  }

  // Puts another tensor in an input's place.
  void Replace(size_t i, at::Tensor tensor) {
    tensors[i] = std::move(tensor);
    states[i] = &StateOf(tensors[i]);
    values[i] = states[i]->value;
  }
  // Type of the parameter for an input's storage; nullptr for one that was never written to.
  const Type* TypeOf(size_t i) const {
    if (IsNumber(tensors[i])) return LogicalType(tensors[i]);
    if (values[i]) return values[i]->type();
    return assume_written && tensors[i].storage().nbytes() > 0 ? TypeOnceWritten(tensors[i])
                                                               : nullptr;
  }
};

struct Graph::Variant {
  std::shared_ptr<trace::Operation> operation;  // null: nothing to compute
  std::vector<int> parameters;  // input of each parameter; -1 for the generator's seed and offset
  std::vector<ValuePtr> closed_over;
  bool random = false;
  uint64_t draws = 0;
  struct NewStorage {
    size_t bytes = 0;
    Source source;
  };
  std::vector<NewStorage> storages;
  std::vector<OutputTensor> outputs;
  struct Mutation {
    int input;
    Source source;
  };
  std::vector<Mutation> mutations;
};

Graph::Graph(std::string name, Body body, std::vector<int> donated, bool functional)
    : name_(std::move(name)),
      body_(std::move(body)),
      donated_(std::move(donated)),
      functional_(functional) {}

Graph::~Graph() = default;

void Graph::BuildSignature(const Inputs& inputs, trace::Signature& signature) const {
  const at::Context& context = at::globalContext();
  signature.Clear();
  signature.Add(static_cast<uint64_t>(context.float32MatmulPrecision()) << 1 |
                uint64_t{context.deterministicAlgorithms()});
  for (size_t i = 0; i < inputs.tensors.size(); ++i) {
    const at::Tensor& tensor = inputs.tensors[i];
    if (!tensor.defined()) {
      signature.Add(kUndefined);
    } else if (IsNumber(tensor)) {
      signature.Add(kNumber + static_cast<uint64_t>(tensor.scalar_type()));
    } else {
      AddTensor(signature, tensor, inputs.TypeOf(i));
    }
  }
  if (!inputs.shared) return;
  signature.Add(kShared);
  for (int first : inputs.first) signature.Add(static_cast<uint64_t>(first));
}

std::string Graph::WhyCaptured(const Inputs& inputs) const {
  std::vector<SignaturePart> now;
  for (size_t i = 0; i < inputs.tensors.size(); ++i) {
    const at::Tensor& tensor = inputs.tensors[i];
    std::string text = "None";
    if (IsNumber(tensor)) {
      text = inputs.TypeOf(i)->str() + " on the CPU";
    } else if (tensor.defined()) {
      text = SignatureText(tensor, inputs.TypeOf(i));
    }
    if (inputs.first[i] != static_cast<int>(i)) {
      text += ", shares memory with input " + std::to_string(inputs.first[i]);
    }
    now.push_back({"input " + std::to_string(i), std::move(text)});
  }
  std::lock_guard guard(last_mutex_);
  std::string why = last_ ? Difference(*last_, now) : "first call of this graph";
  if (why.empty()) why = "matrix products of another precision, or deterministic algorithms";
  last_ = std::move(now);
  return why;
}

// A part of a larger tensor that no other input is a part of: a batch of a data set. It is copied
// out before the program runs, or each batch would need a program of its own.
bool Graph::IsSlice(const Inputs& inputs, size_t i) const {
  if (inputs.states[i] == nullptr || !inputs.values[i]) return false;
  const at::Tensor& tensor = inputs.tensors[i];
  if (!IsPiece(tensor)) return false;
  {
    std::lock_guard guard(by_reference_lock_);
    if (i < by_reference_.size() && by_reference_[i]) return false;
  }
  if (!inputs.shared) return true;
  return std::ranges::count(inputs.states, inputs.states[i]) == 1;
}

std::unique_ptr<Graph::Variant> Graph::Capture(const Inputs& inputs) const {
  auto variant = std::make_unique<Variant>();
  trace::Trace capture(&DeviceAt(inputs.device));
  capture.AllowRandom();
  const size_t n = inputs.tensors.size();

  // --- placeholders: one for each storage and each number
  std::vector<at::Tensor> stand_ins(n);
  std::vector<ValuePtr> placeholders(n);  // of the inputs that are the first of their storage
  std::unordered_map<const StorageState*, int> input_of;  // by a stand-in's storage
  for (size_t i = 0; i < n; ++i) {
    const at::Tensor& tensor = inputs.tensors[i];
    if (!tensor.defined()) continue;
    const Type* type = inputs.TypeOf(i);
    const auto first = static_cast<size_t>(inputs.first[i]);
    c10::Storage storage;
    if (first == i) {
      if (type != nullptr) {
        placeholders[i] = capture.Placeholder(type);
        variant->parameters.push_back(static_cast<int>(i));
      }
      const size_t bytes = IsNumber(tensor) ? tensor.nbytes() : tensor.storage().nbytes();
      storage = NewStorage(bytes, inputs.device, placeholders[i]);
    } else {
      storage = stand_ins[first].storage();
    }
    stand_ins[i] = TensorOn(storage, tensor.sizes(), tensor.strides(), tensor.storage_offset(),
                            tensor.dtype(), tensor.is_conj(), tensor.is_neg());
    input_of.emplace(&StateOf(stand_ins[i]), static_cast<int>(i));
  }

  // --- the body, and what it left behind
  std::vector<ValuePtr> results;
  std::unordered_map<const trace::Value*, int> result_of;
  auto source_of = [&](const ValuePtr& value) -> Source {
    if (!value) return {};
    if (!value->pending()) return {Source::Kind::kConstant, -1, value};
    if (value->node() < 0) return {Source::Kind::kParameter, value->index(), nullptr};
    auto [it, added] = result_of.emplace(value.get(), static_cast<int>(results.size()));
    if (added) results.push_back(value);
    return {Source::Kind::kResult, it->second, nullptr};
  };
  std::vector<at::Tensor> outputs;
  {
    trace::Trace::Scope scope(&capture);
    BackwardOnThisThread backward;
    outputs = body_(stand_ins);
    std::unordered_map<const StorageState*, int> users;
    for (const at::Tensor& tensor : outputs) {
      if (!tensor.defined()) continue;
      TORCH_INTERNAL_ASSERT(tensor.device().is_privateuseone(), "a tpu program's output is on ",
                            tensor.device());
      ++users[&StateOf(tensor)];
    }
    for (at::Tensor& tensor : outputs) {
      if (!tensor.defined()) continue;
      const StorageState& state = StateOf(tensor);
      // Part of something larger that nothing else returns. Strides stay as they are.
      if (input_of.count(&state) == 0 && users[&state] == 1 &&
          tensor.nbytes() < tensor.storage().nbytes() &&
          tensor.strides() == c10::IntArrayRef(DenseStrides(tensor))) {
        tensor = DenseLike(tensor, Materialize(tensor));
      }
    }
  }
  if (capture.aborted()) throw trace::CaptureAborted(name_ + " cannot be captured");
  std::unordered_map<const StorageState*, int> storages;
  for (const at::Tensor& tensor : outputs) {
    OutputTensor& output = variant->outputs.emplace_back();
    if (!tensor.defined()) continue;
    output.defined = true;
    output.dtype = tensor.dtype();
    output.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
    output.strides.assign(tensor.strides().begin(), tensor.strides().end());
    output.offset = tensor.storage_offset();
    output.conjugate = tensor.is_conj();
    output.negative = tensor.is_neg();
    const StorageState& state = StateOf(tensor);
    const auto input = input_of.find(&state);
    if (input != input_of.end() && !IsNumber(inputs.tensors[input->second])) {
      output.input = input->second;
      for (size_t i = 0; i < n && !output.same; ++i) {
        if (!tensor.is_same(stand_ins[i])) continue;
        output.same = true;
        output.input = static_cast<int>(i);
      }
      continue;
    }
    auto [it, added] = storages.emplace(&state, static_cast<int>(variant->storages.size()));
    if (added) variant->storages.push_back({tensor.storage().nbytes(), source_of(state.value)});
    output.storage = it->second;
  }
  std::vector<std::pair<int, int>> aliases;
  std::vector<int> donated;
  for (size_t i = 0; i < n; ++i) {
    if (!stand_ins[i].defined() || inputs.first[i] != static_cast<int>(i)) continue;
    const ValuePtr& after = StateOf(stand_ins[i]).value;
    if (after == placeholders[i]) continue;
    Source source = source_of(after);
    if (source.kind == Source::Kind::kResult && placeholders[i] &&
        placeholders[i]->type() == after->type()) {
      aliases.emplace_back(placeholders[i]->index(), source.index);
    }
    variant->mutations.push_back({static_cast<int>(i), std::move(source)});
  }
  for (int input : donated_) {
    const ValuePtr& placeholder = placeholders[inputs.first[input]];
    if (!placeholder) continue;
    const int index = placeholder->index();
    if (std::ranges::none_of(aliases, [&](const auto& alias) { return alias.first == index; })) {
      donated.push_back(index);
    }
  }
  if (capture.random()) {
    variant->random = true;
    variant->draws = capture.draws();
    variant->parameters.insert(variant->parameters.end(), 2, -1);
  }
  if (!results.empty()) {
    variant->operation = capture.Close(name_, results, std::move(aliases), std::move(donated));
    variant->operation->OptimizeFully();
    variant->operation->Explain(WhyCaptured(inputs), "");
    variant->closed_over = capture.closed_over();
  }
  return variant;
}

std::vector<at::Tensor> Graph::Run(std::vector<at::Tensor>& all) {
  Inputs inputs(all);
  thread_local trace::Signature signature;
  std::vector<std::pair<size_t, at::Tensor>> sliced;
  for (;;) {
    for (size_t i = 0; i < inputs.tensors.size(); ++i) {
      if (C10_LIKELY(!IsSlice(inputs, i))) continue;
      const at::Tensor tensor = inputs.tensors[i];
      sliced.emplace_back(i, tensor);
      inputs.Replace(i, CopyOut(tensor));
    }
    auto restore = [&] {
      for (auto& [i, tensor] : sliced) inputs.Replace(i, std::move(tensor));
      sliced.clear();
    };
    BuildSignature(inputs, signature);
    Variant* found = variants_.Find(signature);
    if (C10_UNLIKELY(found == nullptr)) {
      const trace::Signature key = signature;  // the body may run other graphs
      std::unique_ptr<Variant> made;
      try {
        made = Capture(inputs);
      } catch (...) {
        restore();
        throw;
      }
      found = variants_.Insert(key, std::move(made));
    }
    if (trace::Together* together = found->operation ? found->operation->together() : nullptr) {
      try {
        together->Agree(*found->operation);
      } catch (...) {
        restore();
        throw;
      }
    }
    bool copies_do = true;
    for (const auto& [i, tensor] : sliced) {
      auto is_input = [i = static_cast<int>(i)](const auto& use) { return use.input == i; };
      if (std::ranges::none_of(found->mutations, is_input) &&
          (functional_ || std::ranges::none_of(found->outputs, is_input))) {
        continue;
      }
      copies_do = false;
      std::lock_guard guard(by_reference_lock_);
      by_reference_.resize(inputs.tensors.size());
      by_reference_[i] = true;
    }
    if (C10_UNLIKELY(!copies_do)) {
      restore();
      continue;
    }
    const Variant& variant = *found;
    trace::Device& device = DeviceAt(inputs.device);

    StorageLocks locks;
    for (const auto& mutation : variant.mutations) locks.Add(inputs.states[mutation.input]);
    locks.Lock();
    bool changed = false;
    for (const auto& mutation : variant.mutations) {
      ValuePtr& value = inputs.values[mutation.input];
      const ValuePtr& now = inputs.states[mutation.input]->value;
      changed |= (value ? value->type() : nullptr) != (now ? now->type() : nullptr);
      value = now;
    }
    if (C10_UNLIKELY(changed)) continue;  // another thread wrote something of another type

    c10::SmallVector<ValuePtr, 16> arguments;
    arguments.reserve(variant.parameters.size() + variant.closed_over.size());
    std::pair<uint64_t, uint64_t> random;
    ValuePtr seed, offset;
    if (variant.random) {
      static const Type* word = trace::Intern({trace::DType::kU64, {}});
      if (trace::Trace* outer = trace::Trace::Current()) {
        std::tie(seed, offset) = outer->DrawRandom(variant.draws, name_);
      } else {
        random = DrawPhilox(std::nullopt, inputs.device, variant.draws);
        seed = device.FromHost(word, &random.first);
        offset = device.FromHost(word, &random.second);
      }
    }
    for (int input : variant.parameters) {
      if (input < 0) {
        arguments.push_back(seed ? std::move(seed) : std::move(offset));
        seed.reset();
      } else if (IsNumber(inputs.tensors[input])) {
        const at::Tensor& number = inputs.tensors[input];
        arguments.push_back(
            device.Number(ToHostNumber(number.item(), lowering::ToDType(number.scalar_type()))));
      } else {
        arguments.push_back(inputs.values[input]);
      }
    }
    auto value_of = [&](const Source& source) -> ValuePtr {
      return source.kind == Source::Kind::kParameter  ? arguments[source.index]
             : source.kind == Source::Kind::kConstant ? source.constant
                                                      : nullptr;
    };
    std::vector<ValuePtr> stored, mutated;
    for (const auto& storage : variant.storages) stored.push_back(value_of(storage.source));
    for (const auto& mutation : variant.mutations) mutated.push_back(value_of(mutation.source));

    // Only what is written to or returned stays, so that the rest can be donated.
    std::vector<at::Tensor> kept(inputs.tensors.size());
    for (const auto& mutation : variant.mutations) {
      kept[mutation.input] = inputs.tensors[mutation.input];
    }
    for (const OutputTensor& output : variant.outputs) {
      if (output.input >= 0) kept[output.input] = inputs.tensors[output.input];
    }
    arguments.append(variant.closed_over.begin(), variant.closed_over.end());
    inputs.tensors.clear();
    inputs.values.clear();
    for (const auto& mutation : variant.mutations) {
      inputs.states[mutation.input]->value.reset();
    }
    std::vector<ValuePtr> results;
    if (variant.operation) {
      results.resize(variant.operation->results().size());
      try {
        trace::Run(variant.operation, device, {arguments.data(), arguments.size()},
                   /*donate=*/true, results.data());
      } catch (...) {
        for (const auto& mutation : variant.mutations) {
          for (size_t p = 0; p < variant.parameters.size(); ++p) {
            if (variant.parameters[p] == mutation.input) {
              inputs.states[mutation.input]->value = arguments[p];
            }
          }
        }
        RethrowAsTorchError(name_);
      }
    }
    for (size_t i = 0; i < variant.mutations.size(); ++i) {
      const auto& mutation = variant.mutations[i];
      const bool result = mutation.source.kind == Source::Kind::kResult;
      inputs.states[mutation.input]->value =
          result ? results[mutation.source.index] : std::move(mutated[i]);
      if (!kept[mutation.input].is_inference()) {
        kept[mutation.input].unsafeGetTensorImpl()->bump_version();
      }
    }
    std::vector<c10::Storage> storages;
    for (size_t i = 0; i < variant.storages.size(); ++i) {
      const auto& storage = variant.storages[i];
      const bool result = storage.source.kind == Source::Kind::kResult;
      storages.push_back(NewStorage(storage.bytes, inputs.device,
                                    result ? results[storage.source.index] : std::move(stored[i])));
    }
    std::vector<at::Tensor> outputs;
    outputs.reserve(variant.outputs.size());
    for (const OutputTensor& output : variant.outputs) {
      if (!output.defined) {
        outputs.emplace_back();
        continue;
      }
      if (output.same) {
        outputs.push_back(kept[output.input]);
        continue;
      }
      if (output.input >= 0 && output.dtype == kept[output.input].dtype() &&
          output.conjugate == kept[output.input].is_conj() &&
          output.negative == kept[output.input].is_neg()) {
        // A view in autograd's eyes as well.
        outputs.push_back(
            kept[output.input].as_strided(output.sizes, output.strides, output.offset));
        continue;
      }
      const c10::Storage& storage =
          output.input >= 0 ? kept[output.input].storage() : storages[output.storage];
      outputs.push_back(TensorOn(storage, output.sizes, output.strides, output.offset, output.dtype,
                                 output.conjugate, output.negative));
    }
    return outputs;
  }
}

void Graph::Prepare(std::vector<at::Tensor> all) {
  Inputs inputs(all);
  inputs.assume_written = true;
  trace::Signature signature;
  BuildSignature(inputs, signature);
  if (variants_.Find(signature) == nullptr) variants_.Insert(signature, Capture(inputs));
}

Graph::Written Graph::Write(std::vector<at::Tensor> all, stablehlo::Platform platform) {
  Inputs inputs(all);
  inputs.assume_written = true;
  const auto variant = Capture(inputs);
  TORCH_CHECK(variant->operation, name_, ": there is nothing to compute");
  const trace::Operation& operation = *variant->operation;
  const lowering::NoHostCalls elsewhere;
  Written written;
  written.module = Guarded([&] { return operation.Module(platform); }, name_);
  const std::vector<bool> uses = Guarded([&] { return operation.Uses(platform); }, name_);
  for (size_t p = 0; p < operation.parameters().size(); ++p) {
    Written::Parameter parameter;
    parameter.type = operation.parameters()[p];
    parameter.used = uses[p];
    if (p < variant->parameters.size()) {
      parameter.input = variant->parameters[p];
    } else {
      parameter.constant = variant->closed_over[p - variant->parameters.size()];
    }
    written.parameters.push_back(std::move(parameter));
  }
  written.results = operation.results();
  for (size_t i = 0; i < variant->outputs.size(); ++i) {
    const OutputTensor& output = variant->outputs[i];
    int result = -1;
    if (output.storage >= 0) {
      const Source& source = variant->storages[output.storage].source;
      if (source.kind == Source::Kind::kResult) result = source.index;
    }
    written.outputs.emplace_back(static_cast<int>(i), result);
  }
  for (const auto& mutation : variant->mutations) {
    written.mutations.emplace_back(
        mutation.input, mutation.source.kind == Source::Kind::kResult ? mutation.source.index : -1);
  }
  return written;
}

}  // namespace torch_tpu::aten
