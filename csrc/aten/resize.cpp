#include "aten/resize.h"

#include <ATen/native/Resize.h>
#include <ATen/ops/set_native.h>
#include <torch/library.h>

#include <mutex>

#include "aten/address_space.h"
#include "aten/errors.h"
#include "aten/storage.h"
#include "trace/signature.h"
#include "trace/trace.h"

namespace torch_tpu::aten {
namespace {

// The first bytes of a value, padded with zeros where it is shorter, as flat bytes.
std::shared_ptr<trace::Operation> ResizeOperation(const trace::Type* before,
                                                  const trace::Type* after) {
  static auto* cache = new trace::SignatureCache<std::shared_ptr<trace::Operation>>;
  trace::Signature signature;
  signature.Clear();
  signature.Add(reinterpret_cast<uint64_t>(before));
  signature.Add(reinterpret_cast<uint64_t>(after));
  return cache->FindOrMake(signature, [&] {
    const auto kept = static_cast<int64_t>(std::min(after->bytes(), before->bytes()));
    return std::make_shared<trace::Operation>(
        "resize_storage", std::vector<const trace::Type*>{before},
        [after, kept](stablehlo::Builder& builder, const stablehlo::Values& inputs) {
          stablehlo::Value head = trace::ReadView(inputs[0], {trace::DType::kU8, {kept}, {1}});
          const int64_t missing = after->dims[0] - kept;
          if (missing > 0) {
            stablehlo::Value zeros =
                stablehlo::ZeroConstant(builder, {trace::DType::kU8, {missing}});
            head = stablehlo::Concatenate({head, zeros}, 0);
          }
          return trace::Lowered{{head}, {}};
        });
  });
}

trace::ValuePtr ResizeValue(trace::ValuePtr value, size_t bytes) {
  const trace::Type* after = trace::Intern({trace::DType::kU8, {static_cast<int64_t>(bytes)}});
  trace::ValuePtr result;
  Guarded([&] {
    trace::Run(ResizeOperation(value->type(), after), value->device(), {&value, 1}, false, &result);
  });
  return result;
}

const at::Tensor& Resize(const at::Tensor& self, c10::IntArrayRef sizes,
                         std::optional<c10::MemoryFormat> format) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  for (int64_t d : sizes) {
    TORCH_CHECK(d >= 0, "Trying to create tensor with negative dimension ", d, ": ", sizes);
  }
  // With the sizes it has, a tensor keeps its strides, and its storage even where that was emptied.
  if (!self.sizes().equals(sizes)) {
    impl->set_sizes_contiguous(sizes);
    const size_t need = StorageBytes(impl->sizes(), impl->strides(), impl->dtype().itemsize(),
                                     impl->storage_offset());
    c10::StorageImpl& storage = *impl->unsafe_storage().unsafeGetStorageImpl();
    if (need > storage.nbytes()) {
      TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
      ResizeStorage(storage, need);
    }
  }
  if (format) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format", *format);
    impl->empty_tensor_restride(*format);
  }
  return self;
}

at::Tensor& SetStorage(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef sizes,
                       c10::IntArrayRef strides) {
  TORCH_CHECK(source.device().is_privateuseone() && source.device() == self.device(),
              "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", source.device(),
              "\".  This is no longer allowed; the devices must match.");
  TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
  TORCH_CHECK(strides.empty() || sizes.size() == strides.size(), "unequal size length (",
              sizes.size(), ") and stride length (", strides.size(), ")");
  for (int64_t s : strides) {
    TORCH_CHECK(s >= 0, "Tensor: trying to set negative strides, which are not supported");
  }
  for (int64_t d : sizes) {
    TORCH_CHECK(d >= 0, "Trying to create tensor with negative dimension ", d, ": ", sizes);
  }
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (strides.empty() && !sizes.empty()) {
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
  const size_t need =
      StorageBytes(impl->sizes(), impl->strides(), impl->dtype().itemsize(), offset);
  c10::StorageImpl& storage = *impl->unsafe_storage().unsafeGetStorageImpl();
  if (need > storage.nbytes()) {
    TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
    ResizeStorage(storage, need);
  }
  return self;
}

at::Tensor& SetSource(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return SetStorage(self, std::move(source), 0, {elements}, {});
}

at::Tensor& SetTensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  TORCH_CHECK(self.dtype() == source.dtype(), "Could not set tensor of type ", source.dtype(),
              " to a tensor of type ", self.dtype());
  return SetStorage(self, source.storage(), source.storage_offset(), source.sizes(),
                    source.strides());
}

at::Tensor& SetEmpty(at::Tensor& self) {
  at::Tensor fresh = MakeTensor({0}, {1}, self.scalar_type(), self.device().index());
  return SetStorage(self, fresh.storage(), 0, {0}, {1});
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("resize_", &Resize);
  m.impl("set_.source_Storage_storage_offset", &SetStorage);
  m.impl("set_.source_Storage", &SetSource);
  m.impl("set_.source_Tensor", &SetTensor);
  m.impl("set_", &SetEmpty);
}

}  // namespace

void ResizeStorage(c10::StorageImpl& storage, size_t bytes) {
  StorageState& state = StateOf(storage);
  trace::ValuePtr value;
  {
    std::lock_guard guard(state.lock);
    value = state.value;
  }
  if (value) value = bytes == 0 ? nullptr : ResizeValue(std::move(value), bytes);
  if (bytes > state.reserved_bytes) {
    c10::DataPtr grown = Allocator::Get().Allocate(bytes, state.device);
    static_cast<StorageState*>(grown.get_context())->value = std::move(value);
    storage.set_data_ptr_noswap(std::move(grown));
  } else {
    std::lock_guard guard(state.lock);
    state.value.swap(value);
  }
  storage.set_nbytes(bytes);
}

void ResizeOutput(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  at::native::resize_output(tensor, sizes);
  if (!strides.empty()) tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
}

}  // namespace torch_tpu::aten
