#include "aten/plan.h"

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>

#include <sstream>
#include <string_view>
#include <unordered_set>

#include "aten/registration.h"
#include "aten/shape_inference.h"
#include "trace/runtime.h"
#include "trace/view.h"

namespace torch_tpu::aten {
namespace {

using lowering::ArgumentSpec;
using lowering::CallSpec;
using lowering::DType;
using lowering::ResultSpec;
using lowering::TensorSpec;
using trace::Type;
using trace::ViewSpec;

// How the value of one input of a rule comes from the operation's parameters.
struct InputSource {
  int parameter = -1;  // -1: never written, reads as zeros
  bool number = false;
  ViewSpec view;
};

// Where one result of a rule goes.
struct ResultTarget {
  bool fresh = true;
  DType dtype = DType::kF32;  // of the tensor
  ViewSpec view;
  Type after;          // the storage's value after the write
  int parameter = -1;  // the storage's value before
  int previous = -1;   // an earlier result written to the same storage
};

stablehlo::Precision DotPrecision() {
  switch (at::globalContext().float32MatmulPrecision()) {
    case at::Float32MatmulPrecision::HIGHEST:
      return stablehlo::Precision::kHighest;
    case at::Float32MatmulPrecision::HIGH:
      return stablehlo::Precision::kHigh;
    case at::Float32MatmulPrecision::MEDIUM:
      return stablehlo::Precision::kDefault;
  }
  return stablehlo::Precision::kHighest;
}

Type TypeOf(const ResultSpec& result) { return {lowering::ToDType(result.dtype), result.sizes}; }

// Reductions that sum up in the dtype of out= where `dtype` is not given.
bool TakesDtypeOfOut(const OperatorEntry& entry) {
  const std::string base = entry.rule->op.substr(0, entry.rule->op.find('.'));
  return base == "sum" || base == "nansum" || base == "prod" || base == "cumsum" ||
         base == "cumprod";
}

// Arguments of the functional form: those of an out= form without the out= ones. A rule for an out=
// form alone speaks of that form, whose result's dtype is the out= argument's.
std::vector<c10::IValue> FunctionalArguments(const OperatorEntry& entry,
                                             c10::ArrayRef<c10::IValue> arguments) {
  if (!entry.functional) return arguments.vec();
  std::vector<c10::IValue> functional;
  c10::IValue out;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!entry.arguments[i].out) {
      functional.push_back(arguments[i]);
    } else if (out.isNone()) {
      out = arguments[i];
    }
  }
  if (out.isTensor() && TakesDtypeOfOut(entry)) {
    const auto dtype = entry.functional->schema().argumentIndexWithName("dtype");
    if (dtype && functional[*dtype].isNone()) functional[*dtype] = out.toTensor().scalar_type();
  }
  return functional;
}

// For each gathered tensor, whether it came as an out= argument.
std::vector<bool> OutTensors(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments) {
  std::vector<bool> is_out;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (entry.arguments[i].kind != ArgumentKind::kTensor &&
        entry.arguments[i].kind != ArgumentKind::kTensorList) {
      continue;
    }
    ForEachTensor(arguments[i], [&](const at::Tensor& t) {
      if (t.defined() && t.device().is_privateuseone()) is_out.push_back(entry.arguments[i].out);
    });
  }
  return is_out;
}

// The written tensors in the order of the functional form's results, lists flattened: indices into
// Gathered::tensors. An out= form that also mutates arguments returns those after what is new.
std::vector<int> WrittenTensors(const Gathered& gathered, const std::vector<bool>& is_out) {
  std::vector<int> written;
  for (bool out : {true, false}) {
    for (size_t i = 0; i < gathered.tensors.size(); ++i) {
      if (gathered.tensors[i].written && is_out[i] == out) written.push_back(static_cast<int>(i));
    }
  }
  return written;
}

ResultSpec SpecOf(const at::Tensor& tensor) {
  return {tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec(), true};
}

// Length of the lists an operator writes; 0 if it writes none.
size_t ListLength(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const ArgumentPlan& argument = entry.arguments[i];
    if (argument.written && argument.kind == ArgumentKind::kTensorList) {
      return arguments[i].toListRef().size();
    }
  }
  return 0;
}

