#include "lowering/call.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace torch_tpu::lowering {
namespace {

using Kind = ArgumentSpec::Kind;

std::optional<DType> FindDType(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Bool:
      return DType::kPred;
    case c10::ScalarType::Char:
      return DType::kS8;
    case c10::ScalarType::Short:
      return DType::kS16;
    case c10::ScalarType::Int:
      return DType::kS32;
    case c10::ScalarType::Long:
      return DType::kS64;
    case c10::ScalarType::Byte:
      return DType::kU8;
    case c10::ScalarType::UInt16:
      return DType::kU16;
    case c10::ScalarType::UInt32:
      return DType::kU32;
    case c10::ScalarType::UInt64:
      return DType::kU64;
    case c10::ScalarType::Half:
      return DType::kF16;
    case c10::ScalarType::BFloat16:
      return DType::kBF16;
    case c10::ScalarType::Float:
      return DType::kF32;
    case c10::ScalarType::Double:
      return DType::kF64;
    case c10::ScalarType::ComplexFloat:
      return DType::kC64;
    case c10::ScalarType::ComplexDouble:
      return DType::kC128;
    case c10::ScalarType::Float8_e4m3fn:
      return DType::kF8E4M3FN;
    case c10::ScalarType::Float8_e5m2:
      return DType::kF8E5M2;
    case c10::ScalarType::Float8_e4m3fnuz:
      return DType::kF8E4M3FNUZ;
    case c10::ScalarType::Float8_e5m2fnuz:
      return DType::kF8E5M2FNUZ;
    default:
      return std::nullopt;
  }
}

[[noreturn]] void Fail(const CallSpec& spec, std::string_view argument, std::string_view problem) {
  std::string message = spec.name;
  message.append(": argument '").append(argument).append("' ").append(problem);
  throw std::logic_error(message);
}

// The value of a structural argument; None for one that is absent.
const c10::IValue& Constant(const CallSpec& spec, const ArgumentSpec& argument,
                            std::string_view wanted) {
  static const c10::IValue none;
  switch (argument.kind) {
    case Kind::kConstant:
      return argument.constant;
    case Kind::kNone:
      return none;
    case Kind::kScalar:
      Fail(spec, argument.name,
           "is a run-time number here; a rule that reads its value names it in .structural");
    default:
      Fail(spec, argument.name, "is a tensor, not " + std::string(wanted));
  }
}

[[noreturn]] void WrongType(const CallSpec& spec, const ArgumentSpec& argument,
                            std::string_view wanted, const c10::IValue& value) {
  Fail(spec, argument.name,
       value.isNone() ? "is None, not " + std::string(wanted)
                      : "is a " + value.tagKind() + ", not " + std::string(wanted));
}

std::optional<int64_t> AsInteger(const c10::IValue& value) {
  if (value.isInt()) return value.toInt();
  if (value.isBool()) return value.toBool();
  return std::nullopt;
}

std::optional<double> AsNumber(const c10::IValue& value) {
  if (value.isDouble()) return value.toDouble();
  if (const auto integer = AsInteger(value)) return static_cast<double>(*integer);
  return std::nullopt;
}

// Elements of a list of any kind of numbers.
std::vector<c10::IValue> Elements(const c10::IValue& value) { return value.toListRef().vec(); }

Value ConstantNumber(Builder& builder, DType dtype, const c10::IValue& value, bool& ok) {
  ok = true;
  const Type type{dtype, {}};
  if (const auto integer = AsInteger(value)) return builder.ConstantInt(type, *integer);
  if (value.isDouble()) return builder.Constant(type, value.toDouble());
  if (value.isComplexDouble()) {
    const c10::complex<double> number = value.toComplexDouble();
    if (!stablehlo::IsComplex(dtype)) return builder.Constant(type, number.real());
    return builder.ConstantComplex(type, number.real(), number.imag());
  }
  ok = false;
  return Value();
}

}  // namespace

