#include "aten/dispatch.h"

#include <ATen/Context.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>

#include "aten/backward_thread.h"
#include "aten/debug.h"
#include "aten/errors.h"
#include "aten/generator.h"
#include "aten/host_number.h"
#include "aten/miss_reason.h"
#include "aten/plan.h"
#include "aten/resize.h"
#include "aten/shape_inference.h"
#include "aten/storage.h"
#include "aten/storage_locks.h"
#include "aten/tensor_signature.h"
#include "trace/runtime.h"
#include "trace/signature.h"
#include "trace/trace.h"

namespace torch_tpu::aten {
namespace {

using torch::jit::Stack;
using trace::Signature;
using trace::ValuePtr;

trace::SignatureCache<Plan>& Plans() {
  static auto* plans = new trace::SignatureCache<Plan>;
  return *plans;
}

std::atomic<int64_t> hits{0}, misses{0};

// Tags that keep the words of different kinds of arguments apart.
constexpr uint64_t kNone = 0xA100, kNumberTag = 0xA200, kListTag = 0xA300, kIntTag = 0xA400,
                   kDoubleTag = 0xA500, kStringTag = 0xA600, kOtherTag = 0xA700,
                   kSharedTag = 0xA800;

uint64_t Bits(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

void AddStatic(Signature& signature, const c10::IValue& value) {
  if (value.isNone()) {
    signature.Add(kNone);
  } else if (value.isInt()) {
    signature.Add(kIntTag);
    signature.Add(static_cast<uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    signature.Add(kIntTag + 1 + value.toBool());
  } else if (value.isDouble()) {
    signature.Add(kDoubleTag);
    signature.Add(Bits(value.toDouble()));
  } else if (value.isComplexDouble()) {
    signature.Add(kDoubleTag + 1);
    signature.Add(Bits(value.toComplexDouble().real()));
    signature.Add(Bits(value.toComplexDouble().imag()));
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    signature.Add(kStringTag + (text.size() << 16));
    for (size_t i = 0; i < text.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
      signature.Add(word);
    }
  } else if (value.isList()) {
    const auto elements = value.toListRef();
    signature.Add(kListTag + (elements.size() << 16));
    for (const c10::IValue& element : elements) AddStatic(signature, element);
  } else if (value.isDevice() || value.isGenerator()) {
    signature.Add(kOtherTag);
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "tpu: argument of type ", value.tagKind(),
                                " is not supported");
  }
}

void AddNumber(Signature& signature, const GatheredNumber& number) {
  signature.Add(kNumberTag + static_cast<uint64_t>(number.dtype) * 4 + number.tensor * 2 +
                number.wrapped);
}

c10::ScalarType NumberType(const c10::Scalar& number) {
  if (number.isComplex()) return c10::ScalarType::ComplexDouble;
  if (number.isFloatingPoint()) return c10::ScalarType::Double;
  if (number.isBoolean()) return c10::ScalarType::Bool;
  return c10::ScalarType::Long;
}

[[noreturn]] void DeviceMismatch(const OperatorEntry& entry, c10::Device first, c10::Device second,
                                 const std::string& argument) {
  TORCH_CHECK(false,
              "Expected all tensors to be on the same device, but found at least two "
              "devices, ",
              first, " and ", second, "! (when checking argument for argument ", argument,
              " in method aten::", entry.name, ")");
}

// Collects the tensors of one argument. A 0-d CPU tensor counts as a number.
void GatherTensor(const OperatorEntry& entry, size_t argument, const at::Tensor& tensor,
                  Gathered& gathered) {
  if (C10_LIKELY(tensor.device().is_privateuseone())) {
    const c10::DeviceIndex index = tensor.device().index();
    if (gathered.device < 0) {
      gathered.device = index;
    } else if (C10_UNLIKELY(gathered.device != index)) {
      DeviceMismatch(entry, c10::Device(c10::DeviceType::PrivateUse1, gathered.device),
                     tensor.device(), entry.op->schema().arguments()[argument].name());
    }
    if (C10_UNLIKELY(tensor.layout() != c10::kStrided)) {
      TORCH_CHECK_NOT_IMPLEMENTED(false, "aten::", entry.name, ": ", tensor.layout(),
                                  " tensors are not supported on tpu");
    }
    gathered.inputs.push_back({static_cast<int>(gathered.tensors.size()), -1});
    gathered.tensors.push_back(
        {&tensor, &StateOf(tensor), nullptr, entry.arguments[argument].written});
    return;
  }
  if (tensor.dim() == 0 && tensor.device().is_cpu() && !entry.arguments[argument].written) {
    gathered.inputs.push_back({-1, static_cast<int>(gathered.numbers.size())});
    gathered.numbers.push_back({tensor.item(), tensor.scalar_type(), true,
                                tensor.unsafeGetTensorImpl()->is_wrapped_number()});
    return;
  }
  DeviceMismatch(
      entry,
      c10::Device(c10::DeviceType::PrivateUse1, std::max<c10::DeviceIndex>(gathered.device, 0)),
      tensor.device(), entry.op->schema().arguments()[argument].name());
}

void GatherNumber(const ArgumentPlan& plan, const c10::IValue& value, Gathered& gathered) {
  const c10::Scalar number = value.toScalar();
  gathered.inputs.push_back({-1, static_cast<int>(gathered.numbers.size())});
  gathered.numbers.push_back({number, NumberType(number), false, true, plan.is_float});
}

void Gather(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments, Gathered& gathered) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    switch (entry.arguments[i].kind) {
      case ArgumentKind::kTensor:
        if (value.isTensor() && value.toTensor().defined()) {
          GatherTensor(entry, i, value.toTensor(), gathered);
        }
        break;
      case ArgumentKind::kTensorList:
        if (!value.isList()) break;
        for (const c10::IValue& element : value.toListRef()) {
          if (element.isTensor() && element.toTensor().defined()) {
            GatherTensor(entry, i, element.toTensor(), gathered);
          }
        }
        break;
      case ArgumentKind::kNumber:
        if (!value.isNone() && !IsSpecial(entry.arguments[i].specialize, value.toScalar())) {
          GatherNumber(entry.arguments[i], value, gathered);
        }
        break;
      case ArgumentKind::kNumberList:
        if (!value.isList()) break;
        for (const c10::IValue& element : value.toListRef()) {
          GatherNumber(entry.arguments[i], element, gathered);
        }
        break;
      default:
        break;
    }
  }
}

// With the values of all tensors known.
void BuildSignature(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments,
                    const Gathered& gathered, Signature& signature, bool with_offsets = true) {
  signature.Clear();
  uint64_t first = reinterpret_cast<uint64_t>(&entry);
  if (entry.uses_dots) {
    first |= static_cast<uint64_t>(at::globalContext().float32MatmulPrecision()) << 56;
  }
  signature.Add(first);
  size_t tensor = 0, number = 0;
  auto add_tensor = [&](const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined()) {
      signature.Add(kNone);
    } else if (value.toTensor().device().is_privateuseone()) {
      const GatheredTensor& t = gathered.tensors[tensor++];
      AddTensor(signature, *t.tensor, t.value ? t.value->type() : nullptr,
                with_offsets || t.written || !IsPiece(*t.tensor));
    } else {
      AddNumber(signature, gathered.numbers[number++]);
    }
  };
  auto add_number = [&](const std::vector<double>* specialize, const c10::IValue& value) {
    if (value.isNone()) {
      signature.Add(kNone);
    } else if (IsSpecial(specialize, value.toScalar())) {
      AddStatic(signature, value);
    } else {
      AddNumber(signature, gathered.numbers[number++]);
    }
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    switch (entry.arguments[i].kind) {
      case ArgumentKind::kTensor:
        add_tensor(value);
        break;
      case ArgumentKind::kTensorList:
      case ArgumentKind::kNumberList: {
        if (!value.isList()) {
          signature.Add(kNone);
          break;
        }
        const auto elements = value.toListRef();
        signature.Add(kListTag + (elements.size() << 16));
        for (const c10::IValue& element : elements) {
          if (entry.arguments[i].kind == ArgumentKind::kTensorList) {
            add_tensor(element);
          } else {
            add_number(nullptr, element);
          }
        }
        break;
      }
      case ArgumentKind::kNumber:
        add_number(entry.arguments[i].specialize, value);
        break;
      case ArgumentKind::kStatic:
        AddStatic(signature, value);
        break;
      case ArgumentKind::kGenerator:
      case ArgumentKind::kIgnored:
        break;
    }
  }
}

