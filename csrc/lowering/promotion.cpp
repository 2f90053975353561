// PyTorch's type promotion, and the range of numbers. Operands fall into three categories: tensors
// with dimensions, 0-d tensors and Python numbers. A lower category takes part only where it is of
// a higher kind (bool < integer < floating point < complex) than the categories above it.

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

#include "lowering/call.h"

namespace torch_tpu::lowering {
namespace {

using c10::ScalarType;

ScalarType Promote(ScalarType a, ScalarType b) {
  if (a == ScalarType::Undefined) return b;
  if (b == ScalarType::Undefined) return a;
  return c10::promoteTypes(a, b);
}

int KindOf(ScalarType type) {
  if (type == ScalarType::Undefined) return -1;
  if (type == ScalarType::Bool) return 0;
  if (c10::isComplexType(type)) return 3;
  return c10::isFloatingType(type) ? 2 : 1;
}

ScalarType Combine(ScalarType higher, ScalarType lower) {
  if (KindOf(lower) <= KindOf(higher)) return higher;
  // A real tensor and a complex number of a lower category: complex of the tensor's precision.
  if (KindOf(higher) == 2) return c10::toComplexType(higher);
  if (KindOf(lower) == 3) return lower;
  return Promote(higher, lower);
}

// Python floats and complex numbers count as the default dtype.
ScalarType NumberType(ScalarType type) {
  if (c10::isComplexType(type)) {
    return c10::typeMetaToScalarType(c10::get_default_complex_dtype());
  }
  if (c10::isFloatingType(type)) return c10::typeMetaToScalarType(c10::get_default_dtype());
  return type;
}

std::optional<ScalarType> NumberKind(const c10::IValue& value) {
  if (value.isBool()) return ScalarType::Bool;
  if (value.isInt()) return ScalarType::Long;
  if (value.isDouble()) return ScalarType::Double;
  if (value.isComplexDouble()) return ScalarType::ComplexDouble;
  return std::nullopt;
}

// Whether the numbers of an argument are operands. Only `Scalar` arguments are (a dim is not, nor
// eps), and not those that merely scale or fill: PyTorch converts these to the result's dtype.
class Operands {
 public:
  explicit Operands(const std::string& name) {
    const size_t dot = name.find('.');
    const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
    const auto found =
        c10::Dispatcher::singleton().findSchema({"aten::" + name.substr(0, dot), overload});
    if (found) schema_ = &found->schema();
  }

  bool Contain(const std::string& argument) const {
    for (const char* factor : {"alpha", "beta", "value", "weight"}) {
      if (argument == factor) return false;
    }
    if (schema_ == nullptr) return true;
    const std::optional<int> index = schema_->argumentIndexWithName(argument);
    if (!index) return false;
    const c10::TypePtr type = schema_->arguments()[*index].type();
    const auto optional = type->cast<c10::OptionalType>();
    return (optional ? optional->getElementType() : type)->kind() == c10::TypeKind::NumberType;
  }

 private:
  const c10::FunctionSchema* schema_ = nullptr;
};

}  // namespace

ScalarType CallSpec::PromotedType() const {
  ScalarType dimensioned = ScalarType::Undefined;
  ScalarType zero_dim = ScalarType::Undefined;
  ScalarType numbers = ScalarType::Undefined;
  std::optional<Operands> operands;
  const auto is_operand = [&](const ArgumentSpec& argument) {
    if (!operands) operands.emplace(name);
    return operands->Contain(argument.name);
  };

  for (const ArgumentSpec& argument : arguments) {
    switch (argument.kind) {
      case ArgumentSpec::Kind::kNone:
        break;
      case ArgumentSpec::Kind::kTensor:
      case ArgumentSpec::Kind::kTensorList:
        for (const TensorSpec& tensor : argument.tensors) {
          if (!tensor.defined) continue;
          const ScalarType type = ToScalarType(tensor.type.dtype);
          if (tensor.wrapped_number) {
            numbers = Promote(numbers, NumberType(type));
          } else if (tensor.type.dims.empty()) {
            zero_dim = Promote(zero_dim, type);
          } else {
            dimensioned = Promote(dimensioned, type);
          }
        }
        break;
      case ArgumentSpec::Kind::kScalar:
        if (!is_operand(argument)) break;
        for (DType kind : argument.number_kinds) {
          numbers = Promote(numbers, NumberType(ToScalarType(kind)));
        }
        break;
      case ArgumentSpec::Kind::kConstant:
        if (const auto kind = NumberKind(argument.constant); kind && is_operand(argument)) {
          numbers = Promote(numbers, NumberType(*kind));
        }
        break;
    }
  }
  return Combine(dimensioned, Combine(zero_dim, numbers));
}

void CheckRange(const c10::Scalar& number, c10::ScalarType type) {
  switch (type) {
#define TPU_CHECK_RANGE(T, name) \
  case c10::ScalarType::name:    \
    (void)number.to<T>();        \
    break;
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_EXCEPT_COMPLEX_HALF_F8NZ(TPU_CHECK_RANGE)
    TPU_CHECK_RANGE(c10::Float8_e4m3fnuz, Float8_e4m3fnuz)
    TPU_CHECK_RANGE(c10::Float8_e5m2fnuz, Float8_e5m2fnuz)
#undef TPU_CHECK_RANGE
    default:
      break;
  }
}

}  // namespace torch_tpu::lowering