// True where an in-place operator's results are simply its written arguments: mutating-only
// operators, and those on lists without a shape function.
bool ResultsAreWritten(const OperatorEntry& entry) {
  if (entry.form != Form::kInplace) return false;
  int written = 0;
  bool list = false;
  for (const ArgumentPlan& argument : entry.arguments) {
    written += argument.written;
    list |= argument.written && argument.kind == ArgumentKind::kTensorList;
  }
  const bool shape = entry.rule->shape != nullptr;
  return written > 1 || (list ? !entry.functional || !shape : !entry.functional && !shape);
}

// A fill means the same whichever of the elements that share memory comes last.
bool AllowsInternalOverlap(const OperatorEntry& entry) {
  const std::string& op = entry.rule->op;
  return op == "fill.Scalar" || op == "zero";
}

// How CPU kernels take it that a call writes what it reads. Those with a TensorIterator are judged
// by that.
enum class Overlap { kAllowed, kWholeOnly, kRefused };
Overlap OverlapOf(const OperatorEntry& entry) {
  static const std::unordered_set<std::string_view> refused = {
      "index_put", "_index_put_impl", "put",     "take",   "index_select", "gather",
      "cat",       "stack",           "max.dim", "min.dim"};
  static const std::unordered_set<std::string_view> whole_only = {
      "addmm", "baddbmm", "cumsum", "cumprod", "sort.stable", "topk"};
  const std::string& op = entry.rule->op;
  if (refused.count(op) != 0) return Overlap::kRefused;
  const bool scatter = op.rfind("scatter", 0) == 0;
  return scatter || whole_only.count(op) != 0 ? Overlap::kWholeOnly : Overlap::kAllowed;
}

// Position of each gathered tensor in its list; -1 for those that came alone.
std::vector<int> ListPositions(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments) {
  std::vector<int> positions;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool list = entry.arguments[i].kind == ArgumentKind::kTensorList;
    if (!list && entry.arguments[i].kind != ArgumentKind::kTensor) continue;
    int position = list ? 0 : -1;
    ForEachTensor(arguments[i], [&](const at::Tensor& t) {
      if (t.defined() && t.device().is_privateuseone()) positions.push_back(position);
      if (list) ++position;
    });
  }
  return positions;
}

// True if an operator on lists writes what it reads or writes at another position: then one
// position has to be done after the other.
bool PositionsDepend(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments,
                     const Gathered& gathered) {
  const std::vector<int> positions = ListPositions(entry, arguments);
  for (size_t i = 0; i < gathered.tensors.size(); ++i) {
    const GatheredTensor& a = gathered.tensors[i];
    if (!a.written || positions[i] < 0) continue;
    for (size_t j = 0; j < gathered.tensors.size(); ++j) {
      const GatheredTensor& b = gathered.tensors[j];
      if (a.state != b.state) continue;
      if (positions[i] == positions[j]) {
        if (!b.written) at::assert_no_partial_overlap(*a.tensor, *b.tensor);
        continue;
      }
      if (at::get_overlap_status(*a.tensor, *b.tensor) != at::MemOverlapStatus::No) return true;
    }
  }
  return false;
}

// Operators that are not structured and whose kernels nevertheless let a TensorIterator lay out=
// tensors out.
bool LaysOutAsIterator(const OperatorEntry& entry) {
  constexpr std::string_view kNames[] = {
      "abs",        "angle",       "complex",     "conj_physical", "floor_divide", "hardswish",
      "hardtanh",   "logical_and", "logical_not", "logical_or",    "logical_xor",  "logit",
      "nan_to_num", "polar",       "remainder",   "where"};
  const std::string_view op = entry.rule->op;
  return std::ranges::find(kNames, op.substr(0, op.find('.'))) != std::end(kNames);
}

// Structured operators without a TensorIterator take out= tensors of the result's dtype alone; cat
// promotes to the out= tensor's.
bool WantsExactOut(const OperatorEntry& entry) {
  if (entry.rule->op == "cat") return false;
  if (entry.form != Form::kOut || !entry.functional_default_kernel) return false;
  if (entry.rule->shape != nullptr) return false;
  const Variant* variant = FindVariant(entry.name);
  return variant != nullptr && !variant->elementwise;
}

// Unary operators whose out= tensor has self's dtype.
bool WantsSelfsDtype(const OperatorEntry& entry) {
  static const auto* names = new std::unordered_set<std::string>{
      "bitwise_not", "ceil", "floor", "frac", "neg", "round", "sgn", "sign", "trunc"};
  return entry.form == Form::kOut && names->count(entry.rule->op) != 0;
}

