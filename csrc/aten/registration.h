#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace torch_tpu::aten {

// Registers a kernel for every rule, its in-place and out= forms, and for what PyTorch can
// decompose. Once.
void RegisterOperators();

// The aten operator called "add.out"; nullopt for an empty or unknown name.
std::optional<c10::OperatorHandle> FindOperator(const std::string& name);

// How an overload ("add.out") relates to its functional form, from native_functions.yaml.
struct Variant {
  std::string functional, inplace, out;
  bool elementwise = false;  // PyTorch builds a TensorIterator, whose checks of overlap hold
};
// The row in which `op` is any of the forms; nullptr if it has no other form.
const Variant* FindVariant(std::string_view op);

// Every overload served, with "rule" or "decomposition" (for docs and diagnostics).
std::vector<std::pair<std::string, std::string>> ServedOperators();

}  // namespace torch_tpu::aten