DType ToDType(c10::ScalarType type) {
  const std::optional<DType> dtype = FindDType(type);
  TORCH_CHECK_NOT_IMPLEMENTED(dtype.has_value(), "the tpu device has no dtype ",
                              c10::toString(type));
  return *dtype;
}

c10::ScalarType ToScalarType(DType dtype) {
  switch (dtype) {
    case DType::kPred:
      return c10::ScalarType::Bool;
    case DType::kS8:
      return c10::ScalarType::Char;
    case DType::kS16:
      return c10::ScalarType::Short;
    case DType::kS32:
      return c10::ScalarType::Int;
    case DType::kS64:
      return c10::ScalarType::Long;
    case DType::kU8:
      return c10::ScalarType::Byte;
    case DType::kU16:
      return c10::ScalarType::UInt16;
    case DType::kU32:
      return c10::ScalarType::UInt32;
    case DType::kU64:
      return c10::ScalarType::UInt64;
    case DType::kF16:
      return c10::ScalarType::Half;
    case DType::kBF16:
      return c10::ScalarType::BFloat16;
    case DType::kF32:
      return c10::ScalarType::Float;
    case DType::kF64:
      return c10::ScalarType::Double;
    case DType::kC64:
      return c10::ScalarType::ComplexFloat;
    case DType::kC128:
      return c10::ScalarType::ComplexDouble;
    case DType::kF8E4M3FN:
      return c10::ScalarType::Float8_e4m3fn;
    case DType::kF8E5M2:
      return c10::ScalarType::Float8_e5m2;
    case DType::kF8E4M3FNUZ:
      return c10::ScalarType::Float8_e4m3fnuz;
    case DType::kF8E5M2FNUZ:
      return c10::ScalarType::Float8_e5m2fnuz;
  }
  return c10::ScalarType::Undefined;
}

bool IsSupported(c10::ScalarType type) { return FindDType(type).has_value(); }

DType ComputeType(DType dtype) {
  const bool narrow = stablehlo::IsFloat(dtype) && stablehlo::ByteSize(dtype) < 4;
  return narrow ? DType::kF32 : dtype;
}

const ArgumentSpec* CallSpec::find(std::string_view name) const {
  for (const ArgumentSpec& argument : arguments) {
    if (argument.name == name) return &argument;
  }
  return nullptr;
}

const ArgumentSpec& CallSpec::argument(std::string_view name) const {
  const ArgumentSpec* argument = find(name);
  if (argument == nullptr) Fail(*this, name, "does not exist");
  return *argument;
}

Call::Call(const CallSpec& spec, Builder& builder, const Values& inputs)
    : spec_(spec), builder_(builder), values_(spec.arguments.size()) {
  size_t next = 0;
  const auto take = [&](const ArgumentSpec& argument) {
    if (next == inputs.size()) Fail(spec, argument.name, "has no value");
    return inputs[next++];
  };
  for (size_t i = 0; i < spec.arguments.size(); ++i) {
    const ArgumentSpec& argument = spec.arguments[i];
    const bool tensors = argument.kind == Kind::kTensor || argument.kind == Kind::kTensorList;
    if (!tensors && argument.kind != Kind::kScalar) continue;
    for (const TensorSpec& tensor : argument.tensors) {
      values_[i].push_back(!tensors || tensor.defined ? take(argument) : Value());
    }
  }
  if (next != inputs.size()) {
    throw std::logic_error(spec.name + ": " + std::to_string(inputs.size()) + " values for " +
                           std::to_string(next) + " arguments");
  }
}

int Call::IndexOf(std::string_view name) const {
  return static_cast<int>(&spec_.argument(name) - spec_.arguments.data());
}

const ArgumentSpec& Call::Find(std::string_view name) const { return spec_.argument(name); }

bool Call::has(std::string_view name) const {
  const ArgumentSpec* argument = spec_.find(name);
  if (argument == nullptr) return false;
  switch (argument->kind) {
    case Kind::kNone:
      return false;
    case Kind::kTensor:
      return !argument->tensors.empty() && argument->tensors.front().defined;
    case Kind::kConstant:
      return !argument->constant.isNone();
    default:
      return true;
  }
}