void CheckWritable(const OperatorEntry& entry, const ResultSpec& result, const at::Tensor& target) {
  if (entry.rule->any_out_dtype) return;
  if (WantsSelfsDtype(entry)) {
    TORCH_CHECK(result.dtype == target.scalar_type(), "Found dtype ",
                c10::toString(target.scalar_type()), " but expected ", c10::toString(result.dtype));
  }
  if (entry.rule->op == "index_select" && entry.form == Form::kOut) {
    TORCH_CHECK(result.dtype == target.scalar_type(),
                "index_select(): self and result must have the same scalar type");
  }
  if (entry.rule->op == "cat" && entry.form == Form::kOut) {
    TORCH_CHECK_TYPE(c10::canCast(result.dtype, target.scalar_type()),
                     "torch.cat(): input types can't be cast to the desired output type ",
                     c10::toString(target.scalar_type()));
  }
  if (WantsExactOut(entry)) {
    TORCH_CHECK(result.dtype == target.scalar_type(), "Expected out tensor to have dtype ",
                c10::scalarTypeToTypeMeta(result.dtype), ", but got ", target.dtype(), " instead");
  }
  TORCH_CHECK(
      entry.form != Form::kInplace || !target.is_complex() || !c10::isFloatingType(result.dtype),
      "In-place ", entry.rule->op, " is not supported for complex tensors.");
  TORCH_CHECK(c10::canCast(result.dtype, target.scalar_type()), "result type ",
              c10::toString(result.dtype), " can't be cast to the desired output type ",
              c10::toString(target.scalar_type()));
}

// An out= tensor that is an argument as well: it keeps its shape.
bool IsAlsoRead(const Gathered& gathered, int index) {
  for (size_t i = 0; i < gathered.tensors.size(); ++i) {
    if (static_cast<int>(i) != index && !gathered.tensors[i].written &&
        gathered.tensors[i].tensor->is_same(*gathered.tensors[index].tensor)) {
      return true;
    }
  }
  return false;
}

std::string ShapeText(c10::IntArrayRef sizes) {
  std::ostringstream text;
  text << sizes;
  return text.str();
}

// PyTorch's shape functions let dtypes pass that CPU's kernels refuse.
void CheckKind(const OperatorEntry& entry, const CallSpec& spec) {
  if (spec.results.empty() || !spec.results[0].defined) return;
  const DType dtype = spec.results[0].type.dtype;
  const unsigned kind = dtype == DType::kPred         ? lowering::kBool
                        : stablehlo::IsFloat(dtype)   ? lowering::kFloat
                        : stablehlo::IsComplex(dtype) ? lowering::kComplex
                                                      : lowering::kInteger;
  TORCH_CHECK_NOT_IMPLEMENTED((entry.rule->kinds & kind) != 0, "\"aten::", entry.name,
                              "\" not implemented for '", lowering::ToScalarType(dtype), "'");
}

