#include "stablehlo/internal.h"

namespace torch_tpu::stablehlo {

namespace {

std::string FailureText(std::string_view operation, std::string_view problem,
                        const Values& operands) {
  std::string message(operation);
  message.append(": ").append(problem);
  if (!operands.empty()) {
    message.append(" (operand types: ");
    for (size_t i = 0; i < operands.size(); ++i) {
      if (i > 0) message.append(", ");
      message.append(operands[i] ? operands[i].type().str() : "undefined");
    }
    message.push_back(')');
  }
  return message;
}

}  // namespace

void Fail(std::string_view operation, std::string_view problem, const Values& operands) {
  throw TypeError(FailureText(operation, problem, operands));
}

void FailDType(std::string_view operation, std::string_view problem, const Values& operands) {
  throw UnsupportedDType(FailureText(operation, problem, operands), operands.front().dtype());
}

void CheckDefined(std::string_view operation, const Values& operands) {
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i]) Fail(operation, "operand " + std::to_string(i) + " is undefined", operands);
  }
}

void CheckDimension(std::string_view operation, int64_t dimension, int64_t rank, Value operand) {
  if (dimension >= 0 && dimension < rank) return;
  Fail(operation, "dimension " + std::to_string(dimension) + " is out of range", {operand});
}

void CheckDimensions(std::string_view operation, const std::vector<int64_t>& dimensions,
                     int64_t rank, Value operand) {
  for (size_t i = 0; i < dimensions.size(); ++i) {
    CheckDimension(operation, dimensions[i], rank, operand);
    for (size_t j = 0; j < i; ++j) {
      if (dimensions[i] != dimensions[j]) continue;
      Fail(operation, "dimension " + std::to_string(dimensions[i]) + " appears twice", {operand});
    }
  }
}

namespace {

void AppendJoined(std::string& text, const std::vector<int64_t>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text.append(", ");
    text.append(std::to_string(values[i]));
  }
}

}  // namespace

std::string Array(const std::vector<int64_t>& values) {
  std::string text = values.empty() ? "array<i64" : "array<i64: ";
  AppendJoined(text, values);
  text.push_back('>');
  return text;
}

std::string List(const std::vector<int64_t>& values) {
  std::string text = "[";
  AppendJoined(text, values);
  text.push_back(']');
  return text;
}

std::string Int(int64_t value) { return std::to_string(value) + " : i64"; }

std::string Pairs(const std::vector<std::pair<int64_t, int64_t>>& values) {
  std::string text = "dense<";
  if (!values.empty()) {
    text.push_back('[');
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) text.append(", ");
      text.append(List({values[i].first, values[i].second}));
    }
    text.push_back(']');
  }
  text.append("> : tensor<").append(std::to_string(values.size())).append("x2xi64>");
  return text;
}

std::string_view Bool(bool value) { return value ? "true" : "false"; }

Region Checked(std::string_view operation, const Region& body, std::vector<Type> types) {
  return [operation, &body, types = std::move(types)](const Values& arguments) {
    Values values = body(arguments);
    CheckDefined(operation, values);
    bool fits = values.size() == types.size();
    for (size_t i = 0; fits && i < types.size(); ++i) fits = values[i].type() == types[i];
    if (!fits) Fail(operation, "the region yields other types than needed", values);
    return values;
  };
}

Value EmitOne(std::string_view name, const Values& operands, std::string_view attributes,
              const Type& result) {
  CheckDefined(name, operands);
  return operands.front().builder().Emit(name, operands, attributes, {result}).front();
}

}  // namespace torch_tpu::stablehlo
