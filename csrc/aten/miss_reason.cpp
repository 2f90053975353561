#include "aten/miss_reason.h"

#include <ATen/Context.h>

#include <algorithm>
#include <mutex>
#include <sstream>
#include <unordered_map>
#include <utility>
#include <vector>

#include "aten/python_hooks.h"
#include "lowering/call.h"
#include "trace/operation.h"

namespace torch_tpu::aten {
namespace {

using Part = SignaturePart;

template <class List>
std::string Dims(const List& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ',';
    text += std::to_string(dims[i]);
  }
  return text + ']';
}

std::string ShortName(c10::ScalarType dtype) {
  return std::string(stablehlo::Name(lowering::ToDType(dtype)));
}

std::string NumberText(const GatheredNumber& number) {
  if (number.tensor && !number.wrapped) return ShortName(number.dtype) + "[] on the CPU";
  if (number.dtype == c10::ScalarType::ComplexDouble) return "a complex number";
  if (number.dtype == c10::ScalarType::Double) return "a float";
  return number.dtype == c10::ScalarType::Bool ? "a bool" : "an int";
}

std::string StaticText(const c10::IValue& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

// The signature of the call as text, in the order of the signature's words.
std::vector<Part> Describe(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments,
                           const Gathered& gathered, bool storages_shared) {
  std::vector<Part> parts;
  size_t tensor = 0, number = 0;
  auto tensor_text = [&](const c10::IValue& value) -> std::string {
    if (!value.isTensor() || !value.toTensor().defined()) return "None";
    if (value.toTensor().device().is_privateuseone()) {
      const GatheredTensor& t = gathered.tensors[tensor++];
      return SignatureText(*t.tensor, t.value ? t.value->type() : nullptr);
    }
    return NumberText(gathered.numbers[number++]);
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    const std::string& argument = entry.op->schema().arguments()[i].name();
    const std::string name = "argument " + std::to_string(i) + " (" + argument + ")";
    switch (entry.arguments[i].kind) {
      case ArgumentKind::kTensor:
        parts.push_back({name, tensor_text(value)});
        break;
      case ArgumentKind::kTensorList:
      case ArgumentKind::kNumberList: {
        if (!value.isList()) {
          parts.push_back({name, "None"});
          break;
        }
        const auto elements = value.toListRef();
        parts.push_back({"the length of " + name, std::to_string(elements.size())});
        for (size_t e = 0; e < elements.size(); ++e) {
          parts.push_back({name + "[" + std::to_string(e) + "]",
                           entry.arguments[i].kind == ArgumentKind::kTensorList
                               ? tensor_text(elements[e])
                               : NumberText(gathered.numbers[number++])});
        }
        break;
      }
      case ArgumentKind::kNumber:
        if (value.isNone() || IsSpecial(entry.arguments[i].specialize, value.toScalar())) {
          parts.push_back({argument, StaticText(value)});
        } else {
          parts.push_back({argument, NumberText(gathered.numbers[number++])});
        }
        break;
      case ArgumentKind::kStatic:
        parts.push_back({argument, StaticText(value)});
        break;
      case ArgumentKind::kGenerator:
      case ArgumentKind::kIgnored:
        break;
    }
  }
  if (entry.uses_dots) {
    static constexpr const char* kNames[] = {"highest", "high", "medium"};
    const auto precision = at::globalContext().float32MatmulPrecision();
    parts.push_back({"the float32 matmul precision", kNames[static_cast<int>(precision)]});
  }
  std::string owners = "none";
  if (storages_shared) {
    std::vector<size_t> first_with_storage;
    for (const GatheredTensor& t : gathered.tensors) {
      size_t first = 0;
      while (gathered.tensors[first].state != t.state) ++first;
      first_with_storage.push_back(first);
    }
    owners = Dims(first_with_storage);
  }
  parts.push_back({"which tensors share a storage", owners});
  return parts;
}

}  // namespace

std::string SignatureText(const at::Tensor& t, const trace::Type* base) {
  std::string view;
  auto add = [&view](const std::string& text) { view += (view.empty() ? "" : ", ") + text; };
  if (!t.is_contiguous()) add("strides " + Dims(t.strides()));
  if (t.storage_offset() != 0) add("offset " + std::to_string(t.storage_offset()));
  if (t.is_conj()) add("conjugated");
  if (t.is_neg()) add("negated");
  if (base == nullptr) {
    add("never written");
  } else if (!t.sizes().equals(base->dims) || lowering::ToDType(t.scalar_type()) != base->dtype) {
    view += view.empty() ? "view of " : " of ";
    view += stablehlo::Name(base->dtype);
    view += Dims(base->dims);
  }
  const std::string type = ShortName(t.scalar_type()) + Dims(t.sizes());
  return view.empty() ? type : type + " (" + view + ")";
}

// Of the parts that both have; a list's further elements follow from its length.
std::string Difference(const std::vector<Part>& before, const std::vector<Part>& now) {
  constexpr size_t kMost = 4;
  std::string text;
  size_t differences = 0;
  for (const Part& part : now) {
    const auto same = [&](const Part& other) { return other.name == part.name; };
    const auto was = std::ranges::find_if(before, same);
    if (was == before.end() || was->text == part.text || ++differences > kMost) continue;
    if (!text.empty()) text += "; ";
    text += part.name + " was " + was->text + ", now " + part.text;
  }
  if (differences > kMost) text += "; and " + std::to_string(differences - kMost) + " more";
  return text;
}

void ExplainMiss(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments,
                 const Gathered& gathered, bool storages_shared, trace::Operation& operation) {
  static std::mutex mutex;
  static auto* last = new std::unordered_map<const OperatorEntry*, std::vector<Part>>;
  std::vector<Part> now = Describe(entry, arguments, gathered, storages_shared);
  std::string reason;
  {
    std::lock_guard guard(mutex);
    auto [found, first] = last->emplace(&entry, now);
    reason = first ? "first call of this operator" : Difference(found->second, now);
    found->second = std::move(now);
  }
  if (reason.empty()) reason = "planned at the same time by another thread";
  operation.Explain(std::move(reason), Hooks().source_line ? Hooks().source_line() : "");
}

}  // namespace torch_tpu::aten
