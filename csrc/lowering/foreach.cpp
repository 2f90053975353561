#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <utility>

#include "lowering/elementwise.h"
#include "lowering/rule.h"

// Operators over whole lists of tensors. Each is one rule, so one executable; what it does to an
// element of the list is the rule of the operator over single tensors.
namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT: rules read like the mathematics

using Kind = ArgumentSpec::Kind;

// --- values

// A call of the operator `op` for element `index` of the list.
class ItemCall {
 public:
  ItemCall(Call& list, std::string op, int index) : list_(list) {
    spec_.name = std::move(op);
    spec_.precision = list.spec().precision;
    spec_.deterministic = list.spec().deterministic;
    spec_.host_dot = list.spec().host_dot;
    spec_.results = {list.spec().results[index]};
  }

  ItemCall& Tensor(const char* name, Value value, bool wrapped_number = false) {
    ArgumentSpec argument{.name = name, .kind = Kind::kTensor};
    argument.tensors = {{.type = value.type(), .wrapped_number = wrapped_number, .defined = true}};
    return Add(std::move(argument), value);
  }
  // A number that is a run-time value of its own.
  ItemCall& Number(const char* name, Value value, DType kind) {
    ArgumentSpec argument{.name = name, .kind = Kind::kScalar};
    argument.tensors = {{.type = value.type(), .defined = true}};
    argument.number_kinds = {kind};
    return Add(std::move(argument), value);
  }
  // The number argument `from` of the list's call, run-time or not.
  ItemCall& Forward(const char* name, const char* from) {
    const ArgumentSpec& argument = list_.spec().argument(from);
    if (argument.kind != Kind::kScalar) {
      ArgumentSpec copy = argument;
      copy.name = name;
      spec_.arguments.push_back(std::move(copy));
      return *this;
    }
    return Number(name, list_.scalar(from, argument.tensors[0].type.dtype),
                  argument.number_kinds.at(0));
  }
  ItemCall& Constant(const char* name, c10::IValue value) {
    spec_.arguments.push_back({.name = name,
                               .kind = value.isNone() ? Kind::kNone : Kind::kConstant,
                               .constant = std::move(value)});
    return *this;
  }

  Value Run() {
    const Rule* rule = Registry::Get().Find(spec_.name);
    if (rule == nullptr)
      throw std::logic_error(list_.spec().name + " needs a rule of " + spec_.name);
    Call call(spec_, list_.builder(), inputs_);
    Value result = rule->lower(call).at(0);
    for (const auto& check : call.checks()) list_.Check(check.ok, check.message, check.kind);
    return result;
  }

 private:
  ItemCall& Add(ArgumentSpec argument, Value value) {
    spec_.arguments.push_back(std::move(argument));
    inputs_.push_back(value);
    return *this;
  }

  Call& list_;
  CallSpec spec_;
  Values inputs_;
};

// One number for each element of a list: a list of numbers, or a 1-d tensor of them.
class Numbers {
 public:
  Numbers(Call& c, const char* name) : c_(c), argument_(c.spec().argument(name)) {}

  Value at(int i) {
    if (argument_.kind == Kind::kTensor) {
      return Reshape(SliceDim(c_.tensor(argument_.name), 0, i, i + 1), {});
    }
    const DType dtype = argument_.kind == Kind::kScalar ? argument_.tensors[i].type.dtype : kind(i);
    auto [found, inserted] = by_dtype_.try_emplace(dtype);
    if (inserted) found->second = c_.scalars(argument_.name, dtype);
    return found->second[i];
  }
  DType kind(int i) const {
    return i < static_cast<int>(argument_.number_kinds.size()) ? argument_.number_kinds[i]
                                                               : DType::kF64;
  }

 private:
  Call& c_;
  const ArgumentSpec& argument_;
  std::map<DType, Values> by_dtype_;
};

template <typename F>
Values ForEachItem(Call& c, F&& item) {
  Values results;
  const int count = static_cast<int>(c.num_results());
  for (int i = 0; i < count; ++i) results.push_back(item(i));
  return results;
}