// Which tensors have a storage in common: whether they overlap decides what the call means.
void AddSharing(const Gathered& gathered, Signature& signature) {
  signature.Add(kSharedTag);
  for (const GatheredTensor& t : gathered.tensors) {
    size_t first = 0;
    while (gathered.tensors[first].state != t.state) ++first;
    signature.Add(first);
  }
}

// Locks the written storages of a call, then takes the values of the tensors whose storages they
// are. True if a written storage is that of another tensor of the call, too.
bool LockWritten(Gathered& gathered, StorageLocks& locks) {
  for (const GatheredTensor& t : gathered.tensors) {
    if (t.written) locks.Add(t.state);
  }
  locks.Lock();
  size_t count = 0;
  for (GatheredTensor& t : gathered.tensors) {
    if (!t.written && !locks.Holds(t.state)) continue;
    t.value = t.state->value;
    ++count;
  }
  return count > locks.size();
}

void ReadUnwritten(Gathered& gathered) {
  for (GatheredTensor& t : gathered.tensors) {
    if (t.written) continue;
    std::lock_guard guard(t.state->lock);
    t.value = t.state->value;
  }
}

// A random call's seed and offset as parameters.
void AddRandomState(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments,
                    const Plan& plan, trace::Device& device,
                    c10::SmallVectorImpl<ValuePtr>& inputs) {
  std::optional<at::Generator> generator;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (entry.arguments[i].kind == ArgumentKind::kGenerator && arguments[i].isGenerator()) {
      generator = arguments[i].toGenerator();
    }
  }
  if (trace::Trace* capture = trace::Trace::Current()) {
    if (generator) trace::Trace::Abort(entry.name + " draws from a generator of its own");
    auto [seed, offset] = capture->DrawRandom(plan.draws, entry.name);
    inputs.push_back(std::move(seed));
    inputs.push_back(std::move(offset));
    return;
  }
  const auto [seed, offset] = DrawPhilox(generator, device.index(), plan.draws);
  static const trace::Type* type = trace::Intern({trace::DType::kU64, {}});
  inputs.push_back(device.FromHost(type, &seed));
  inputs.push_back(device.FromHost(type, &offset));
}

