#include "lowering/rule.h"

#include <stdexcept>

namespace torch_tpu::lowering {

Registry& Registry::Get() {
  static Registry registry;
  return registry;
}

void Registry::Add(Rule rule) {
  if (Find(rule.op) != nullptr) throw std::logic_error("two lowering rules for " + rule.op);
  rules_.push_back(std::move(rule));
  by_name_.emplace(rules_.back().op, &rules_.back());
}

const Rule* Registry::Find(std::string_view op) const {
  const auto found = by_name_.find(op);
  return found == by_name_.end() ? nullptr : found->second;
}

int ShapeCall::IndexOf(std::string_view name) const {
  for (size_t i = 0; i < names_.size(); ++i) {
    if (names_[i] == name) return static_cast<int>(i);
  }
  throw std::logic_error("shape function asks for argument '" + std::string(name) +
                         "', which the operator does not have");
}

const ShapeTensor& ShapeCall::tensor(std::string_view name) const {
  static const ShapeTensor undefined{};
  const std::vector<ShapeTensor>& list = tensors_[IndexOf(name)];
  return list.empty() ? undefined : list.front();
}

const std::vector<ShapeTensor>& ShapeCall::tensors(std::string_view name) const {
  return tensors_[IndexOf(name)];
}

const c10::IValue& ShapeCall::argument(std::string_view name) const {
  return constants_[IndexOf(name)];
}

bool ShapeCall::has(std::string_view name) const {
  for (size_t i = 0; i < names_.size(); ++i) {
    if (names_[i] != name) continue;
    if (!constants_[i].isNone()) return true;
    for (const ShapeTensor& tensor : tensors_[i]) {
      if (tensor.defined) return true;
    }
  }
  return false;
}

}  // namespace torch_tpu::lowering
