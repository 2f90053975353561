#include "aten/registration.h"

#include <torch/library.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "aten/decomposition.h"
#include "aten/dispatch.h"
#include "aten/expanded_kernel.h"
#include "aten/indexing_kernel.h"
#include "aten/linalg_errors.h"
#include "aten/list_copy_kernel.h"
#include "aten/operator_entry.h"

namespace torch_tpu::aten {
namespace {

struct VariantRow {
  const char *functional, *inplace, *out;
  bool elementwise;
};
#include "variants.inc"

using c10::DispatchKey;

const std::unordered_map<std::string_view, const Variant*>& VariantMap() {
  static const auto* map = [] {
    auto* variants = new std::deque<Variant>;
    auto* result = new std::unordered_map<std::string_view, const Variant*>;
    for (const VariantRow& row : kVariants) {
      const Variant& v =
          variants->emplace_back(Variant{row.functional, row.inplace, row.out, row.elementwise});
      for (const std::string* name : {&v.functional, &v.inplace, &v.out}) {
        if (!name->empty()) result->emplace(*name, &v);
      }
    }
    return result;
  }();
  return *map;
}

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

ArgumentPlan PlanOf(const c10::Argument& argument, const lowering::Rule* rule) {
  ArgumentPlan plan;
  plan.out = argument.is_out();
  plan.written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  if (rule != nullptr && Contains(rule->also_writes, argument.name())) plan.written = true;
  const bool structural = rule == nullptr || Contains(rule->structural, argument.name());
  c10::TypePtr type = argument.real_type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  auto is_number = [](const c10::TypePtr& t) {
    return t->kind() == c10::TypeKind::NumberType || t->kind() == c10::TypeKind::FloatType;
  };
  const std::string& name = argument.name();
  if (type->kind() == c10::TypeKind::TensorType) {
    plan.kind = ArgumentKind::kTensor;
  } else if (type->kind() == c10::TypeKind::GeneratorType) {
    plan.kind = ArgumentKind::kGenerator;
  } else if (type->kind() == c10::TypeKind::DeviceObjType || name == "layout" ||
             name == "pin_memory") {
    plan.kind = ArgumentKind::kIgnored;
  } else if (is_number(type)) {
    plan.is_float = type->kind() == c10::TypeKind::FloatType;
    plan.kind = structural ? ArgumentKind::kStatic : ArgumentKind::kNumber;
  } else if (auto list = type->cast<c10::ListType>()) {
    c10::TypePtr element = list->getElementType();
    if (auto optional = element->cast<c10::OptionalType>()) element = optional->getElementType();
    if (element->kind() == c10::TypeKind::TensorType) {
      plan.kind = ArgumentKind::kTensorList;
    } else if (is_number(element) && !structural) {
      plan.kind = ArgumentKind::kNumberList;
    }
  }
  if (rule != nullptr) {
    for (const auto& [argument_name, values] : rule->specialize) {
      if (argument_name == name) plan.specialize = &values;
    }
  }
  return plan;
}

struct Registered {
  std::deque<OperatorEntry> entries;
  std::unordered_set<std::string> names;
  std::vector<std::pair<std::string, std::string>> served;
};
Registered& registered() {
  static auto* r = new Registered;
  return *r;
}

std::optional<c10::SafeKernelFunction> DefaultKernel(const c10::OperatorHandle& op) {
  if (!op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional)) {
    return std::nullopt;
  }
  return op.getComputedKernelForDispatchKey(DispatchKey::PrivateUse1);
}

bool UsesDots(const std::string& name) {
  for (const char* part : {"mm", "mv", "dot", "conv", "attention", "addr", "linear"}) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

// Prepares the entry of one form of a rule; nullptr if PyTorch serves the overload by composing
// others, which keeps its autograd formula right.
OperatorEntry* Prepare(const lowering::Rule* rule, const std::string& name, Form form,
                       const std::string& functional) {
  auto op = FindOperator(name);
  if (!op || op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) return nullptr;
  if (!registered().names.insert(name).second) return nullptr;
  OperatorEntry entry;
  entry.rule = rule;
  entry.op = op;
  entry.name = name;
  entry.form = form;
  entry.default_kernel = DefaultKernel(*op);
  if (form != Form::kFunctional && functional != name) {
    entry.functional = FindOperator(functional);
    if (entry.functional) entry.functional_default_kernel = DefaultKernel(*entry.functional);
  }
  for (const c10::Argument& argument : op->schema().arguments()) {
    entry.arguments.push_back(PlanOf(argument, rule));
    entry.writes |= entry.arguments.back().written;
  }
  entry.uses_dots = UsesDots(name);
  registered().entries.push_back(std::move(entry));
  return &registered().entries.back();
}

}  // namespace

std::optional<c10::OperatorHandle> FindOperator(const std::string& name) {
  if (name.empty()) return std::nullopt;
  const size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchema(
      {"aten::" + name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
}

const Variant* FindVariant(std::string_view op) {
  auto it = VariantMap().find(op);
  return it == VariantMap().end() ? nullptr : it->second;
}

std::vector<std::pair<std::string, std::string>> ServedOperators() { return registered().served; }

void RegisterOperators() {
  // Default kernels of structured operators are read before anything is registered over them.
  std::vector<OperatorEntry*> rules;
  auto add = [&](const lowering::Rule* rule, const std::string& name, Form form,
                 const std::string& functional) {
    if (OperatorEntry* entry = Prepare(rule, name, form, functional)) rules.push_back(entry);
  };
  for (const lowering::Rule& rule : lowering::Registry::Get().rules()) {
    const Variant* variant = FindVariant(rule.op);
    if (variant == nullptr || variant->functional == rule.op) {
      add(&rule, rule.op, Form::kFunctional, rule.op);
      if (variant != nullptr && !variant->inplace.empty()) {
        add(&rule, variant->inplace, Form::kInplace, rule.op);
      }
      if (variant != nullptr && !variant->out.empty()) {
        add(&rule, variant->out, Form::kOut, rule.op);
      }
    } else {
      // A rule for a mutating form alone; its shape function speaks for it. One that also returns
      // something new (batch norm) is like a functional form that writes besides.
      const Form form = variant->out == rule.op     ? Form::kOut
                        : !rule.also_writes.empty() ? Form::kFunctional
                                                    : Form::kInplace;
      add(&rule, rule.op, form, rule.op);
    }
  }
  std::vector<OperatorEntry*> decompositions;
  for (const char* name : kDecompositions) {
    auto op = FindOperator(name);
    const Variant* variant = FindVariant(name);
    if (!op || variant == nullptr || variant->functional != name) continue;
    if (op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) ||
        op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
        op->hasKernelForDispatchKey(DispatchKey::PrivateUse1)) {
      continue;
    }
    bool aliases = false;
    for (const auto& ret : op->schema().returns()) aliases |= ret.alias_info() != nullptr;
    if (aliases) continue;
    if (OperatorEntry* entry = Prepare(nullptr, name, Form::kFunctional, name)) {
      decompositions.push_back(entry);
    }
  }

  static auto* library = new torch::Library(torch::Library::IMPL, "aten", DispatchKey::PrivateUse1,
                                            __FILE__, __LINE__);
  auto served = [](const OperatorEntry& entry, const char* how) {
    registered().served.emplace_back(entry.name, how);
  };
  for (const OperatorEntry* entry : rules) {
    library->impl(
        entry->name.c_str(),
        IndexingKernel::Serves(entry->rule->op)
            ? torch::CppFunction::makeFromBoxedFunctor(std::make_unique<IndexingKernel>(entry))
        : ExpandedKernel::Serves(*entry)
            ? torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ExpandedKernel>(entry))
        : ListCopyKernel::Serves(*entry)
            ? torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ListCopyKernel>(entry))
        : LinalgErrorsKernel::Serves(*entry)
            ? torch::CppFunction::makeFromBoxedFunctor(std::make_unique<LinalgErrorsKernel>(entry))
            : torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RuleKernel>(entry)));
    served(*entry, entry->form == Form::kFunctional ? "rule" : "derived");
  }
  for (const OperatorEntry* entry : decompositions) {
    library->impl(entry->name.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                           std::make_unique<DecompositionKernel>(entry)));
    served(*entry, "decomposition");
  }
}

}  // namespace torch_tpu::aten
