#include "aten/storage.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/strides.h>

#include <array>
#include <mutex>

#include "aten/address_space.h"
#include "aten/errors.h"
#include "aten/guard.h"
#include "aten/tensor_signature.h"
#include "aten/view_signature.h"
#include "lowering/call.h"
#include "trace/runtime.h"
#include "trace/signature.h"
#include "trace/trace.h"

namespace torch_tpu::aten {
namespace {

using trace::Operation;
using trace::Type;
using trace::ValuePtr;
using trace::ViewSpec;

// All states, so that one can be found by its address where PyTorch passes nothing else on.
trace::SpinLock states_lock;
StorageState* first_state = nullptr;

void Link(StorageState* state) {
  std::lock_guard guard(states_lock);
  state->next = first_state;
  if (first_state != nullptr) first_state->previous = state;
  first_state = state;
}

void Unlink(StorageState* state) {
  std::lock_guard guard(states_lock);
  (state->previous != nullptr ? state->previous->next : first_state) = state->next;
  if (state->next != nullptr) state->next->previous = state->previous;
}

// States of freed storages, kept by each thread with their address range, by the range's size
// class.
class StatePool {
 public:
  ~StatePool() {
    gone_ = true;
    for (auto& states : classes_) {
      for (StorageState* state : states) Destroy(state);
    }
  }
  static StorageState* Take(size_t bytes) {
    if (!gone_) {
      auto& states = local().classes_[AddressSpace::ClassOf(bytes)];
      if (!states.empty()) {
        StorageState* state = states.back();
        states.pop_back();
        return state;
      }
    }
    void* address = AddressSpace::Get().Take(bytes);
    auto* state = new StorageState;
    state->address = address;
    state->reserved_bytes = AddressSpace::ClassBytes(bytes);
    Link(state);
    return state;
  }
  static void Give(StorageState* state) {
    state->value.reset();
    if (!gone_) {
      auto& states = local().classes_[AddressSpace::ClassOf(state->reserved_bytes)];
      if (states.size() < kCapacity) {
        states.push_back(state);
        return;
      }
    }
    Destroy(state);
  }