bool Call::contiguous(std::string_view name) const {
  const ArgumentSpec& argument = spec_.arguments[IndexOf(name)];
  if (argument.kind != Kind::kTensor) Fail(spec_, name, "is not a tensor");
  return argument.tensors[0].contiguous;
}

Value Call::tensor(std::string_view name) const {
  const std::optional<Value> value = optional_tensor(name);
  if (!value) Fail(spec_, name, "is an absent tensor");
  return *value;
}

std::optional<Value> Call::optional_tensor(std::string_view name) const {
  const int index = IndexOf(name);
  const Kind kind = spec_.arguments[index].kind;
  if (kind == Kind::kNone) return std::nullopt;
  if (kind != Kind::kTensor) Fail(spec_, name, "is not a tensor");
  if (values_[index].empty() || !values_[index].front()) return std::nullopt;
  return values_[index].front();
}

Values Call::tensors(std::string_view name) const {
  Values values;
  for (const std::optional<Value>& value : optional_tensors(name)) {
    if (!value) Fail(spec_, name, "holds an absent tensor");
    values.push_back(*value);
  }
  return values;
}

std::vector<std::optional<Value>> Call::optional_tensors(std::string_view name) const {
  const int index = IndexOf(name);
  const Kind kind = spec_.arguments[index].kind;
  std::vector<std::optional<Value>> values;
  if (kind == Kind::kNone) return values;
  if (kind != Kind::kTensorList && kind != Kind::kTensor) {
    Fail(spec_, name, "is not a list of tensors");
  }
  for (Value value : values_[index]) {
    values.push_back(value ? std::optional<Value>(value) : std::nullopt);
  }
  return values;
}

Value Call::scalar(std::string_view name, DType dtype) const {
  const int index = IndexOf(name);
  const ArgumentSpec& argument = spec_.arguments[index];
  if (argument.kind == Kind::kScalar && values_[index].size() == 1) {
    return stablehlo::Convert(values_[index].front(), dtype);
  }
  if (argument.kind == Kind::kConstant) {
    bool ok;
    Value value = ConstantNumber(builder_, dtype, argument.constant, ok);
    if (ok) return value;
    WrongType(spec_, argument, "a number", argument.constant);
  }
  Fail(spec_, name, argument.kind == Kind::kNone ? "is None, not a number" : "is not a number");
}

Values Call::scalars(std::string_view name, DType dtype) const {
  const int index = IndexOf(name);
  const ArgumentSpec& argument = spec_.arguments[index];
  Values values;
  if (argument.kind == Kind::kScalar) {
    for (Value value : values_[index]) values.push_back(stablehlo::Convert(value, dtype));
    return values;
  }
  const c10::IValue& list = Constant(spec_, argument, "a list of numbers");
  if (list.isNone()) return values;
  if (!list.isList()) WrongType(spec_, argument, "a list of numbers", list);
  for (const c10::IValue& element : Elements(list)) {
    bool ok;
    values.push_back(ConstantNumber(builder_, dtype, element, ok));
    if (!ok) WrongType(spec_, argument, "a list of numbers", list);
  }
  return values;
}

std::optional<double> Call::known(std::string_view name) const {
  const ArgumentSpec& argument = Find(name);
  if (argument.kind != Kind::kConstant) return std::nullopt;
  return AsNumber(argument.constant);
}

int64_t Call::integer(std::string_view name) const {
  const std::optional<int64_t> value = optional_integer(name);
  if (!value) Fail(spec_, name, "is None, not an integer");
  return *value;
}

std::optional<int64_t> Call::optional_integer(std::string_view name) const {
  const ArgumentSpec& argument = Find(name);
  const c10::IValue& value = Constant(spec_, argument, "an integer");
  if (value.isNone()) return std::nullopt;
  const std::optional<int64_t> integer = AsInteger(value);
  if (!integer) WrongType(spec_, argument, "an integer", value);
  return integer;
}

