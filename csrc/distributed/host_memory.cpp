#include "distributed/host_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/alloc_cpu.h>

#include <map>
#include <mutex>

#include "aten/errors.h"
#include "aten/storage.h"
#include "pjrt/in_place.h"
#include "trace/device.h"

namespace torch_tpu::distributed {

namespace {

// A tensor from this size on is the memory that was received itself, where the plugin can have it
// so. Smaller ones are copied: they would keep all of the memory that they are a part of.
constexpr size_t kInPlaceBytes = 256 << 10;

// Free pieces of large memory, by size. Never destroyed: tensors may be freed at the very end.
class FreePieces {
 public:
  static constexpr size_t kGranularity = 256 << 10;  // smaller ones the allocator keeps itself
  static FreePieces& Get() {
    static auto* pieces = new FreePieces;
    return *pieces;
  }
  void* Take(size_t size) {
    {
      std::lock_guard lock(mutex_);
      if (auto it = free_.find(size); it != free_.end()) {
        void* piece = it->second;
        free_.erase(it);
        total_ -= size;
        return piece;
      }
    }
    return c10::alloc_cpu(size);
  }
  void Give(void* piece, size_t size) {
    {
      std::lock_guard lock(mutex_);
      if (total_ + size <= kCapacity) {
        free_.emplace(size, piece);
        total_ += size;
        return;
      }
    }
    c10::free_cpu(piece);
  }

 private:
  static constexpr size_t kCapacity = 256 << 20;
  std::mutex mutex_;
  std::multimap<size_t, void*> free_;
  size_t total_ = 0;
};

}  // namespace

at::Tensor NewBytes(int64_t size) {
  const auto options = at::TensorOptions().dtype(at::kByte).device(at::kCPU);
  if (size < static_cast<int64_t>(FreePieces::kGranularity)) return at::empty({size}, options);
  const size_t rounded = (static_cast<size_t>(size) + FreePieces::kGranularity - 1) /
                         FreePieces::kGranularity * FreePieces::kGranularity;
  return at::from_blob(
      FreePieces::Get().Take(rounded), {size},
      [rounded](void* piece) { FreePieces::Get().Give(piece, rounded); }, options);
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
    const trace::Type* type = aten::LogicalType(tensor);
    trace::ValuePtr value = aten::Guarded([&]() -> trace::ValuePtr {
      trace::Device& device = aten::DeviceOf(tensor);
      const auto done = [bytes] {};
      if (type->bytes() < kInPlaceBytes) return device.FromHostAsync(type, from, done);
      return c10::make_intrusive<trace::Value>(type, &device, device.CountingOutOfMemory([&] {
        return pjrt::FromHostInPlace(device.client(), from, trace::ToPjrt(type->dtype), type->dims,
                                     device.pjrt(), done);
      }));
    });
    aten::Assign(tensor, std::move(value));
    from += type->bytes();
  }
}

}  // namespace torch_tpu::distributed
