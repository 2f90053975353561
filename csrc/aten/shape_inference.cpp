#include "aten/shape_inference.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

namespace torch_tpu::aten {
namespace {

using torch::jit::Stack;

thread_local bool probing = false;

class ProbeScope {
 public:
  ProbeScope() : previous_(probing) { probing = true; }
  ~ProbeScope() { probing = previous_; }

 private:
  bool previous_;
};

lowering::ResultSpec SpecOf(const at::Tensor& tensor) {
  lowering::ResultSpec spec;
  if (!tensor.defined()) {
    spec.defined = false;
    return spec;
  }
  spec.dtype = tensor.scalar_type();
  spec.sizes = tensor.sizes().vec();
  spec.strides = tensor.strides().vec();
  return spec;
}

Inferred FromStack(const Stack& stack) {
  Inferred inferred;
  for (const c10::IValue& value : stack) {
    InferredReturn ret;
    if (value.isTensor()) {
      inferred.results.push_back(SpecOf(value.toTensor()));
    } else if (value.isTensorList()) {
      ret.kind = InferredReturn::Kind::kTensorList;
      ret.count = 0;
      for (const c10::IValue& element : value.toListRef()) {
        inferred.results.push_back(SpecOf(element.toTensor()));
        ++ret.count;
      }
    } else {
      ret.kind = InferredReturn::Kind::kConstant;
      ret.count = 0;
      ret.constant = value;
    }
    inferred.returns.push_back(std::move(ret));
  }
  return inferred;
}

at::Tensor ToMeta(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_privateuseone()) return tensor;
  at::Tensor meta =
      at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  c10::TensorImpl* impl = meta.unsafeGetTensorImpl();
  if (tensor.storage_offset() != 0) impl->set_storage_offset(tensor.storage_offset());
  if (tensor.dim() == 0) {
    impl->set_wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number());
  }
  return meta;
}

c10::IValue ToMeta(const c10::IValue& value) {
  if (value.isTensor()) return ToMeta(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const c10::IValue& element : value.toListRef()) list.push_back(ToMeta(element.toTensor()));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor() && element.toTensor().defined()) {
        list.push_back(ToMeta(element.toTensor()));
      } else {
        list.push_back(std::nullopt);
      }
    }
    return list;
  }
  if (value.isDevice() && value.toDevice().is_privateuseone()) {
    return c10::Device(c10::DeviceType::Meta);
  }
  return value;
}

Inferred ByDefaultKernel(const c10::SafeKernelFunction& kernel, const c10::OperatorHandle& op,
                         c10::ArrayRef<c10::IValue> arguments) {
  Stack stack(arguments.begin(), arguments.end());
  {
    ProbeScope scope;
    kernel.callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &stack);
  }
  return FromStack(stack);
}

Inferred ByShapeFunction(const OperatorEntry& entry, const c10::OperatorHandle& op,
                         c10::ArrayRef<c10::IValue> arguments) {
  std::vector<std::string> names;
  std::vector<c10::IValue> constants;
  std::vector<std::vector<lowering::ShapeTensor>> tensors;
  for (size_t i = 0; i < arguments.size(); ++i) {
    names.push_back(op.schema().arguments()[i].name());
    auto& leaves = tensors.emplace_back();
    const c10::IValue& value = arguments[i];
    auto add = [&](const at::Tensor& t) {
      lowering::ShapeTensor leaf{};
      leaf.defined = t.defined();
      if (t.defined()) {
        leaf.dtype = t.scalar_type();
        leaf.sizes = t.sizes().vec();
        leaf.strides = t.strides().vec();
        leaf.wrapped_number = t.unsafeGetTensorImpl()->is_wrapped_number();
      }
      leaves.push_back(std::move(leaf));
    };
    if (value.isTensor()) {
      add(value.toTensor());
      constants.emplace_back();
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      for (const c10::IValue& element : value.toListRef()) {
        add(element.isTensor() ? element.toTensor() : at::Tensor());
      }
      constants.emplace_back();
    } else {
      constants.push_back(value);
    }
  }
  Inferred inferred;
  inferred.results = entry.rule->shape(lowering::ShapeCall(names, constants, tensors));
  size_t used = 0;
  for (const auto& ret : op.schema().returns()) {
    InferredReturn r;
    if (ret.type()->kind() == c10::TypeKind::ListType) {
      r.kind = InferredReturn::Kind::kTensorList;
      // A list return takes what the single tensors leave; rules have at most one kind of return.
      const size_t lists = op.schema().returns().size();
      r.count = static_cast<int>(inferred.results.size() / lists);
    }
    used += r.count;
    inferred.returns.push_back(std::move(r));
  }
  TORCH_INTERNAL_ASSERT(used == inferred.results.size(), entry.name, ": the shape function gives ",
                        inferred.results.size(), " results, not ", used);
  for (auto& result : inferred.results) {
    if (result.defined && result.strides.empty() && !result.sizes.empty()) {
      result.strides.assign(result.sizes.size(), 1);
      for (size_t d = result.sizes.size() - 1; d > 0; --d) {
        result.strides[d - 1] = result.strides[d] * std::max<int64_t>(result.sizes[d], 1);
      }
    }
  }
  return inferred;
}

Inferred ByMetaKernel(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  Stack stack;
  for (const c10::IValue& value : arguments) stack.push_back(ToMeta(value));
  op.callBoxed(&stack);
  return FromStack(stack);
}

}  // namespace

bool ProbingShapes() { return probing; }

Inferred InferFunctional(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments) {
  const c10::OperatorHandle& op = entry.functional ? *entry.functional : *entry.op;
  const auto& kernel =
      entry.form == Form::kFunctional ? entry.default_kernel : entry.functional_default_kernel;
  // A rule with a shape function has one because its operator is not structured.
  if (entry.rule != nullptr && entry.rule->shape != nullptr) {
    return ByShapeFunction(entry, op, arguments);
  }
  if (kernel) return ByDefaultKernel(*kernel, op, arguments);
  return ByMetaKernel(op, arguments);
}

void CheckInplace(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments) {
  if (!entry.default_kernel) return;
  Stack stack(arguments.begin(), arguments.end());
  ProbeScope scope;
  entry.default_kernel->callBoxed(*entry.op, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                  &stack);
}

}  // namespace torch_tpu::aten