std::vector<int64_t> Call::integers(std::string_view name) const {
  return optional_integers(name).value_or(std::vector<int64_t>());
}

std::optional<std::vector<int64_t>> Call::optional_integers(std::string_view name) const {
  const ArgumentSpec& argument = Find(name);
  const c10::IValue& value = Constant(spec_, argument, "a list of integers");
  if (value.isNone()) return std::nullopt;
  if (value.isIntList()) return value.toIntVector();
  if (value.isInt()) return std::vector<int64_t>{value.toInt()};
  std::vector<int64_t> integers;
  if (!value.isList()) WrongType(spec_, argument, "a list of integers", value);
  for (const c10::IValue& element : Elements(value)) {
    const std::optional<int64_t> integer = AsInteger(element);
    if (!integer) WrongType(spec_, argument, "a list of integers", value);
    integers.push_back(*integer);
  }
  return integers;
}

bool Call::boolean(std::string_view name) const {
  const ArgumentSpec& argument = Find(name);
  const c10::IValue& value = Constant(spec_, argument, "a boolean");
  if (value.isNone()) return false;
  const std::optional<int64_t> integer = AsInteger(value);
  if (!integer) WrongType(spec_, argument, "a boolean", value);
  return *integer != 0;
}

std::vector<bool> Call::booleans(std::string_view name) const {
  const ArgumentSpec& argument = Find(name);
  const c10::IValue& value = Constant(spec_, argument, "a list of booleans");
  std::vector<bool> booleans;
  if (value.isNone()) return booleans;
  if (!value.isList()) WrongType(spec_, argument, "a list of booleans", value);
  for (const c10::IValue& element : Elements(value)) {
    const std::optional<int64_t> integer = AsInteger(element);
    if (!integer) WrongType(spec_, argument, "a list of booleans", value);
    booleans.push_back(*integer != 0);
  }
  return booleans;
}

double Call::number(std::string_view name) const {
  const std::optional<double> value = optional_number(name);
  if (!value) Fail(spec_, name, "is None, not a number");
  return *value;
}

std::optional<double> Call::optional_number(std::string_view name) const {
  const ArgumentSpec& argument = Find(name);
  const c10::IValue& value = Constant(spec_, argument, "a number");
  if (value.isNone()) return std::nullopt;
  const std::optional<double> number = AsNumber(value);
  if (!number) WrongType(spec_, argument, "a real number", value);
  return number;
}

std::vector<double> Call::numbers(std::string_view name) const {
  const ArgumentSpec& argument = Find(name);
  const c10::IValue& value = Constant(spec_, argument, "a list of numbers");
  std::vector<double> numbers;
  if (value.isNone()) return numbers;
  if (!value.isList()) WrongType(spec_, argument, "a list of numbers", value);
  for (const c10::IValue& element : Elements(value)) {
    const std::optional<double> number = AsNumber(element);
    if (!number) WrongType(spec_, argument, "a list of numbers", value);
    numbers.push_back(*number);
  }
  return numbers;
}

std::string Call::string(std::string_view name) const {
  const ArgumentSpec& argument = Find(name);
  const c10::IValue& value = Constant(spec_, argument, "a string");
  if (value.isNone()) return "";
  if (!value.isString()) WrongType(spec_, argument, "a string", value);
  return value.toStringRef();
}

std::optional<DType> Call::dtype(std::string_view name) const {
  const ArgumentSpec& argument = Find(name);
  const c10::IValue& value = Constant(spec_, argument, "a dtype");
  if (value.isNone()) return std::nullopt;
  if (!value.isInt()) WrongType(spec_, argument, "a dtype", value);
  return ToDType(static_cast<c10::ScalarType>(value.toInt()));
}

const Type& Call::result(int i) const {
  if (i < 0 || i >= static_cast<int>(spec_.results.size())) {
    throw std::logic_error(spec_.name + ": has no result " + std::to_string(i));
  }
  return spec_.results[i].type;
}