 private:
  static constexpr size_t kCapacity = 64;
  static void Destroy(StorageState* state) {
    Unlink(state);
    AddressSpace::Get().Give(state->address, state->reserved_bytes);
    delete state;
  }
  static StatePool& local() {
    thread_local StatePool pool;
    return pool;
  }
  std::array<std::vector<StorageState*>, AddressSpace::kClasses> classes_;
  static thread_local bool gone_;  // the thread's pool is destroyed
};
thread_local bool StatePool::gone_ = false;

void DeleteState(void* context) { StatePool::Give(static_cast<StorageState*>(context)); }

using OperationCache = trace::SignatureCache<std::shared_ptr<Operation>>;

std::shared_ptr<Operation> ReadOperation(const Type* base, const ViewSpec& view) {
  static auto* cache = new OperationCache;
  trace::Signature signature;
  signature.Clear();
  signature.Add(reinterpret_cast<uint64_t>(base));
  AddView(signature, view);
  return cache->FindOrMake(signature, [&] {
    return std::make_shared<Operation>(
        "view", std::vector<const Type*>{base},
        [view](stablehlo::Builder&, const stablehlo::Values& inputs) {
          return trace::Lowered{{trace::ReadView(inputs[0], view)}, {}};
        });
  });
}

std::shared_ptr<Operation> ReadPieceOperation(const Type* base, const Piece& piece) {
  static auto* cache = new OperationCache;
  trace::Signature signature;
  signature.Clear();
  signature.Add(reinterpret_cast<uint64_t>(base));
  signature.Add(piece.run.aligned);
  signature.Add(piece.shape.size());
  for (int64_t d : piece.shape) signature.Add(static_cast<uint64_t>(d));
  AddView(signature, piece.within);
  return cache->FindOrMake(signature, [&] {
    const Type* index = trace::Intern({trace::DType::kS64, {}});
    return std::make_shared<Operation>(
        "view", std::vector<const Type*>{base, index},
        [shape = piece.shape, aligned = piece.run.aligned, within = piece.within](
            stablehlo::Builder&, const stablehlo::Values& inputs) {
          const auto run = ReadRun(inputs[0], shape, inputs[1], aligned);
          return trace::Lowered{{trace::ReadView(run, within)}, {}};
        });
  });
}

// A base seen as runs: rows of them if it is made of such, else single elements. Then a run starts
// at `starts` and has the shape `shape`. A flat base stays flat: XLA:CPU does not replace a run of
// a reshaped one in place, but copies all of it.
struct Runs {
  stablehlo::Dims all, shape;
  stablehlo::Values starts;
};

Runs SplitIntoRuns(stablehlo::Value base, const stablehlo::Dims& sizes, stablehlo::Value offset,
                   bool aligned) {
  const int64_t count = c10::multiply_integers(sizes);
  if (!aligned || base.rank() == 1) return {{base.numel()}, {count}, {offset}};
  Runs runs{sizes, sizes, {}};
  runs.all.insert(runs.all.begin(), base.numel() / count);
  runs.shape.insert(runs.shape.begin(), 1);
  stablehlo::Builder& builder = base.builder();
  runs.starts.assign(runs.all.size(), builder.ConstantInt(offset.type(), 0));
  runs.starts[0] = stablehlo::Divide(offset, builder.ConstantInt(offset.type(), count));
  return runs;
}

// Zeros.
std::shared_ptr<Operation> EmptyOperation(const Type* type) {
  static auto* cache = new OperationCache;
  trace::Signature signature;
  signature.Clear();
  signature.Add(reinterpret_cast<uint64_t>(type));
  return cache->FindOrMake(signature, [&] {
    return std::make_shared<Operation>(
        "empty", std::vector<const Type*>{},
        [type](stablehlo::Builder& builder, const stablehlo::Values&) {
          return trace::Lowered{{stablehlo::ZeroConstant(builder, *type)}, {}};
        });
  });
}

std::shared_ptr<Operation> WriteOperation(const Type* base, const ViewSpec& view,
                                          int64_t storage_bytes) {
  static auto* cache = new OperationCache;
  trace::Signature signature;
  signature.Clear();
  signature.Add(reinterpret_cast<uint64_t>(base));
  signature.Add(storage_bytes);
  AddView(signature, view);
  return cache->FindOrMake(signature, [&] {
    const Type after = trace::BaseAfterWrite(base, view, storage_bytes);
    std::vector<const Type*> parameters{trace::Intern({view.dtype, view.sizes})};
    if (base != nullptr) parameters.push_back(base);
    return std::make_shared<Operation>(
        "view_write", std::move(parameters),
        [view, after](stablehlo::Builder&, const stablehlo::Values& inputs) {
          stablehlo::Value old = inputs.size() > 1 ? inputs[1] : stablehlo::Value();
          return trace::Lowered{{trace::WriteView(old, inputs[0], view, after)}, {}};
        },
        base != nullptr ? std::vector<std::pair<int, int>>{{1, 0}}
                        : std::vector<std::pair<int, int>>{});
  });
}

c10::CachingAllocator::StatArray Counts(int64_t current, int64_t peak, int64_t allocated,
                                        int64_t freed) {
  c10::CachingAllocator::StatArray stats;
  auto& all = stats[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  all.current = current;
  all.peak = peak;
  all.allocated = allocated;
  all.freed = freed;
  return stats;
}

}  // namespace

Allocator& Allocator::Get() {
  static auto* allocator = new Allocator;
  return *allocator;
}

c10::DataPtr Allocator::allocate(size_t bytes) { return Allocate(bytes, CurrentDevice()); }

c10::DataPtr Allocator::Allocate(size_t bytes, c10::DeviceIndex device) {
  StorageState* state = StatePool::Take(bytes);
  state->device = device;
  return {state->address, state, &DeleteState, c10::Device(c10::DeviceType::PrivateUse1, device)};
}

void Allocator::copy_data(void*, const void*, size_t) const {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "tpu storages cannot be copied by address");
}

c10::CachingDeviceAllocator::DeviceStats Allocator::getDeviceStats(c10::DeviceIndex device) {
  c10::CachingDeviceAllocator::DeviceStats stats;
  const trace::MemoryCounts m = DeviceAt(device).memory();
  const auto bytes = Counts(m.allocated, m.peak, m.total_allocated, m.total_freed);
  stats.allocated_bytes = stats.reserved_bytes = stats.active_bytes = stats.requested_bytes = bytes;
  stats.allocation = stats.active = stats.segment =
      Counts(m.buffers, m.peak_buffers, m.total_buffers, m.freed_buffers);
  stats.num_ooms = m.out_of_memory;
  stats.num_device_alloc = m.total_buffers;
  stats.num_device_free = m.freed_buffers;
  return stats;
}

void Allocator::resetAccumulatedStats(c10::DeviceIndex device) { DeviceAt(device).ResetTotals(); }

void Allocator::resetPeakStats(c10::DeviceIndex device) { DeviceAt(device).ResetPeak(); }

std::pair<size_t, size_t> Allocator::getMemoryInfo(c10::DeviceIndex device) {
  return DeviceMemoryInfo(device);
}

StorageState& StateOf(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  if (auto* state = data.cast_context<StorageState>(&DeleteState); C10_LIKELY(state != nullptr)) {
    return *state;
  }
  TORCH_CHECK(data.get() != nullptr, "this tpu storage was freed");
  std::lock_guard guard(states_lock);
  for (StorageState* state = first_state; state != nullptr; state = state->next) {
    if (state->address == data.get() && state->device == data.device().index() &&
        storage.nbytes() <= state->reserved_bytes) {
      return *state;
    }
  }
  TORCH_CHECK(false, "the address ", data.get(), " is not that of a tpu storage");
}

c10::DeviceIndex DeviceOfAddress(const void* address) {
  const auto* wanted = static_cast<const char*>(address);
  std::lock_guard guard(states_lock);
  for (StorageState* state = first_state; state != nullptr; state = state->next) {
    const auto* begin = static_cast<const char*>(state->address);
    if (wanted >= begin && wanted < begin + std::max<size_t>(state->reserved_bytes, 1)) {
      return state->device;
    }
  }
  return -1;
}

trace::Device& DeviceAt(c10::DeviceIndex index) {
  if (C10_UNLIKELY(!trace::Runtime::Get().started()))
    Guarded([] { trace::Runtime::Get().Start(); });
  return trace::Runtime::Get().device(DeviceMeant(index));
}

trace::Device& DeviceOf(const at::Tensor& tensor) { return DeviceAt(tensor.device().index()); }

size_t StorageBytes(c10::IntArrayRef sizes, c10::IntArrayRef strides, size_t itemsize,
                    int64_t offset) {
  int64_t last = offset;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return 0;
    last += (sizes[d] - 1) * strides[d];
  }
  return static_cast<size_t>(last + 1) * itemsize;
}