void PushResults(const Plan& plan, c10::SmallVectorImpl<ValuePtr>& results, c10::DeviceIndex device,
                 size_t num_arguments, Stack* stack) {
  auto make = [&](int i) {
    const Output& out = plan.outputs[i];
    return MakeTensor(out.sizes, out.strides, out.dtype, device, out.bytes, std::move(results[i]));
  };
  if (C10_LIKELY(plan.returns.size() == 1 && plan.returns[0].kind == Return::Kind::kTensor &&
                 plan.returns[0].first >= 0)) {
    at::Tensor result = make(plan.returns[0].first);
    torch::jit::drop(*stack, num_arguments);
    stack->emplace_back(std::move(result));
    return;
  }
  c10::SmallVector<c10::IValue, 4> returned;
  const auto arguments = torch::jit::last(*stack, num_arguments);
  for (const Return& ret : plan.returns) {
    switch (ret.kind) {
      case Return::Kind::kTensor:
        returned.emplace_back(ret.first >= 0 ? make(ret.first) : at::Tensor());
        break;
      case Return::Kind::kTensorList: {
        c10::List<at::Tensor> list;
        list.reserve(ret.count);
        for (int i = 0; i < ret.count; ++i) list.push_back(make(ret.first + i));
        returned.emplace_back(std::move(list));
        break;
      }
      case Return::Kind::kArgument:
        returned.emplace_back(arguments[ret.argument]);
        break;
      case Return::Kind::kConstant:
        returned.emplace_back(ret.constant);
        break;
    }
  }
  torch::jit::drop(*stack, num_arguments);
  for (auto& value : returned) stack->emplace_back(std::move(value));
}

