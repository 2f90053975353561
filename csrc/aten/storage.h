#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <optional>
#include <vector>

#include "trace/device.h"
#include "trace/spin_lock.h"
#include "trace/value.h"
#include "trace/view.h"

namespace torch_tpu::aten {

// What a tpu storage holds. Lives in the storage's DataPtr context, so that shallow copies, views
// and tied parameters share it.
struct StorageState {
  trace::SpinLock lock;   // held from reading `value` to swapping it when a view is written through
  trace::ValuePtr value;  // null until something is written
  void* address = nullptr;
  size_t reserved_bytes = 0;
  c10::DeviceIndex device = 0;
  // Links of the list of all states.
  StorageState *previous = nullptr, *next = nullptr;
};

// PyTorch's allocator for "tpu": hands out address ranges; buffers appear when something is
// written.
class Allocator final : public c10::DeviceAllocator {
 public:
  static Allocator& Get();
  c10::DataPtr allocate(size_t bytes) override;
  c10::DataPtr Allocate(size_t bytes, c10::DeviceIndex device);
  // Contexts are not raw pointers.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* destination, const void* source, size_t bytes) const override;

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t pool = {0, 0}) override {}
  void recordStream(const c10::DataPtr& ptr, c10::Stream stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;
};

// The state of a storage, also of one that PyTorch made from the bare address of another (legacy
// files, DLPack): the two then share it.
StorageState& StateOf(const c10::StorageImpl& storage);
inline StorageState& StateOf(const at::Tensor& tensor) {
  return StateOf(*tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

// The device whose storage this address lies in, or -1.
c10::DeviceIndex DeviceOfAddress(const void* address);

// The device of a tpu tensor; starts the client on first use.
trace::Device& DeviceOf(const at::Tensor& tensor);
trace::Device& DeviceAt(c10::DeviceIndex index);

// A new tensor over a storage of its own; strides as given (empty: contiguous). Nothing is
// allocated.
at::Tensor MakeTensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                      c10::DeviceIndex device);
// The same with the storage size known and a value.
at::Tensor MakeTensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, caffe2::TypeMeta dtype,
                      c10::DeviceIndex device, size_t bytes, trace::ValuePtr value);
// Bytes a storage needs for this geometry.
size_t StorageBytes(c10::IntArrayRef sizes, c10::IntArrayRef strides, size_t itemsize,
                    int64_t offset = 0);

// Strides of a copy of the tensor without gaps: the tensor's own if it has none, else contiguous.
std::vector<int64_t> DenseStrides(const at::Tensor& tensor);

trace::ViewSpec ViewOf(const at::Tensor& tensor);

// The type of the tensor's elements as a value of their own.
const trace::Type* LogicalType(const at::Tensor& tensor);
// A tensor of this one's dtype, shape and DenseStrides over a storage of its own that holds `value`
// (of its LogicalType).
at::Tensor DenseLike(const at::Tensor& like, trace::ValuePtr value);
// A tensor's elements in a storage of just their size, in the order they have in memory.
at::Tensor CopyOut(const at::Tensor& tensor);

// Where a run of elements lies in its base, as a run-time argument: loops over the rows of a tensor
// need one program then, not one for each row. `aligned`: the base is made of such runs.
struct Run {
  bool aligned = false;
  int64_t offset = 0;
};
// Of a view that is a run of `base`'s elements as they are; none while something is captured, where
// an offset stays what it is.
std::optional<Run> RunOf(const trace::Type& base, const trace::ViewSpec& view);
// The run of `sizes` at `offset` (s64[]), and the base with it replaced.
stablehlo::Value ReadRun(stablehlo::Value base, const stablehlo::Dims& sizes,
                         stablehlo::Value offset, bool aligned);
// A view that is a run, or one with small gaps, as a view of the run that it lies in.
struct Piece {
  Run run;
  stablehlo::Dims shape;  // of the run
  trace::ViewSpec within;
};
std::optional<Piece> PieceOf(const trace::Type& base, const trace::ViewSpec& view);
stablehlo::Value WriteRun(stablehlo::Value base, stablehlo::Value update, stablehlo::Value offset,
                          bool aligned);
// A run's offset as an argument.
trace::ValuePtr OffsetArgument(trace::Device& device, int64_t offset);

// The value of a storage as it is now; zeros of the storage's size are made if nothing was written
// yet. Takes the storage's lock.
trace::ValuePtr ReadStorage(const at::Tensor& tensor);
// With the lock held by the caller.
trace::ValuePtr ReadStorageLocked(StorageState& state, const at::Tensor& tensor);

// The tensor's elements as a value of exactly its logical shape and dtype (runs the view's recipe
// unless the view is plain).
trace::ValuePtr Materialize(const at::Tensor& tensor);
// Replaces the tensor's elements by `value` (its logical shape and dtype).
void Assign(const at::Tensor& tensor, trace::ValuePtr value);

}  // namespace torch_tpu::aten