at::Tensor MakeTensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, caffe2::TypeMeta dtype,
                      c10::DeviceIndex device, size_t bytes, trace::ValuePtr value) {
  c10::DataPtr data = Allocator::Get().Allocate(bytes, device);
  static_cast<StorageState*>(data.get_context())->value = std::move(value);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       std::move(data), &Allocator::Get(),
                                                       /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (strides.empty() && !sizes.empty()) {
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides);
  }
  return tensor;
}

at::Tensor MakeTensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                      c10::DeviceIndex device) {
  const auto meta = c10::scalarTypeToTypeMeta(dtype);
  const size_t bytes = strides.empty()
                           ? at::detail::computeStorageNbytesContiguous(sizes, meta.itemsize())
                           : at::detail::computeStorageNbytes(sizes, strides, meta.itemsize());
  return MakeTensor(sizes, strides, meta, device, bytes, nullptr);
}

std::vector<int64_t> DenseStrides(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  std::vector<int64_t> strides(tensor.dim(), 1);
  for (int64_t d = tensor.dim() - 1; d > 0; --d) {
    strides[d - 1] = strides[d] * std::max<int64_t>(tensor.size(d), 1);
  }
  return strides;
}

ViewSpec ViewOf(const at::Tensor& tensor) {
  ViewSpec view;
  view.dtype = lowering::ToDType(tensor.scalar_type());
  view.sizes = tensor.sizes().vec();
  view.strides = tensor.strides().vec();
  view.offset = tensor.storage_offset();
  view.conjugate = tensor.is_conj();
  view.negative = tensor.is_neg();
  return view;
}