// "_foreach_add.Scalar" is {"add", "Scalar"}.
std::pair<std::string, std::string> FamilyAndOverload(const Call& c) {
  const std::string name = c.spec().name.substr(sizeof("_foreach_") - 1);
  const size_t dot = name.find('.');
  if (dot == std::string::npos) return {name, ""};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

Values Unary(Call& c) {
  const std::string op = FamilyAndOverload(c).first;
  const Values self = c.tensors("self");
  return ForEachItem(c, [&](int i) { return ItemCall(c, op, i).Tensor("self", self[i]).Run(); });
}

const char* ItemOf(const std::string& family) {
  if (family == "add") return "add.Tensor";
  if (family == "sub") return "sub.Tensor";
  if (family == "mul") return "mul.Tensor";
  if (family == "div") return "div.Tensor";
  if (family == "minimum" || family == "clamp_max") return "minimum";
  if (family == "maximum" || family == "clamp_min") return "maximum";
  throw std::logic_error("no foreach operator " + family);
}

// add, sub, mul, div, the extrema: with a number, a number each, a tensor each or one 0-d tensor.
Values Binary(Call& c) {
  const auto [family, overload] = FamilyAndOverload(c);
  const char* const op = ItemOf(family);
  const bool takes_alpha = family == "add" || family == "sub";
  const Values self = c.tensors("self");
  const auto run = [&](int i, Value other, bool number) {
    ItemCall item(c, op, i);
    item.Tensor("self", self[i]).Tensor("other", other, number);
    if (takes_alpha) {
      if (c.spec().find("alpha")) {
        item.Forward("alpha", "alpha");
      } else {
        item.Constant("alpha", int64_t{1});
      }
    }
    return item.Run();
  };
  if (overload == "List") {
    const Values other = c.tensors("other");
    return ForEachItem(c, [&](int i) { return run(i, other[i], false); });
  }
  if (overload == "Tensor") {
    Value other = c.tensor("other");
    return ForEachItem(c, [&](int i) { return run(i, other, false); });
  }
  if (overload == "ScalarList") {
    Numbers numbers(c, "scalars");
    return ForEachItem(c, [&](int i) { return run(i, numbers.at(i), true); });
  }
  const ArgumentSpec& scalar = c.spec().argument("scalar");
  return ForEachItem(c, [&](int i) {
    const DType dtype = scalar.kind == Kind::kScalar ? scalar.tensors[0].type.dtype
                                                     : ComputeType(c.result(i).dtype);
    return run(i, c.scalar("scalar", dtype), true);
  });
}

Values Pow(Call& c) {
  const std::string overload = FamilyAndOverload(c).second;
  if (overload == "ScalarAndTensor") {
    const Values exponent = c.tensors("exponent");
    return ForEachItem(c, [&](int i) {
      ItemCall item(c, "pow.Scalar", i);
      return item.Forward("self", "self").Tensor("exponent", exponent[i]).Run();
    });
  }
  const Values self = c.tensors("self");
  if (overload == "List") {
    const Values exponent = c.tensors("exponent");
    return ForEachItem(c, [&](int i) {
      ItemCall item(c, "pow.Tensor_Tensor", i);
      return item.Tensor("self", self[i]).Tensor("exponent", exponent[i]).Run();
    });
  }
  if (overload == "ScalarList") {
    Numbers numbers(c, "exponent");
    return ForEachItem(c, [&](int i) {
      ItemCall item(c, "pow.Tensor_Scalar", i);
      return item.Tensor("self", self[i]).Number("exponent", numbers.at(i), numbers.kind(i)).Run();
    });
  }
  return ForEachItem(c, [&](int i) {
    ItemCall item(c, "pow.Tensor_Scalar", i);
    return item.Tensor("self", self[i]).Forward("exponent", "exponent").Run();
  });
}

// addcmul and addcdiv.
Values AddCombined(Call& c) {
  const auto [op, overload] = FamilyAndOverload(c);
  const Values self = c.tensors("self"), a = c.tensors("tensor1"), b = c.tensors("tensor2");
  const auto item = [&, &op = op](int i) {
    ItemCall call(c, op, i);
    call.Tensor("self", self[i]).Tensor("tensor1", a[i]).Tensor("tensor2", b[i]);
    return call;
  };
  if (overload == "Scalar") {
    return ForEachItem(c, [&](int i) { return item(i).Forward("value", "value").Run(); });
  }
  Numbers numbers(c, "scalars");
  return ForEachItem(
      c, [&](int i) { return item(i).Number("value", numbers.at(i), numbers.kind(i)).Run(); });
}

Values Lerp(Call& c) {
  const std::string overload = FamilyAndOverload(c).second;
  const Values self = c.tensors("self"), end = c.tensors("tensors1");
  if (overload == "List") {
    const Values weights = c.tensors("weights");
    return ForEachItem(c, [&](int i) {
      ItemCall item(c, "lerp.Tensor", i);
      return item.Tensor("self", self[i]).Tensor("end", end[i]).Tensor("weight", weights[i]).Run();
    });
  }
  if (overload == "Scalar") {
    return ForEachItem(c, [&](int i) {
      ItemCall item(c, "lerp.Scalar", i);
      return item.Tensor("self", self[i]).Tensor("end", end[i]).Forward("weight", "weight").Run();
    });
  }
  Numbers numbers(c, "weight");
  return ForEachItem(c, [&](int i) {
    ItemCall item(c, "lerp.Scalar", i);
    item.Tensor("self", self[i]).Tensor("end", end[i]);
    return item.Number("weight", numbers.at(i), numbers.kind(i)).Run();
  });
}

Values ListNorm(Call& c) {
  const Values self = c.tensors("self");
  const ArgumentSpec& dtype = c.spec().argument("dtype");
  return ForEachItem(c, [&](int i) {
    ItemCall item(c, "linalg_vector_norm", i);
    item.Tensor("self", self[i]).Constant("ord", c.number("ord"));
    item.Constant("dim", {}).Constant("keepdim", false);
    return item.Constant("dtype", dtype.constant).Run();
  });
}

Values PowerSum(Call& c) {
  const Values self = c.tensors("self");
  const double p = c.number("ord");
  return ForEachItem(c, [&](int i) {
    Value x = c.has("dtype") ? Convert(self[i], *c.dtype("dtype")) : self[i];
    x = Abs(Convert(x, ComputeType(x.dtype())));
    if (p == 2) {
      x = Square(x);
    } else if (p != 1) {
      x = Power(x, ConstantLike(x, p));
    }
    std::vector<int64_t> all;
    for (int d = 0; d < x.rank(); ++d) all.push_back(d);
    if (!all.empty()) x = Reduce(x, Reduction::kSum, all);
    return Convert(x, c.result(i).dtype);
  });
}

Values Clone(Call& c) { return c.tensors("self"); }

Values Copy(Call& c) {
  const Values source = c.tensors("src");
  return ForEachItem(c, [&](int i) {
    return BroadcastTo(Convert(source[i], c.result(i).dtype), c.result(i).dims);
  });
}

// --- shapes

// The arguments of one element of a list, in the form shape functions read.
class ItemShape {
 public:
  ItemShape& Tensor(const char* name, const ShapeTensor& tensor) { return Add(name, {}, {tensor}); }
  ItemShape& Number(const char* name, const c10::IValue& number) { return Add(name, number, {}); }
  ShapeCall call() const { return {names_, constants_, tensors_}; }

 private:
  ItemShape& Add(const char* name, c10::IValue constant, std::vector<ShapeTensor> tensors) {
    names_.push_back(name);
    constants_.push_back(std::move(constant));
    tensors_.push_back(std::move(tensors));
    return *this;
  }
  std::vector<std::string> names_;
  std::vector<c10::IValue> constants_;
  std::vector<std::vector<ShapeTensor>> tensors_;
};

const std::vector<ShapeTensor>& ListOf(const ShapeCall& s, const char* name) {
  const auto& list = s.tensors(name);
  TORCH_CHECK(!list.empty(), "Tensor list must have at least one tensor.");
  return list;
}

// Another list, of the same length.
const std::vector<ShapeTensor>& ListLike(const ShapeCall& s, const char* name, size_t size) {
  const auto& list = s.tensors(name);
  TORCH_CHECK(list.size() == size, "Tensor lists must have the same number of tensors, got ", size,
              " and ", list.size());
  return list;
}

std::vector<c10::IValue> NumbersLike(const ShapeCall& s, const char* name, size_t size) {
  const c10::IValue& list = s.argument(name);
  const auto numbers = list.isList() ? list.toListRef().vec() : std::vector<c10::IValue>();
  TORCH_CHECK(numbers.size() == size,
              "Tensor list must have same number of elements as scalar list.");
  return numbers;
}

c10::ScalarType RealOf(c10::ScalarType type) {
  return c10::isComplexType(type) ? c10::toRealValueType(type) : type;
}

enum class Gives { kSame, kFloating, kMagnitude };

template <Gives gives>
std::vector<ResultSpec> UnaryShape(const ShapeCall& s) {
  std::vector<ResultSpec> results;
  for (const ShapeTensor& self : ListOf(s, "self")) {
    c10::ScalarType dtype = self.dtype;
    if (gives == Gives::kFloating) dtype = FloatingType(dtype);
    if (gives == Gives::kMagnitude) dtype = RealOf(dtype);
    const ItemShape item = ItemShape().Tensor("self", self);
    results.push_back(ElementwiseResult(item.call(), {"self"}, dtype));
  }
  return results;
}

std::vector<ResultSpec> NegShape(const ShapeCall& s) {
  for (const ShapeTensor& self : ListOf(s, "self")) {
    TORCH_CHECK(self.dtype != c10::ScalarType::Bool,
                "Negation, the `-` operator, on a bool tensor is not supported. If you are trying "
                "to invert a mask, use the `~` or `logical_not()` operator instead.");
  }
  return UnaryShape<Gives::kSame>(s);
}

enum class With { kScalar, kList, kScalarList, kTensor };

// `other` is the name of the second operand.
std::vector<ResultSpec> BinaryShapes(const ShapeCall& s, With with, const char* other,
                                     Gives gives) {
  const auto& self = ListOf(s, "self");
  std::vector<c10::IValue> numbers;
  if (with == With::kScalarList) numbers = NumbersLike(s, other, self.size());
  if (with == With::kList) ListLike(s, other, self.size());
  if (with == With::kTensor) {
    const auto& sizes = s.tensor(other).sizes;
    int64_t numel = 1;
    for (int64_t size : sizes) numel *= size;
    TORCH_CHECK(sizes.empty(), "scalar tensor expected to be 0 dim but it has ", sizes.size(),
                " dimensions and ", numel, " elements.");
  }
  std::vector<ResultSpec> results;
  for (size_t i = 0; i < self.size(); ++i) {
    ItemShape item;
    item.Tensor("self", self[i]);
    switch (with) {
      case With::kScalar:
        item.Number("other", s.argument(other));
        break;
      case With::kList:
        item.Tensor("other", s.tensors(other)[i]);
        break;
      case With::kScalarList:
        item.Number("other", numbers[i]);
        break;
      case With::kTensor:
        item.Tensor("other", s.tensor(other));
        break;
    }
    const ShapeCall call = item.call();
    c10::ScalarType dtype = PromoteArguments(call, {"self", "other"});
    if (gives == Gives::kFloating) dtype = FloatingType(dtype);
    if (call.tensor("other").defined) {
      results.push_back(ElementwiseResult(call, {"self", "other"}, dtype));
    } else {
      results.push_back(ElementwiseResult(call, {"self"}, dtype));
    }
  }
  return results;
}

template <With with, Gives gives>
std::vector<ResultSpec> BinaryShape(const ShapeCall& s) {
  constexpr const char* kNames[] = {"scalar", "other", "scalars", "other"};
  return BinaryShapes(s, with, kNames[static_cast<int>(with)], gives);
}

// Subtraction is not for bool.
template <With with>
std::vector<ResultSpec> SubtractShape(const ShapeCall& s) {
  auto results = BinaryShape<with, Gives::kSame>(s);
  for (const ResultSpec& result : results) {
    TORCH_CHECK(
        result.dtype != c10::ScalarType::Bool,
        "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` "
        "or `logical_xor()` operator instead.");
  }
  return results;
}

void CheckExponent(const ShapeTensor& self, const c10::IValue& exponent) {
  TORCH_CHECK(!(c10::isIntegralType(self.dtype, /*includeBool=*/true) && exponent.isInt() &&
                exponent.toInt() < 0),
              "Integers to negative integer powers are not allowed.");
}

template <With with>
std::vector<ResultSpec> PowShape(const ShapeCall& s) {
  auto results = BinaryShapes(s, with, "exponent", Gives::kSame);
  const auto& self = s.tensors("self");
  if (with == With::kScalar) {
    for (const ShapeTensor& t : self) CheckExponent(t, s.argument("exponent"));
  }
  if (with == With::kScalarList) {
    const auto exponents = NumbersLike(s, "exponent", self.size());
    for (size_t i = 0; i < self.size(); ++i) CheckExponent(self[i], exponents[i]);
  }
  return results;
}

std::vector<ResultSpec> PowOfNumberShape(const ShapeCall& s) {
  std::vector<ResultSpec> results;
  for (const ShapeTensor& exponent : ListOf(s, "exponent")) {
    ItemShape item;
    item.Number("self", s.argument("self")).Tensor("exponent", exponent);
    const ShapeCall call = item.call();
    results.push_back(
        ElementwiseResult(call, {"exponent"}, PromoteArguments(call, {"self", "exponent"})));
  }
  return results;
}

template <With with>
std::vector<ResultSpec> AddCombinedShape(const ShapeCall& s) {
  const auto& self = ListOf(s, "self");
  const auto& a = ListLike(s, "tensor1", self.size());
  const auto& b = ListLike(s, "tensor2", self.size());
  if (with == With::kScalarList) NumbersLike(s, "scalars", self.size());
  if (with == With::kTensor) {
    const auto& sizes = s.tensor("scalars").sizes;
    TORCH_CHECK(sizes.size() == 1, "Expected packed scalar Tensor to be of dimension 1. Got ",
                sizes.size(), " instead.");
    TORCH_CHECK(sizes[0] == static_cast<int64_t>(self.size()),
                "Expected length of scalars to match input of length ", self.size(), " but got ",
                sizes[0], " instead.");
  }
  std::vector<ResultSpec> results;
  for (size_t i = 0; i < self.size(); ++i) {
    ItemShape item;
    item.Tensor("self", self[i]).Tensor("tensor1", a[i]).Tensor("tensor2", b[i]);
    const ShapeCall call = item.call();
    results.push_back(ElementwiseResult(call, {"self", "tensor1", "tensor2"},
                                        PromoteArguments(call, {"self", "tensor1", "tensor2"})));
  }
  return results;
}

template <With with>
std::vector<ResultSpec> LerpShape(const ShapeCall& s) {
  const auto& self = ListOf(s, "self");
  const auto& end = ListLike(s, "tensors1", self.size());
  if (with == With::kList) ListLike(s, "weights", self.size());
  if (with == With::kScalarList) NumbersLike(s, "weight", self.size());
  std::vector<ResultSpec> results;
  for (size_t i = 0; i < self.size(); ++i) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        c10::isFloatingType(self[i].dtype) || c10::isComplexType(self[i].dtype),
        "\"lerp_kernel_scalar\" not implemented for '", self[i].dtype, "'");
    TORCH_CHECK(self[i].dtype == end[i].dtype, "expected dtype ", self[i].dtype,
                " for `end` but got dtype ", end[i].dtype);
    ItemShape item;
    item.Tensor("self", self[i]).Tensor("end", end[i]);
    if (with == With::kList) {
      item.Tensor("weight", s.tensors("weights")[i]);
      results.push_back(ElementwiseResult(item.call(), {"self", "end", "weight"}, self[i].dtype));
    } else {
      results.push_back(ElementwiseResult(item.call(), {"self", "end"}, self[i].dtype));
    }
  }
  return results;
}