bool Call::wants(int i) const {
  return i >= 0 && i < static_cast<int>(spec_.results.size()) && spec_.results[i].defined;
}

DType Call::promoted() const { return ToDType(spec_.PromotedType()); }

void Call::Check(Value ok, std::string message, ErrorKind kind) {
  if (ok.dtype() != DType::kPred) {
    throw stablehlo::TypeError(spec_.name + ": a check of " + ok.type().str() + ", not of i1");
  }
  std::vector<int64_t> all(ok.rank());
  std::iota(all.begin(), all.end(), 0);
  checks_.push_back(
      {stablehlo::Reduce(ok, stablehlo::Reduction::kAnd, all), std::move(message), kind});
}

Value Call::seed() const {
  if (!seed_) throw std::logic_error(spec_.name + ": draws numbers but is not marked random");
  return seed_;
}

Value Call::offset() const {
  if (!offset_) throw std::logic_error(spec_.name + ": draws numbers but is not marked random");
  return offset_;
}

int64_t WrapDim(int64_t dim, int64_t rank) {
  const int64_t count = std::max<int64_t>(rank, 1);
  TORCH_CHECK_INDEX(dim >= -count && dim < count, "Dimension out of range (expected to be in ",
                    "range of [", -count, ", ", count - 1, "], but got ", dim, ")");
  return dim < 0 ? dim + count : dim;
}

std::vector<int64_t> WrapDims(const std::vector<int64_t>& dims, int64_t rank,
                              bool empty_means_all) {
  std::vector<int64_t> wrapped;
  if (dims.empty() && empty_means_all) {
    wrapped.resize(rank);
    std::iota(wrapped.begin(), wrapped.end(), 0);
    return wrapped;
  }
  for (int64_t dim : dims) {
    const int64_t one = WrapDim(dim, rank);
    TORCH_CHECK(std::find(wrapped.begin(), wrapped.end(), one) == wrapped.end(), "dim ", one,
                " appears multiple times in the list of dims");
    wrapped.push_back(one);
  }
  // The dimension a 0-d tensor is said to have is not there.
  if (rank == 0) wrapped.clear();
  return wrapped;
}

Value NarrowIndices(Value indices, int64_t dimension_size) {
  using std::numeric_limits;
  if (!stablehlo::IsInteger(indices.dtype())) {
    throw stablehlo::TypeError("indices of type " + indices.type().str());
  }
  if (dimension_size > numeric_limits<int32_t>::max()) {
    return stablehlo::Convert(indices, DType::kS64);
  }
  Builder& builder = indices.builder();
  // Saturated, so that what was out of range stays so.
  if (indices.dtype() == DType::kS64) {
    indices = stablehlo::Clamp(
        stablehlo::ScalarInt(builder, DType::kS64, numeric_limits<int32_t>::min()), indices,
        stablehlo::ScalarInt(builder, DType::kS64, numeric_limits<int32_t>::max()));
  } else if (indices.dtype() == DType::kU32 || indices.dtype() == DType::kU64) {
    Value limit = builder.ConstantInt(indices.type(), numeric_limits<int32_t>::max());
    indices = stablehlo::Minimum(indices, limit);
  }
  return stablehlo::Convert(indices, DType::kS32);
}

Value WrapIndices(Value indices, int64_t dimension_size) {
  if (stablehlo::IsUnsigned(indices.dtype())) return indices;
  // Narrower integers might not hold the sum.
  const bool narrow = dimension_size <= std::numeric_limits<int32_t>::max();
  if (stablehlo::ByteSize(indices.dtype()) < 4 || (indices.dtype() == DType::kS32 && !narrow)) {
    indices = stablehlo::Convert(indices, narrow ? DType::kS32 : DType::kS64);
  }
  Value size = indices.builder().ConstantInt(indices.type(), dimension_size);
  Value zero = indices.builder().ConstantInt(indices.type(), 0);
  return stablehlo::Select(stablehlo::Lt(indices, zero), stablehlo::Add(indices, size), indices);
}

}  // namespace torch_tpu::lowering