const Type* LogicalType(const at::Tensor& tensor) {
  return trace::Intern({lowering::ToDType(tensor.scalar_type()), tensor.sizes().vec()});
}

at::Tensor DenseLike(const at::Tensor& like, ValuePtr value) {
  at::Tensor tensor =
      MakeTensor(like.sizes(), DenseStrides(like), like.scalar_type(), like.device().index());
  Assign(tensor, std::move(value));
  return tensor;
}

at::Tensor CopyOut(const at::Tensor& tensor) {
  if (!tensor.is_contiguous()) {
    at::Tensor copy =
        MakeTensor(tensor.sizes(), at::infer_dense_strides(tensor.sizes(), tensor.strides()),
                   tensor.scalar_type(), tensor.device().index());
    Assign(copy, Materialize(tensor));
    return copy;
  }
  return MakeTensor(tensor.sizes(), {}, tensor.dtype(), tensor.device().index(), tensor.nbytes(),
                    Materialize(tensor));
}

std::optional<Run> RunOf(const Type& base, const ViewSpec& view) {
  if (trace::Trace::Current() != nullptr) return std::nullopt;
  const int64_t count = view.numel();
  if (count == 0 || count == base.numel()) return std::nullopt;
  if (view.conjugate || view.negative || view.dtype != base.dtype) return std::nullopt;
  if (!c10::is_contiguous_strides(c10::IntArrayRef(view.sizes), c10::IntArrayRef(view.strides))) {
    return std::nullopt;
  }
  return Run{view.offset % count == 0 && base.numel() % count == 0, view.offset};
}

std::optional<Piece> PieceOf(const Type& base, const ViewSpec& view) {
  Piece piece{.shape = view.sizes, .within = view};
  if (const auto run = RunOf(base, view)) {
    const auto strides = c10::contiguous_strides(view.sizes);
    piece.run = *run;
    piece.within.strides.assign(strides.begin(), strides.end());
    piece.within.offset = 0;
    return piece;
  }
  if (trace::Trace::Current() != nullptr || view.numel() == 0) return std::nullopt;
  if (view.conjugate || view.negative || view.dtype != base.dtype) return std::nullopt;
  if (!HasSmallGaps(view.sizes, view.strides)) return std::nullopt;
  const int64_t span = SpanOf(view.sizes, view.strides);
  // Whole rows, so that the base is made of such runs, if the view begins and ends in one.
  int64_t length = 1;
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] != 1) length = std::max(length, view.sizes[i] * view.strides[i]);
  }
  piece.within.offset = view.offset % length;
  piece.run.aligned = base.numel() % length == 0 && piece.within.offset + span <= length;
  if (!piece.run.aligned) {
    length = span;
    piece.within.offset = 0;
  }
  piece.run.offset = view.offset - piece.within.offset;
  piece.shape = {length};
  if (length == base.numel()) return std::nullopt;
  return piece;
}