std::vector<ResultSpec> NormShape(const ShapeCall& s) {
  std::vector<ResultSpec> results;
  const c10::IValue& ord = s.argument("ord");
  const bool infinite = ord.isDouble() && std::isinf(ord.toDouble());
  for (const ShapeTensor& self : ListOf(s, "self")) {
    const c10::IValue& wanted = s.argument("dtype");
    const auto dtype = wanted.isNone() ? self.dtype : wanted.toScalarType();
    TORCH_CHECK(c10::isFloatingType(self.dtype) || c10::isComplexType(self.dtype),
                "linalg.vector_norm: Expected a floating point or complex tensor as input. Got ",
                self.dtype);
    const bool empty = std::count(self.sizes.begin(), self.sizes.end(), 0) > 0;
    TORCH_CHECK(!(infinite && empty),
                "_foreach_norm cannot compute the infinity norm on an empty tensor because the "
                "operation does not have an identity");
    results.push_back({.dtype = RealOf(dtype), .sizes = {}});
  }
  return results;
}

std::vector<ResultSpec> MaxShape(const ShapeCall& s) {
  std::vector<ResultSpec> results;
  for (const ShapeTensor& self : ListOf(s, "self")) {
    TORCH_CHECK(
        std::count(self.sizes.begin(), self.sizes.end(), 0) == 0,
        "_foreach_max cannot compute the maximum of an empty tensor; max over zero elements "
        "is undefined.");
    results.push_back({.dtype = self.dtype, .sizes = {}});
  }
  return results;
}