// Debug mode's look at what an operator computed.
void CheckNumbers(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments,
                  const Gathered& gathered, const Plan& plan, trace::Device& device,
                  c10::ArrayRef<ValuePtr> inputs, c10::ArrayRef<ValuePtr> results) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    // A NaN asked for, as in nan_to_num(nan=...).
    const bool constant = entry.arguments[i].kind == ArgumentKind::kStatic;
    if (constant && arguments[i].isDouble() && std::isnan(arguments[i].toDouble())) return;
  }
  std::vector<Examined> before, after;
  std::vector<bool> viewed(inputs.size(), false);
  for (const GatheredTensor& t : gathered.tensors) {
    if (t.input < 0) continue;
    viewed[t.input] = true;
    before.push_back({inputs[t.input], ViewOf(*t.tensor)});
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!viewed[i]) before.push_back(Whole(inputs[i]));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const Output& output = plan.outputs[i];
    if (output.fresh) {
      after.push_back(Whole(results[i]));
    } else {
      after.push_back({results[i], ViewOf(*gathered.tensors[output.tensor].tensor)});
    }
  }
  CheckForNaN(device, before, after, [&] { return Describe(entry, arguments); });
}

void ReturnOutArguments(const OperatorEntry& entry, Stack* stack) {
  const size_t n = entry.arguments.size();
  std::vector<c10::IValue> outs;
  const auto arguments = torch::jit::last(*stack, n);
  const size_t returns = entry.op->schema().returns().size();
  for (size_t i = 0; i < n && outs.size() < returns; ++i) {
    if (entry.arguments[i].written) outs.push_back(arguments[i]);
  }
  torch::jit::drop(*stack, n);
  for (auto& out : outs) stack->emplace_back(std::move(out));
}

// An operator on lists as calls on lists of one tensor, so that each sees what the ones before it
// wrote.
void CallOneByOne(const OperatorEntry& entry, Stack* stack) {
  const size_t n = entry.arguments.size();
  const std::vector<c10::IValue> arguments(stack->end() - static_cast<ptrdiff_t>(n), stack->end());
  size_t length = 0;
  for (size_t i = 0; i < n; ++i) {
    if (entry.arguments[i].written) length = std::max(length, arguments[i].toListRef().size());
  }
  for (size_t element = 0; element < length; ++element) {
    Stack one;
    for (size_t i = 0; i < n; ++i) {
      const bool list = entry.arguments[i].kind == ArgumentKind::kTensorList ||
                        entry.arguments[i].kind == ArgumentKind::kNumberList;
      if (!list || !arguments[i].isList() || arguments[i].toListRef().size() != length) {
        one.push_back(arguments[i]);
        continue;
      }
      c10::impl::GenericList single(arguments[i].toList().elementType());
      single.push_back(arguments[i].toListRef()[element]);
      one.emplace_back(std::move(single));
    }
    entry.op->callBoxed(&one);
  }
  torch::jit::drop(*stack, n);
}

// Loops over the rows of a tensor make calls that differ in an offset alone. After a few plans for
// such calls the rows are copied out first (by one program for all of them), and the calls are the
// same. True if the arguments on the stack were replaced in this way.
bool CopyRowsOut(const OperatorEntry& entry, const Gathered& gathered, Stack* stack) {
  constexpr int kFew = 8;
  const size_t n = entry.arguments.size();
  if (trace::Trace::Current() != nullptr) return false;
  bool any = false;
  for (const GatheredTensor& t : gathered.tensors) {
    if (t.written || !IsPiece(*t.tensor)) continue;
    any = true;
    // Whether it overlaps with what is written is for the plan to judge.
    for (const GatheredTensor& other : gathered.tensors) {
      if (other.written && other.state == t.state) return false;
    }
  }
  if (!any) return false;
  static auto* seen = new trace::SignatureCache<std::atomic<int>>;
  Signature signature;
  BuildSignature(entry, torch::jit::last(*stack, n), gathered, signature, /*with_offsets=*/false);
  if (seen->FindOrMake(signature, [] { return 0; }).fetch_add(1) < kFew) return false;
  bool replaced = false;
  for (size_t i = 0; i < n; ++i) {
    c10::IValue& value = (*stack)[stack->size() - n + i];
    if (entry.arguments[i].written || !value.isTensor()) continue;
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined() || !tensor.device().is_privateuseone() || !IsPiece(tensor)) continue;
    value = CopyOut(tensor);
    replaced = true;
  }
  return replaced;
}

}  // namespace

DispatchCounts Dispatches() { return {hits.load(), misses.load()}; }

void RuleKernel::operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
  Located([&] { Call(stack); });
}

