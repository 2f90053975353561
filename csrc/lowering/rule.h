#pragma once

#include <deque>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lowering/call.h"

namespace torch_tpu::lowering {

using RuleFunction = Values (*)(Call&);

// Shape function of an operator that is not structured: types and strides of the results. Strides
// may be left empty for contiguous. Throws c10::Error with PyTorch's own message.
struct ResultSpec {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  bool defined = true;
};
// A tensor argument as a shape function sees it.
struct ShapeTensor {
  c10::ScalarType dtype;
  std::vector<int64_t> sizes, strides;
  bool defined = false;
  bool wrapped_number = false;
};
class ShapeCall {
 public:
  ShapeCall(const std::vector<std::string>& names, const std::vector<c10::IValue>& constants,
            const std::vector<std::vector<ShapeTensor>>& tensors)
      : names_(names), constants_(constants), tensors_(tensors) {}
  const ShapeTensor& tensor(std::string_view name) const;  // undefined if None
  const std::vector<ShapeTensor>& tensors(std::string_view name) const;
  const c10::IValue& argument(std::string_view name) const;  // numbers, lists, None
  bool has(std::string_view name) const;

 private:
  int IndexOf(std::string_view name) const;
  const std::vector<std::string>& names_;
  const std::vector<c10::IValue>& constants_;
  const std::vector<std::vector<ShapeTensor>>& tensors_;
};
using ShapeFunction = std::vector<ResultSpec> (*)(const ShapeCall&);

// Kinds of dtype.
enum Kinds : unsigned { kFloat = 1, kComplex = 2, kInteger = 4, kBool = 8, kAnyKind = 15 };

// How one ATen operator is lowered. The in-place and out= forms are derived from the schemas.
struct Rule {
  std::string op;  // functional form, "add.Tensor"; only-mutating operators name that form
  RuleFunction lower = nullptr;
  ShapeFunction shape = nullptr;

  // What result 0 may be; other kinds are not implemented, as on CPU.
  unsigned kinds = kAnyKind;

  // Numbers (Scalar, float and lists of them) are run-time arguments except those named here.
  std::vector<std::string> structural;
  // Numbers that are structural when they have one of these values, else run-time.
  std::vector<std::pair<std::string, std::vector<double>>> specialize;
  // Run-time numbers arrive in self's dtype rather than in the promoted one (fill_, masked_fill,
  // ...).
  bool scalars_as_self = false;
  // Run-time numbers are refused on every call that result 0's dtype, or the one it is computed in,
  // cannot hold; CPU's kernels convert theirs to one of these.
  enum class Fits { kAny, kCompute, kResult };
  Fits scalars_fit = Fits::kAny;
  // Takes seed and offset. The generator's offset moves on by the number of elements of all
  // results, rounded up to a multiple of 4, so a rule may draw one 32-bit word an element (Philox
  // counter offset/4 + i/4, lane i%4); rules that need two words an element set draws_per_element
  // = 2.
  bool random = false;
  int draws_per_element = 1;
  // Whether a call of these structural arguments draws at all; null: each does.
  bool (*draws)(const CallSpec&) = nullptr;
  // Writes these arguments although the schema does not say so (batch norm's running statistics):
  // the rule returns them after its declared results.
  std::vector<std::string> also_writes;
  // Results of in-place and out= forms need no promotion check (comparisons into any dtype, ...).
  bool any_out_dtype = false;
};

class Registry {
 public:
  static Registry& Get();
  // Throws std::logic_error if the operator has a rule already. Rules are added while libraries
  // load, not while others search.
  void Add(Rule rule);
  // nullptr if there is none; else valid for ever.
  const Rule* Find(std::string_view op) const;
  const std::deque<Rule>& rules() const { return rules_; }

 private:
  std::deque<Rule> rules_;  // elements stay where they are
  std::unordered_map<std::string_view, const Rule*> by_name_;
};

struct RegisterRule {
  explicit RegisterRule(Rule rule) { Registry::Get().Add(std::move(rule)); }
};

#define TPU_CONCAT_(a, b) a##b
#define TPU_CONCAT(a, b) TPU_CONCAT_(a, b)
// TPU_RULE({.op = "add.Tensor", .lower = &Add, .specialize = {{"alpha", {1.0}}}});
#define TPU_RULE(...)                                          \
  static const ::torch_tpu::lowering::RegisterRule TPU_CONCAT( \
      tpu_rule_, __COUNTER__)(::torch_tpu::lowering::Rule __VA_ARGS__)

}  // namespace torch_tpu::lowering