std::vector<ResultSpec> CopyShape(const ShapeCall& s) {
  ListLike(s, "src", ListOf(s, "self").size());
  return UnaryShape<Gives::kSame>(s);
}

// --- the table

#define TPU_FOREACH_UNARY(name, gives) \
  TPU_RULE({.op = "_foreach_" name, .lower = &Unary, .shape = &UnaryShape<gives>})

TPU_FOREACH_UNARY("abs", Gives::kMagnitude);
TPU_FOREACH_UNARY("acos", Gives::kFloating);
TPU_FOREACH_UNARY("asin", Gives::kFloating);
TPU_FOREACH_UNARY("atan", Gives::kFloating);
TPU_FOREACH_UNARY("ceil", Gives::kSame);
TPU_FOREACH_UNARY("cos", Gives::kFloating);
TPU_FOREACH_UNARY("cosh", Gives::kFloating);
TPU_FOREACH_UNARY("erf", Gives::kFloating);
TPU_FOREACH_UNARY("erfc", Gives::kFloating);
TPU_FOREACH_UNARY("exp", Gives::kFloating);
TPU_FOREACH_UNARY("expm1", Gives::kFloating);
TPU_FOREACH_UNARY("floor", Gives::kSame);
TPU_FOREACH_UNARY("frac", Gives::kSame);
TPU_FOREACH_UNARY("lgamma", Gives::kFloating);
TPU_FOREACH_UNARY("log", Gives::kFloating);
TPU_FOREACH_UNARY("log10", Gives::kFloating);
TPU_FOREACH_UNARY("log1p", Gives::kFloating);
TPU_FOREACH_UNARY("log2", Gives::kFloating);
TPU_FOREACH_UNARY("reciprocal", Gives::kFloating);
TPU_FOREACH_UNARY("round", Gives::kSame);
TPU_FOREACH_UNARY("rsqrt", Gives::kFloating);
TPU_FOREACH_UNARY("sigmoid", Gives::kFloating);
TPU_FOREACH_UNARY("sign", Gives::kSame);
TPU_FOREACH_UNARY("sin", Gives::kFloating);
TPU_FOREACH_UNARY("sinh", Gives::kFloating);
TPU_FOREACH_UNARY("sqrt", Gives::kFloating);
TPU_FOREACH_UNARY("tan", Gives::kFloating);
TPU_FOREACH_UNARY("tanh", Gives::kFloating);
TPU_FOREACH_UNARY("trunc", Gives::kSame);
TPU_FOREACH_UNARY("zero", Gives::kSame);
TPU_RULE({.op = "_foreach_neg", .lower = &Unary, .shape = &NegShape});
TPU_RULE({.op = "_foreach_max", .lower = &Unary, .shape = &MaxShape});
TPU_RULE({.op = "_foreach_clone", .lower = &Clone, .shape = &UnaryShape<Gives::kSame>});
TPU_RULE({.op = "_foreach_copy", .lower = &Copy, .shape = &CopyShape});

