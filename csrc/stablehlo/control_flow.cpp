#include "stablehlo/builder.h"
#include "stablehlo/internal.h"

namespace torch_tpu::stablehlo {
namespace {

std::vector<Type> TypesOf(const Values& values) {
  std::vector<Type> types;
  types.reserve(values.size());
  for (Value value : values) types.push_back(value.type());
  return types;
}

}  // namespace

Values While(const Values& inits, const Region& condition, const Region& body) {
  constexpr std::string_view kName = "stablehlo.while";
  if (inits.empty()) Fail(kName, "no operands");
  CheckDefined(kName, inits);
  const std::vector<Type> types = TypesOf(inits);
  return inits[0].builder().Emit(kName, inits, "", types,
                                 {{types, Checked(kName, condition, {{DType::kPred, {}}})},
                                  {types, Checked(kName, body, types)}});
}

Values If(Value predicate, const std::vector<Type>& results, const Region& on_true,
          const Region& on_false) {
  constexpr std::string_view kName = "stablehlo.if";
  CheckDefined(kName, {predicate});
  if (predicate.type() != Type{DType::kPred, {}}) {
    Fail(kName, "the predicate is not a 0-d i1", {predicate});
  }
  return predicate.builder().Emit(
      kName, {predicate}, "", results,
      {{{}, Checked(kName, on_true, results)}, {{}, Checked(kName, on_false, results)}});
}

Values OptimizationBarrier(const Values& xs) {
  if (xs.empty()) return {};
  CheckDefined("stablehlo.optimization_barrier", xs);
  return xs[0].builder().Emit("stablehlo.optimization_barrier", xs, "", TypesOf(xs));
}

Values CustomCall(std::string_view target, const Values& operands, std::string_view attributes,
                  const std::vector<Type>& results) {
  constexpr std::string_view kName = "stablehlo.custom_call";
  if (operands.empty()) Fail(kName, "no operands");
  CheckDefined(kName, operands);
  std::string all = "call_target_name = \"";
  all.append(target).push_back('"');
  if (!attributes.empty()) all.append(", ").append(attributes);
  return operands[0].builder().Emit(kName, operands, all, results);
}

}  // namespace torch_tpu::stablehlo