stablehlo::Value ReadRun(stablehlo::Value base, const stablehlo::Dims& sizes,
                         stablehlo::Value offset, bool aligned) {
  const Runs runs = SplitIntoRuns(base, sizes, offset, aligned);
  const auto run =
      stablehlo::DynamicSlice(stablehlo::Reshape(base, runs.all), runs.starts, runs.shape);
  return stablehlo::Reshape(run, sizes);
}

stablehlo::Value WriteRun(stablehlo::Value base, stablehlo::Value update, stablehlo::Value offset,
                          bool aligned) {
  const Runs runs = SplitIntoRuns(base, update.dims(), offset, aligned);
  const auto written = stablehlo::DynamicUpdateSlice(
      stablehlo::Reshape(base, runs.all), stablehlo::Reshape(update, runs.shape), runs.starts);
  return stablehlo::Reshape(written, base.dims());
}

ValuePtr OffsetArgument(trace::Device& device, int64_t offset) {
  trace::HostNumber number;
  number.dtype = trace::DType::kS64;
  number.integer = offset;
  return device.Number(number);
}

ValuePtr ReadStorageLocked(StorageState& state, const at::Tensor& tensor) {
  if (!state.value) {
    // Reading what was never written: zeros, so that results do not depend on chance.
    const auto itemsize = static_cast<int64_t>(tensor.dtype().itemsize());
    const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
    // A value has all of its storage's bytes, also those after the last whole element.
    const Type* type =
        bytes % itemsize == 0
            ? trace::Intern({lowering::ToDType(tensor.scalar_type()), {bytes / itemsize}})
            : trace::Intern({trace::DType::kU8, {bytes}});
    ValuePtr value;
    Guarded([&] { trace::Run(EmptyOperation(type), DeviceOf(tensor), {}, false, &value); });
    state.value = std::move(value);
  }
  return state.value;
}

ValuePtr ReadStorage(const at::Tensor& tensor) {
  StorageState& state = StateOf(tensor);
  std::lock_guard guard(state.lock);
  return ReadStorageLocked(state, tensor);
}

ValuePtr Materialize(const at::Tensor& tensor) {
  ValuePtr base = ReadStorage(tensor);
  const ViewSpec view = ViewOf(tensor);
  if (trace::IsPlain(*base->type(), view)) return base;
  ValuePtr result;
  trace::Device& device = DeviceOf(tensor);
  Guarded([&] {
    if (const auto piece = PieceOf(*base->type(), view)) {
      auto operation = ReadPieceOperation(base->type(), *piece);
      ValuePtr inputs[2] = {std::move(base), OffsetArgument(device, piece->run.offset)};
      trace::Run(operation, device, inputs, false, &result);
      return;
    }
    trace::Run(ReadOperation(base->type(), view), device, {&base, 1}, false, &result);
  });
  return result;
}

void Assign(const at::Tensor& tensor, ValuePtr value) {
  const ViewSpec view = ViewOf(tensor);
  if (view.numel() == 0) return;
  StorageState& state = StateOf(tensor);
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  ValuePtr old;  // freed after the lock is
  std::lock_guard guard(state.lock);
  const Type* base = state.value ? state.value->type() : nullptr;
  if (trace::IsPlain(*value->type(), view) && trace::CoversBase(base, view, bytes)) {
    old = std::move(state.value);
    state.value = std::move(value);
    return;
  }
  auto operation = WriteOperation(base, view, bytes);
  ValuePtr inputs[2] = {std::move(value), std::move(state.value)};
  ValuePtr result;
  try {
    Guarded([&] {
      trace::Run(operation, DeviceOf(tensor), {inputs, base != nullptr ? size_t{2} : size_t{1}},
                 /*donate=*/true, &result);
    });
  } catch (...) {
    state.value = std::move(inputs[1]);
    throw;
  }
  old = std::move(inputs[1]);
  state.value = std::move(result);
}

}  // namespace torch_tpu::aten