#undef TPU_FOREACH_UNARY

#define TPU_FOREACH_BINARY(name, gives)                    \
  TPU_RULE({.op = "_foreach_" name ".Scalar",              \
            .lower = &Binary,                              \
            .shape = &BinaryShape<With::kScalar, gives>}); \
  TPU_RULE({.op = "_foreach_" name ".List",                \
            .lower = &Binary,                              \
            .shape = &BinaryShape<With::kList, gives>});   \
  TPU_RULE({.op = "_foreach_" name ".ScalarList",          \
            .lower = &Binary,                              \
            .shape = &BinaryShape<With::kScalarList, gives>})

TPU_FOREACH_BINARY("mul", Gives::kSame);
TPU_FOREACH_BINARY("div", Gives::kFloating);
TPU_FOREACH_BINARY("clamp_max", Gives::kSame);
TPU_FOREACH_BINARY("clamp_min", Gives::kSame);
TPU_FOREACH_BINARY("maximum", Gives::kSame);
TPU_FOREACH_BINARY("minimum", Gives::kSame);

#undef TPU_FOREACH_BINARY

TPU_RULE({.op = "_foreach_add.Scalar",
          .lower = &Binary,
          .shape = &BinaryShape<With::kScalar, Gives::kSame>});
TPU_RULE({.op = "_foreach_add.List",
          .lower = &Binary,
          .shape = &BinaryShape<With::kList, Gives::kSame>,
          .specialize = {{"alpha", {1}}}});
