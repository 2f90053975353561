#include "distributed/host_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "aten/errors.h"
#include "aten/storage.h"
#include "lowering/call.h"
#include "trace/device.h"

namespace torch_tpu::distributed {

at::Tensor NewBytes(int64_t size) {
  return at::empty({size}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
}

at::Tensor ReadValues(const std::vector<trace::ValuePtr>& values) {
  return aten::Guarded([&] {
    if (values.size() == 1) {
      const trace::ValuePtr& value = values[0];
      if (const void* pointer = value->HostPointer()) {
        return at::from_blob(
            const_cast<void*>(pointer), {static_cast<int64_t>(value->type()->bytes())},
            [value](void*) {}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
      }
    }
    int64_t size = 0;
    for (const auto& value : values) size += static_cast<int64_t>(value->type()->bytes());
    at::Tensor bytes = NewBytes(size);
    auto* to = bytes.mutable_data_ptr<uint8_t>();
    for (const auto& value : values) {
      const size_t length = value->type()->bytes();
      if (length != 0) value->ToHost(to, length);
      to += length;
    }
    return bytes;
  });
}

void WriteTensors(const at::Tensor& bytes, const std::vector<at::Tensor>& tensors) {
  const auto* from = bytes.const_data_ptr<uint8_t>();
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const trace::Type* type =
        trace::Intern({lowering::ToDType(tensor.scalar_type()), tensor.sizes().vec()});
    trace::ValuePtr value =
        aten::Guarded([&] { return aten::DeviceOf(tensor).FromHostAsync(type, from, [bytes] {}); });
    aten::Assign(tensor, std::move(value));
    from += type->bytes();
  }
}

}  // namespace torch_tpu::distributed