void RuleKernel::Call(Stack* stack) const {
  RunBackwardOnThisThread();
  const OperatorEntry& entry = *entry_;
  if (C10_UNLIKELY(ProbingShapes() && entry.form == Form::kOut)) {
    ReturnOutArguments(entry, stack);
    return;
  }
  const size_t n = entry.arguments.size();
  thread_local Signature signature;
  for (int attempt = 0;; ++attempt) {
    const auto arguments = torch::jit::last(*stack, n);
    Gathered gathered;
    Gather(entry, arguments, gathered);
    ReadUnwritten(gathered);
    StorageLocks locks;
    const bool shared = entry.writes && LockWritten(gathered, locks);
    BuildSignature(entry, arguments, gathered, signature);
    if (C10_UNLIKELY(shared)) AddSharing(gathered, signature);
    Plan* plan = Plans().Find(signature);
    if (C10_UNLIKELY(plan == nullptr)) {
      locks.Unlock();  // planning may run Python
      const Signature key = signature;
      if (CopyRowsOut(entry, gathered, stack)) continue;
      auto made =
          Guarded([&] { return MakePlan(entry, *stack, gathered); }, Describe(entry, arguments));
      if (made->operation) ExplainMiss(entry, arguments, gathered, shared, *made->operation);
      misses.fetch_add(1, std::memory_order_relaxed);
      Plans().Insert(key, std::move(made));
      if (entry.writes) continue;  // another thread may have written meanwhile
      plan = Plans().Find(key);
    } else {
      hits.fetch_add(attempt == 0, std::memory_order_relaxed);
    }
    if (C10_UNLIKELY(plan->one_by_one)) {
      locks.Unlock();
      CallOneByOne(entry, stack);
      return;
    }
    if (C10_UNLIKELY(!plan->resize.empty())) {
      locks.Unlock();
      for (const auto& [tensor, sizes, strides] : plan->resize) {
        ResizeOutput(*gathered.tensors[tensor].tensor, sizes, strides);
      }
      continue;
    }
    c10::SmallVector<ValuePtr, 8> results(plan->outputs.size());
    const c10::DeviceIndex device_index = std::max<c10::DeviceIndex>(gathered.device, 0);
    if (C10_UNLIKELY(plan->number_range != c10::ScalarType::Undefined)) {
      for (const GatheredNumber& n : gathered.numbers) {
        if (!n.tensor) lowering::CheckRange(n.number, plan->number_range);
      }
    }
    if (C10_LIKELY(!plan->nothing_to_do)) {
      trace::Device& device = trace::Runtime::Get().device(device_index);
      c10::SmallVector<ValuePtr, 8> inputs;
      for (const Gathered::Input& input : gathered.inputs) {
        if (input.number >= 0) {
          inputs.push_back(device.Number(ToHostNumber(gathered.numbers[input.number].number,
                                                      plan->number_dtypes[input.number])));
          continue;
        }
        GatheredTensor& t = gathered.tensors[input.tensor];
        if (!t.value) continue;  // never written to: not a parameter
        t.input = static_cast<int>(inputs.size());
        inputs.push_back(std::move(t.value));
      }
      if (plan->random) AddRandomState(entry, arguments, *plan, device, inputs);
      try {
        // Written storages give their reference away, so that the buffer can be donated.
        if (entry.writes) {
          for (GatheredTensor& t : gathered.tensors) {
            if (t.written) t.state->value.reset();
          }
        }
        trace::Run(plan->operation, device, inputs, entry.writes, results.data());
        if (C10_UNLIKELY(DebugMode()) && trace::Trace::Current() == nullptr) {
          CheckNumbers(entry, arguments, gathered, *plan, device, inputs, results);
        }
      } catch (...) {
        for (GatheredTensor& t : gathered.tensors) {
          if (t.written && t.input >= 0) t.state->value = inputs[t.input];
        }
        locks.Unlock();
        RethrowAsTorchError(Describe(entry, arguments));
      }
      for (size_t i = 0; i < plan->outputs.size(); ++i) {
        if (plan->outputs[i].fresh) continue;
        gathered.tensors[plan->outputs[i].tensor].state->value = std::move(results[i]);
      }
      locks.Unlock();
    }
    PushResults(*plan, results, device_index, n, stack);
    return;
  }
}

}  // namespace torch_tpu::aten