TPU_RULE({.op = "_foreach_add.ScalarList",
          .lower = &Binary,
          .shape = &BinaryShape<With::kScalarList, Gives::kSame>});
TPU_RULE({.op = "_foreach_add.Tensor",
          .lower = &Binary,
          .shape = &BinaryShape<With::kTensor, Gives::kSame>,
          .specialize = {{"alpha", {1}}}});
TPU_RULE({.op = "_foreach_mul.Tensor",
          .lower = &Binary,
          .shape = &BinaryShape<With::kTensor, Gives::kSame>});
TPU_RULE({.op = "_foreach_div.Tensor",
          .lower = &Binary,
          .shape = &BinaryShape<With::kTensor, Gives::kFloating>});

TPU_RULE({.op = "_foreach_sub.Scalar", .lower = &Binary, .shape = &SubtractShape<With::kScalar>});
TPU_RULE({.op = "_foreach_sub.List",
          .lower = &Binary,
          .shape = &SubtractShape<With::kList>,
          .specialize = {{"alpha", {1}}}});
TPU_RULE({.op = "_foreach_sub.ScalarList",
          .lower = &Binary,
          .shape = &SubtractShape<With::kScalarList>});

TPU_RULE({.op = "_foreach_pow.Scalar",
          .lower = &Pow,
          .shape = &PowShape<With::kScalar>,
          .specialize = {{"exponent", {0, 1, 2, 3, 0.5, -0.5, -1, -2}}}});
