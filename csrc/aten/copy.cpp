#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include <cstring>
#include <mutex>

#include "aten/errors.h"
#include "aten/shape_inference.h"
#include "aten/storage.h"
#include "aten/view_signature.h"
#include "trace/signature.h"
#include "trace/trace.h"

namespace torch_tpu::aten {
namespace {

using trace::Type;
using trace::ValuePtr;
using trace::ViewSpec;

bool IsTpu(const at::Tensor& tensor) { return tensor.device().is_privateuseone(); }

// The tensor is its whole storage in row-major order.
bool IsWholeStorage(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg() && tensor.nbytes() == tensor.storage().nbytes();
}

void CheckBroadcast(const at::Tensor& source, const at::Tensor& destination) {
  const auto sizes = at::infer_size(destination.sizes(), source.sizes());
  TORCH_CHECK(destination.sizes().equals(sizes), "output with shape ", destination.sizes(),
              " doesn't match the broadcast shape ", c10::IntArrayRef(sizes));
}

// destination[...] = convert(source[...]), one program for reading, converting and writing. What is
// written may be a run of `into`, whose offset is the third parameter then.
std::shared_ptr<trace::Operation> CopyOperation(const Type* from, const ViewSpec& read,
                                                const Type* into, ViewSpec write,
                                                int64_t storage_bytes,
                                                const std::optional<Run>& run) {
  static auto* cache = new trace::SignatureCache<std::shared_ptr<trace::Operation>>;
  thread_local trace::Signature signature;
  signature.Clear();
  if (run) write.offset = 0;
  signature.Add(run ? 1 + run->aligned : 0);
  signature.Add(reinterpret_cast<uint64_t>(from));
  AddView(signature, read);
  signature.Add(reinterpret_cast<uint64_t>(into));
  AddView(signature, write);
  signature.Add(storage_bytes);
  return cache->FindOrMake(signature, [&] {
    const Type after = trace::BaseAfterWrite(into, write, storage_bytes);
    std::vector<const Type*> parameters{from};
    if (into != nullptr) parameters.push_back(into);
    if (run) parameters.push_back(trace::Intern({trace::DType::kS64, {}}));
    return std::make_shared<trace::Operation>(
        "copy", std::move(parameters),
        [read, write, after, run](stablehlo::Builder& builder, const stablehlo::Values& inputs) {
          builder.SetLocation("aten.copy_");
          stablehlo::Value x = stablehlo::Convert(trace::ReadView(inputs[0], read), write.dtype);
          x = stablehlo::BroadcastTo(x, write.sizes);
          if (run) return trace::Lowered{{WriteRun(inputs[1], x, inputs[2], run->aligned)}, {}};
          stablehlo::Value old = inputs.size() > 1 ? inputs[1] : stablehlo::Value();
          if (!old.defined()) old = stablehlo::ZeroConstant(builder, after);
          return trace::Lowered{{trace::WriteView(old, x, write, after)}, {}};
        },
        into != nullptr ? std::vector<std::pair<int, int>>{{1, 0}}
                        : std::vector<std::pair<int, int>>{});
  });
}

void CopyWithinDevice(const at::Tensor& source, const at::Tensor& destination) {
  StorageState& from = StateOf(source);
  StorageState& into = StateOf(destination);
  ValuePtr value = ReadStorage(source);
  // Values are immutable, so a copy of a whole storage is another reference to the same one.
  if (source.dtype() == destination.dtype() && &from != &into && IsWholeStorage(source) &&
      IsWholeStorage(destination) && source.sizes().equals(destination.sizes()) &&
      value->type()->bytes() == destination.storage().nbytes()) {
    std::lock_guard guard(into.lock);
    into.value.swap(value);
    return;
  }
  ViewSpec read = ViewOf(source);
  const ViewSpec write = ViewOf(destination);
  if (RunOf(*value->type(), read)) {
    value = Materialize(source);
    read.offset = 0;
  }
  const auto bytes = static_cast<int64_t>(destination.storage().nbytes());
  ValuePtr result;
  ValuePtr inputs[3] = {std::move(value), nullptr, nullptr};
  size_t count = 1;
  std::lock_guard guard(into.lock);
  const Type* base = into.value ? into.value->type() : nullptr;
  const std::optional<Run> run = base != nullptr ? RunOf(*base, write) : std::nullopt;
  auto operation =
      Guarded([&] { return CopyOperation(inputs[0]->type(), read, base, write, bytes, run); });
  if (base != nullptr) inputs[count++] = std::move(into.value);
  if (run) inputs[count++] = OffsetArgument(DeviceOf(destination), run->offset);
  try {
    trace::Run(operation, DeviceOf(destination), {inputs, count},
               /*donate=*/true, &result);
  } catch (...) {
    into.value = std::move(inputs[1]);
    RethrowAsTorchError("aten::copy_");
  }
  into.value = std::move(result);
}

void CopyFromHost(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  at::Tensor host =
      source.dtype() == destination.dtype() ? source : source.to(destination.scalar_type());
  host = host.expand(destination.sizes()).contiguous().resolve_conj().resolve_neg();
  const bool callers = host.const_data_ptr() == source.const_data_ptr();
  trace::Device& device = DeviceOf(destination);
  const Type* type = LogicalType(destination);
  ValuePtr value = Guarded(
      [&] {
        // As on CUDA the caller leaves pinned memory alone until the next synchronisation, while
        // ordinary memory is his again at once.
        if (callers && !(non_blocking && source.is_pinned())) {
          return device.FromHost(type, host.const_data_ptr());
        }
        // The tensor stays alive until the copy is done.
        return device.FromHostAsync(type, host.const_data_ptr(), [keep = host] {});
      },
      "copy from the host");
  Assign(destination, std::move(value));
}

// Where device memory is host memory, the tensor as a strided CPU tensor over it; undefined
// elsewhere. `keep` owns the memory.
at::Tensor HostAlias(const at::Tensor& tensor, ValuePtr& keep) {
  keep = ReadStorage(tensor);
  if (keep->pending()) trace::Trace::Abort("the data of a value being captured is read");
  const auto* data = static_cast<const char*>(keep->HostPointer());
  if (data == nullptr) return {};
  const auto itemsize = static_cast<int64_t>(tensor.dtype().itemsize());
  at::Tensor alias =
      at::for_blob(const_cast<char*>(data) + tensor.storage_offset() * itemsize, tensor.sizes())
          .strides(tensor.strides())
          .options(at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU))
          .make_tensor();
  if (tensor.is_conj()) alias._set_conj(true);
  if (tensor.is_neg()) alias._set_neg(true);
  return alias;
}

void CopyToHost(const at::Tensor& source, const at::Tensor& destination) {
  trace::Device& device = DeviceOf(source);
  ValuePtr value;
  at::Tensor alias = Guarded([&] { return HostAlias(source, value); }, "copy to the host");
  if (alias.defined()) {
    const_cast<at::Tensor&>(destination).copy_(alias);
  } else {
    value = Materialize(source);
    const bool direct = destination.dtype() == source.dtype() && destination.is_contiguous() &&
                        destination.sizes().equals(source.sizes()) && !destination.is_conj() &&
                        !destination.is_neg();
    at::Tensor target =
        direct
            ? destination
            : at::empty(source.sizes(), at::TensorOptions().dtype(source.dtype()).device(at::kCPU));
    Guarded([&] { value->ToHost(target.mutable_data_ptr(), target.nbytes()); }, "copy to the host");
    if (!direct) const_cast<at::Tensor&>(destination).copy_(target);
  }
  Guarded([&] { device.RaiseFailedChecks(); });
}

at::Tensor Copy(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  if (ProbingShapes()) return destination;
  if (IsTpu(destination)) {
    at::assert_no_internal_overlap(destination);
    at::assert_no_partial_overlap(destination, source);
  }
  CheckBroadcast(source, destination);
  if (destination.numel() == 0) return destination;
  if (IsTpu(source) && IsTpu(destination)) {
    if (source.device() == destination.device()) {
      CopyWithinDevice(source, destination);
    } else {
      ValuePtr value = Materialize(source);
      if (value->pending()) trace::Trace::Abort("a value goes to another device");
      trace::Device& device = DeviceOf(destination);
      at::Tensor moved =
          MakeTensor(source.sizes(), {}, source.scalar_type(), destination.device().index());
      Assign(moved, Guarded([&] {
               return c10::make_intrusive<trace::Value>(
                   value->type(), &device, value->buffer().CopyTo(device.pjrt().raw()));
             }));
      CopyWithinDevice(moved, destination);
    }
  } else if (IsTpu(destination)) {
    TORCH_CHECK_NOT_IMPLEMENTED(source.device().is_cpu(), "tpu: cannot copy from ",
                                source.device());
    CopyFromHost(source, destination, non_blocking);
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(destination.device().is_cpu(), "tpu: cannot copy to ",
                                destination.device());
    CopyToHost(source, destination);
  }
  return destination;
}

at::Tensor CopyFrom(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  return Located([&] { return Copy(source, destination, non_blocking); });
}

at::Tensor CopyFromAndResize(const at::Tensor& source, const at::Tensor& destination) {
  if (!destination.sizes().equals(source.sizes())) destination.resize_(source.sizes());
  return CopyFrom(source, destination, false);
}

c10::Scalar ReadScalar(const at::Tensor& self) {
  ValuePtr value;
  at::Tensor alias = Guarded([&] { return HostAlias(self, value); }, "aten::_local_scalar_dense");
  if (!alias.defined()) {
    alias = at::empty(self.sizes(), at::TensorOptions().dtype(self.dtype()).device(at::kCPU));
    value = Materialize(self);
    Guarded([&] { value->ToHost(alias.mutable_data_ptr(), alias.nbytes()); },
            "aten::_local_scalar_dense");
  }
  Guarded([&] { DeviceOf(self).RaiseFailedChecks(); });
  return alias.item();
}

c10::Scalar LocalScalarDense(const at::Tensor& self) {
  return Located([&] { return ReadScalar(self); });
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", &CopyFrom);
  m.impl("_copy_from_and_resize", &CopyFromAndResize);
  m.impl("_local_scalar_dense", &LocalScalarDense);
}

// The bits are part of the view's recipe; resolving them first would copy and come back here for
// ever.
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace torch_tpu::aten