// Builds the call's spec: argument by argument what the rule may know.
CallSpec MakeCallSpec(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments) {
  CallSpec spec;
  spec.name = entry.rule->op;
  spec.precision = DotPrecision();
  spec.host_dot = trace::Runtime::Get().host_dot();
  spec.deterministic = at::globalContext().deterministicAlgorithms();
  auto tensor_spec = [](const c10::IValue& value) {
    TensorSpec tensor;
    if (!value.isTensor() || !value.toTensor().defined()) return tensor;
    const at::Tensor& t = value.toTensor();
    tensor.defined = true;
    tensor.type = {lowering::ToDType(t.scalar_type()), t.sizes().vec()};
    tensor.wrapped_number = t.unsafeGetTensorImpl()->is_wrapped_number();
    tensor.contiguous = t.is_contiguous();
    return tensor;
  };
  auto number_kind = [](const c10::IValue& value) {
    if (value.isComplexDouble()) return DType::kC128;
    if (value.isDouble()) return DType::kF64;
    if (value.isBool()) return DType::kPred;
    return DType::kS64;
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const ArgumentPlan& plan = entry.arguments[i];
    if (plan.out) continue;
    const c10::IValue& value = arguments[i];
    ArgumentSpec argument;
    argument.name = entry.op->schema().arguments()[i].name();
    switch (plan.kind) {
      case ArgumentKind::kTensor:
        argument.tensors.push_back(tensor_spec(value));
        argument.kind =
            argument.tensors[0].defined ? ArgumentSpec::Kind::kTensor : ArgumentSpec::Kind::kNone;
        break;
      case ArgumentKind::kTensorList:
        argument.kind =
            value.isList() ? ArgumentSpec::Kind::kTensorList : ArgumentSpec::Kind::kNone;
        if (value.isList()) {
          for (const c10::IValue& element : value.toListRef()) {
            argument.tensors.push_back(tensor_spec(element));
          }
        }
        break;
      case ArgumentKind::kNumber:
        if (value.isNone()) {
          argument.kind = ArgumentSpec::Kind::kNone;
        } else if (IsSpecial(plan.specialize, value.toScalar())) {
          argument.kind = ArgumentSpec::Kind::kConstant;
          argument.constant = value;
          argument.number_kinds.push_back(number_kind(value));
        } else {
          argument.kind = ArgumentSpec::Kind::kScalar;
          argument.number_kinds.push_back(number_kind(value));
          argument.tensors.emplace_back();
        }
        break;
      case ArgumentKind::kNumberList:
        argument.kind = value.isList() ? ArgumentSpec::Kind::kScalar : ArgumentSpec::Kind::kNone;
        if (value.isList()) {
          for (const c10::IValue& element : value.toListRef()) {
            argument.number_kinds.push_back(number_kind(element));
            argument.tensors.emplace_back();
          }
        }
        break;
      case ArgumentKind::kStatic:
        argument.kind = value.isNone() ? ArgumentSpec::Kind::kNone : ArgumentSpec::Kind::kConstant;
        argument.constant = value;
        if (value.isDouble() || value.isInt() || value.isBool() || value.isComplexDouble()) {
          argument.number_kinds.push_back(number_kind(value));
        }
        break;
      case ArgumentKind::kGenerator:
      case ArgumentKind::kIgnored:
        argument.kind = ArgumentSpec::Kind::kNone;
        break;
    }
    spec.arguments.push_back(std::move(argument));
  }
  return spec;
}

// Dtype in which run-time numbers reach the rule.
DType NumberType(const OperatorEntry& entry, const CallSpec& spec, const GatheredNumber& number) {
  if (number.tensor && !number.wrapped) return lowering::ToDType(number.dtype);
  if (entry.rule->scalars_as_self) {
    for (const ArgumentSpec& argument : spec.arguments) {
      if (argument.kind == ArgumentSpec::Kind::kTensor ||
          (argument.kind == ArgumentSpec::Kind::kTensorList && !argument.tensors.empty())) {
        return lowering::ComputeType(argument.tensors[0].type.dtype);
      }
    }
  }
  if (number.schema_float) return DType::kF64;
  DType compute = lowering::ComputeType(lowering::ToDType(spec.PromotedType()));
  // A float may go to a result of integers (an eps, a probability): keep its fraction.
  if (number.dtype == c10::ScalarType::Double && !stablehlo::IsFloat(compute) &&
      !stablehlo::IsComplex(compute)) {
    compute = DType::kF32;
  }
  // An int may be wider than the result it is combined into.
  if (number.dtype == c10::ScalarType::Long && stablehlo::IsInteger(compute)) return DType::kS64;
  return compute;
}

// Tells the rule in which dtypes its run-time numbers come.
void NumberTypes(const OperatorEntry& entry, const Gathered& gathered, CallSpec& spec) {
  size_t next = 0;
  for (ArgumentSpec& argument : spec.arguments) {
    if (argument.kind != ArgumentSpec::Kind::kScalar) continue;
    for (TensorSpec& number : argument.tensors) {
      while (gathered.numbers[next].tensor) ++next;
      number.type = {NumberType(entry, spec, gathered.numbers[next++]), {}};
      number.defined = true;
    }
  }
}

}  // namespace