TPU_RULE({.op = "_foreach_pow.List", .lower = &Pow, .shape = &PowShape<With::kList>});
TPU_RULE({.op = "_foreach_pow.ScalarList", .lower = &Pow, .shape = &PowShape<With::kScalarList>});
TPU_RULE({.op = "_foreach_pow.ScalarAndTensor", .lower = &Pow, .shape = &PowOfNumberShape});

#define TPU_FOREACH_ADD_COMBINED(name)                 \
  TPU_RULE({.op = "_foreach_" name ".Scalar",          \
            .lower = &AddCombined,                     \
            .shape = &AddCombinedShape<With::kScalar>, \
            .specialize = {{"value", {1}}}});          \
  TPU_RULE({.op = "_foreach_" name ".ScalarList",      \
            .lower = &AddCombined,                     \
            .shape = &AddCombinedShape<With::kScalarList>})

TPU_FOREACH_ADD_COMBINED("addcmul");
TPU_FOREACH_ADD_COMBINED("addcdiv");

#undef TPU_FOREACH_ADD_COMBINED

TPU_RULE({.op = "_foreach_lerp.List", .lower = &Lerp, .shape = &LerpShape<With::kList>});
TPU_RULE({.op = "_foreach_lerp.Scalar", .lower = &Lerp, .shape = &LerpShape<With::kScalar>});
TPU_RULE({.op = "_foreach_lerp.ScalarList",
          .lower = &Lerp,
          .shape = &LerpShape<With::kScalarList>});

TPU_RULE(
    {.op = "_foreach_norm.Scalar", .lower = &ListNorm, .shape = &NormShape, .structural = {"ord"}});
TPU_RULE({.op = "_foreach_powsum.Scalar",
          .lower = &PowerSum,
          .shape = &NormShape,
          .structural = {"ord"}});

}  // namespace
}  // namespace torch_tpu::lowering