std::string Describe(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments) {
  std::ostringstream text;
  text << "aten::" << entry.name << "(";
  bool first = true;
  auto tensor = [&](const at::Tensor& t) { text << c10::toString(t.scalar_type()) << t.sizes(); };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (value.isNone()) continue;
    if (!first) text << ", ";
    first = false;
    text << entry.op->schema().arguments()[i].name() << ": ";
    if (value.isTensor()) {
      if (value.toTensor().defined()) {
        tensor(value.toTensor());
      } else {
        text << "undefined";
      }
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      text << "[";
      size_t count = 0;
      ForEachTensor(value, [&](const at::Tensor& t) {
        if (count++ < 4 && t.defined()) {
          if (count > 1) text << ", ";
          tensor(t);
        }
      });
      text << (count > 4 ? ", ...]" : "]");
    } else if (value.isScalar() || value.isString() || value.isIntList()) {
      text << value;
    } else {
      text << value.tagKind();
    }
  }
  text << ")";
  return text.str();
}

std::unique_ptr<Plan> MakePlan(const OperatorEntry& entry, const torch::jit::Stack& stack,
                               const Gathered& gathered) {
  const auto arguments = torch::jit::last(stack, entry.arguments.size());
  auto plan = std::make_unique<Plan>();
  // CallSpec leaves out= arguments out, so their values are no inputs of the rule; they may still
  // be parameters, as the storage that is written through a view.
  const std::vector<bool> is_out = OutTensors(entry, arguments);
  const std::vector<int> written = WrittenTensors(gathered, is_out);
  const size_t also = entry.rule->also_writes.size();

  // --- what PyTorch says of the results
  Inferred inferred;
  if (ResultsAreWritten(entry)) {
    for (int i : written) inferred.results.push_back(SpecOf(*gathered.tensors[i].tensor));
  } else {
    CheckInplace(entry, arguments);
    inferred = InferFunctional(entry, FunctionalArguments(entry, arguments));
  }
  const size_t num_results = inferred.results.size();
  if (const size_t length = ListLength(entry, arguments);
      length > 0 && PositionsDepend(entry, arguments, gathered) && length > 1) {
    plan->one_by_one = true;
    return plan;
  }

  // In-place forms are judged by PyTorch's own kernel above.
  const Variant* variant = entry.form == Form::kOut ? FindVariant(entry.name) : nullptr;
  const bool out_is_elementwise = variant != nullptr && variant->elementwise;

  // --- outputs: fresh tensors, or writes through the views of the written ones
  std::vector<ResultTarget> targets;
  size_t next_written = 0;
  for (size_t r = 0; r < num_results; ++r) {
    const ResultSpec& result = inferred.results[r];
    ResultTarget target;
    Output output;
    if (entry.form == Form::kFunctional) {
      if (!result.defined) {
        targets.push_back({});
        plan->outputs.emplace_back();
        continue;
      }
      output.dtype = c10::scalarTypeToTypeMeta(result.dtype);
      output.sizes.assign(result.sizes.begin(), result.sizes.end());
      output.strides.assign(result.strides.begin(), result.strides.end());
      output.bytes = StorageBytes(result.sizes, result.strides, output.dtype.itemsize());
      target.dtype = lowering::ToDType(result.dtype);
      target.view = {target.dtype, result.sizes, result.strides};
      target.after =
          trace::BaseAfterWrite(nullptr, target.view, static_cast<int64_t>(output.bytes));
    } else {
      TORCH_INTERNAL_ASSERT(next_written < written.size(), entry.name,
                            ": more results than written arguments");
      const int index = written[next_written++];
      const at::Tensor& tensor = *gathered.tensors[index].tensor;
      CheckWritable(entry, result, tensor);
      if (!tensor.sizes().equals(result.sizes)) {
        if (entry.form == Form::kOut && !IsAlsoRead(gathered, index)) {
          // Structured operators lay an out= tensor out as they would a new one.
          plan->resize.push_back({index, result.sizes, {}});
          if (out_is_elementwise || entry.functional_default_kernel || LaysOutAsIterator(entry)) {
            plan->resize.back().strides = result.strides;
          }
          continue;
        }
        TORCH_CHECK(false, "output with shape ", ShapeText(tensor.sizes()),
                    " doesn't match the broadcast shape ", ShapeText(result.sizes));
      }
      output.fresh = false;
      output.tensor = index;
    }
    targets.push_back(std::move(target));
    plan->outputs.push_back(std::move(output));
  }
  if (!plan->resize.empty()) return plan;
  // Arguments the rule writes without the schema saying so come last.
  if (also > 0 && entry.form == Form::kFunctional) {
    for (int index : written) {
      Output output;
      output.fresh = false;
      output.tensor = index;
      plan->outputs.push_back(std::move(output));
      targets.emplace_back();
    }
  }
  const Overlap overlap = OverlapOf(entry);
  for (size_t i = 0; i < plan->outputs.size(); ++i) {
    Output& output = plan->outputs[i];
    if (output.fresh) continue;
    const GatheredTensor& t = gathered.tensors[output.tensor];
    if (!AllowsInternalOverlap(entry)) at::assert_no_internal_overlap(*t.tensor);
    for (const GatheredTensor& other : gathered.tensors) {
      if (other.written) continue;
      if (out_is_elementwise || overlap == Overlap::kWholeOnly) {
        at::assert_no_partial_overlap(*t.tensor, *other.tensor);
      }
      if (overlap == Overlap::kRefused) at::assert_no_overlap(*t.tensor, *other.tensor);
    }
    ResultTarget& target = targets[i];
    target.fresh = false;
    target.view = ViewOf(*t.tensor);
    target.dtype = target.view.dtype;
    const Type* before = t.value ? t.value->type() : nullptr;
    for (size_t j = 0; j < i; ++j) {
      if (plan->outputs[j].fresh || gathered.tensors[plan->outputs[j].tensor].state != t.state)
        continue;
      target.previous = static_cast<int>(j);
      before = &targets[j].after;
    }
    target.after = trace::BaseAfterWrite(before, target.view,
                                         static_cast<int64_t>(t.tensor->storage().nbytes()));
  }

  // --- returns
  if (entry.form == Form::kFunctional) {
    int next = 0;
    for (const InferredReturn& ret : inferred.returns) {
      Return r;
      r.constant = ret.constant;
      r.first = next;
      r.count = ret.count;
      switch (ret.kind) {
        case InferredReturn::Kind::kTensor:
          r.kind = Return::Kind::kTensor;
          if (!inferred.results[next].defined) r.first = -1;
          break;
        case InferredReturn::Kind::kTensorList:
          r.kind = Return::Kind::kTensorList;
          break;
        case InferredReturn::Kind::kConstant:
          r.kind = Return::Kind::kConstant;
          break;
      }
      next += ret.count;
      plan->returns.push_back(std::move(r));
    }
  } else {
    size_t argument = 0;
    for (size_t r = 0; r < entry.op->schema().returns().size(); ++r) {
      while (argument < entry.arguments.size() && !entry.arguments[argument].written) ++argument;
      Return ret;
      ret.kind = Return::Kind::kArgument;
      ret.argument = static_cast<int>(argument++);
      plan->returns.push_back(std::move(ret));
    }
  }

  // --- the call as the rule sees it
  auto spec = std::make_shared<CallSpec>(MakeCallSpec(entry, arguments));
  for (const ResultSpec& result : inferred.results) {
    TensorSpec tensor;
    tensor.defined = result.defined;
    if (result.defined) tensor.type = TypeOf(result);
    spec->results.push_back(std::move(tensor));
  }

  CheckKind(entry, *spec);

  // --- parameters: one for each written-to storage and each number, in argument order
  std::vector<const Type*> parameters;
  std::vector<InputSource> sources;
  std::vector<int> parameter_of(gathered.tensors.size(), -1);
  plan->number_dtypes.resize(gathered.numbers.size());
  NumberTypes(entry, gathered, *spec);
  if (entry.rule->scalars_as_self && !gathered.tensors.empty()) {
    plan->number_range = gathered.tensors[0].tensor->scalar_type();
  } else if (entry.rule->scalars_fit != lowering::Rule::Fits::kAny && !spec->results.empty() &&
             std::any_of(gathered.numbers.begin(), gathered.numbers.end(),
                         [](const GatheredNumber& n) { return !n.tensor; })) {
    const bool compute = entry.rule->scalars_fit == lowering::Rule::Fits::kCompute;
    const DType result = spec->results[0].type.dtype;
    plan->number_range = lowering::ToScalarType(compute ? lowering::ComputeType(result) : result);
  }
  for (const Gathered::Input& input : gathered.inputs) {
    InputSource source;
    if (input.number >= 0) {
      const DType dtype = NumberType(entry, *spec, gathered.numbers[input.number]);
      plan->number_dtypes[input.number] = dtype;
      source.number = true;
      source.parameter = static_cast<int>(parameters.size());
      parameters.push_back(trace::Intern({dtype, {}}));
      sources.push_back(std::move(source));
      continue;
    }
    const GatheredTensor& t = gathered.tensors[input.tensor];
    source.view = ViewOf(*t.tensor);
    if (t.value) {
      source.parameter = static_cast<int>(parameters.size());
      parameters.push_back(t.value->type());
    }
    parameter_of[input.tensor] = source.parameter;
    if (!is_out[input.tensor]) sources.push_back(std::move(source));
  }
  for (size_t i = 0; i < plan->outputs.size(); ++i) {
    if (!plan->outputs[i].fresh) targets[i].parameter = parameter_of[plan->outputs[i].tensor];
  }
  plan->random = entry.rule->random && (!entry.rule->draws || entry.rule->draws(*spec));
  if (plan->random) {
    const Type* word = trace::Intern({DType::kU64, {}});
    parameters.push_back(word);
    parameters.push_back(word);
    int64_t elements = 0;
    for (const TensorSpec& result : spec->results) {
      if (result.defined) elements += result.type.numel();
    }
    plan->draws = static_cast<uint64_t>((elements * entry.rule->draws_per_element + 3) / 4 * 4);
  }

  // --- nothing to compute where every result is empty
  bool empty = true;
  for (const ResultTarget& target : targets) empty = empty && target.view.numel() == 0;
  for (const TensorSpec& result : spec->results) {
    empty = empty && (!result.defined || result.type.numel() == 0);
  }
  if (empty && !plan->outputs.empty()) {
    plan->nothing_to_do = true;
    return plan;
  }

  const bool random = plan->random;
  const lowering::RuleFunction rule = entry.rule->lower;
  auto lower = [spec, sources, targets, random, rule, name = entry.name](
                   stablehlo::Builder& builder, const stablehlo::Values& inputs) {
    builder.SetLocation("aten." + name);
    stablehlo::Values values;
    for (const InputSource& source : sources) {
      if (source.number) {
        values.push_back(inputs[source.parameter]);
      } else if (source.parameter < 0) {
        values.push_back(stablehlo::ZeroConstant(builder, {source.view.dtype, source.view.sizes}));
      } else {
        values.push_back(trace::ReadView(inputs[source.parameter], source.view));
      }
    }
    lowering::Call call(*spec, builder, values);
    if (random) call.SetRandomState(inputs[inputs.size() - 2], inputs[inputs.size() - 1]);
    stablehlo::Values results = rule(call);
    TORCH_INTERNAL_ASSERT(results.size() == targets.size(), "the rule of ", spec->name, " gives ",
                          results.size(), " results, not ", targets.size());
    trace::Lowered lowered;
    for (size_t i = 0; i < targets.size(); ++i) {
      const ResultTarget& target = targets[i];
      if (i < spec->results.size()) {
        if (!spec->results[i].defined) {
          // The caller gets an undefined tensor; something must stand in its place.
          lowered.results.push_back(stablehlo::ZeroConstant(builder, {DType::kPred, {}}));
          continue;
        }
        const Type& expected = spec->results[i].type;
        TORCH_INTERNAL_ASSERT(results[i].defined() && results[i].type() == expected, "the rule of ",
                              spec->name, " gives ",
                              results[i].defined() ? results[i].type().str() : "nothing",
                              " for result ", i, ", PyTorch's shape function ", expected.str());
      }
      stablehlo::Value value = stablehlo::Convert(results[i], target.dtype);
      stablehlo::Value base = target.parameter >= 0 ? inputs[target.parameter] : stablehlo::Value();
      if (target.previous >= 0) base = lowered.results[target.previous];
      if (!base.defined() && !target.fresh) {
        // Written in part for the first time.
        base = stablehlo::ZeroConstant(builder, target.after);
      }
      lowered.results.push_back(trace::WriteView(base, value, target.view, target.after));
    }
    for (const auto& check : call.checks()) {
      lowered.checks.push_back(
          {check.ok, {check.message, check.kind == lowering::Call::ErrorKind::kIndex}});
    }
    return lowered;
  };
  std::vector<std::pair<int, int>> aliases;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].parameter >= 0) aliases.emplace_back(targets[i].parameter, static_cast<int>(i));
  }
  plan->operation = std::make_shared<trace::Operation>(entry.name, std::move(parameters),
                                                       std::move(lower), std::move(aliases));
  return plan;
}

}  // namespace torch_tpu::aten
