#include "trace/device.h"

#include <cstring>

#include "stablehlo/narrow_float.h"

namespace torch_tpu::trace {

PJRT_Buffer_Type ToPjrt(DType dtype) {
  switch (dtype) {
    case DType::kPred:
      return PJRT_Buffer_Type_PRED;
    case DType::kS8:
      return PJRT_Buffer_Type_S8;
    case DType::kS16:
      return PJRT_Buffer_Type_S16;
    case DType::kS32:
      return PJRT_Buffer_Type_S32;
    case DType::kS64:
      return PJRT_Buffer_Type_S64;
    case DType::kU8:
      return PJRT_Buffer_Type_U8;
    case DType::kU16:
      return PJRT_Buffer_Type_U16;
    case DType::kU32:
      return PJRT_Buffer_Type_U32;
    case DType::kU64:
      return PJRT_Buffer_Type_U64;
    case DType::kF16:
      return PJRT_Buffer_Type_F16;
    case DType::kBF16:
      return PJRT_Buffer_Type_BF16;
    case DType::kF32:
      return PJRT_Buffer_Type_F32;
    case DType::kF64:
      return PJRT_Buffer_Type_F64;
    case DType::kC64:
      return PJRT_Buffer_Type_C64;
    case DType::kC128:
      return PJRT_Buffer_Type_C128;
    case DType::kF8E4M3FN:
      return PJRT_Buffer_Type_F8E4M3FN;
    case DType::kF8E5M2:
      return PJRT_Buffer_Type_F8E5M2;
    case DType::kF8E4M3FNUZ:
      return PJRT_Buffer_Type_F8E4M3FNUZ;
    case DType::kF8E5M2FNUZ:
      return PJRT_Buffer_Type_F8E5M2FNUZ;
  }
  throw pjrt::Error(pjrt::Code::kInvalidArgument, "dtype without a PJRT buffer type");
}

void Device::Add(Value* value) {
  std::lock_guard guard(lock_);
  value->next_ = first_;
  if (first_ != nullptr) first_->previous_ = value;
  first_ = value;
  value->linked_ = true;
  memory_.allocated += value->bytes_;
  memory_.total_allocated += value->bytes_;
  memory_.peak = std::max(memory_.peak, memory_.allocated);
  ++memory_.buffers;
  ++memory_.total_buffers;
  memory_.peak_buffers = std::max(memory_.peak_buffers, memory_.buffers);
}

void Device::Remove(Value* value) {
  if (value->bytes_ < 0) return;
  std::lock_guard guard(lock_);
  UnlinkLocked(value);
  memory_.allocated -= value->bytes_;
  memory_.total_freed += value->bytes_;
  --memory_.buffers;
}

void Device::UnlinkLocked(Value* value) {
  if (!value->linked_) return;
  if (value->previous_ != nullptr) value->previous_->next_ = value->next_;
  if (value->next_ != nullptr) value->next_->previous_ = value->previous_;
  if (first_ == value) first_ = value->next_;
  value->previous_ = value->next_ = nullptr;
  value->linked_ = false;
}

MemoryCounts Device::memory() const {
  std::lock_guard guard(lock_);
  return memory_;
}

void Device::ResetPeak() {
  std::lock_guard guard(lock_);
  memory_.peak = memory_.allocated;
  memory_.peak_buffers = memory_.buffers;
}

void Device::CountOutOfMemory() {
  std::lock_guard guard(lock_);
  ++memory_.out_of_memory;
}

ValuePtr Device::FromHost(const Type* type, const void* data) {
  return c10::make_intrusive<Value>(type, this, CountingOutOfMemory([&] {
                                      return client_->FromHost(data, ToPjrt(type->dtype),
                                                               type->dims, *device_);
                                    }));
}

ValuePtr Device::FromHostAsync(const Type* type, const void* data, std::function<void()> done) {
  return c10::make_intrusive<Value>(type, this, CountingOutOfMemory([&] {
                                      return client_->FromHostAsync(data, ToPjrt(type->dtype),
                                                                    type->dims, *device_,
                                                                    std::move(done));
                                    }));
}

ValuePtr Device::Adopt(const Type* type, PJRT_Buffer* buffer) {
  return c10::make_intrusive<Value>(type, this, pjrt::Buffer(&client_->plugin(), buffer));
}

size_t Device::NumberHash::operator()(const HostNumber& n) const {
  uint64_t bits = 0;
  std::memcpy(&bits, &n.real, sizeof bits);
  uint64_t hash = bits ^ (static_cast<uint64_t>(n.integer) * 0x9E3779B97F4A7C15ull);
  std::memcpy(&bits, &n.imag, sizeof bits);
  hash = (hash ^ bits ^ static_cast<uint64_t>(n.dtype)) * 0xff51afd7ed558ccdull;
  return hash ^ (hash >> 32);
}

ValuePtr Device::Number(const HostNumber& number) {
  constexpr size_t kCapacity = 4096;
  // NaN is not equal to itself, so it is never found: made anew each time, never inserted.
  {
    std::lock_guard guard(numbers_lock_);
    auto it = numbers_.find(number);
    if (it != numbers_.end()) return it->second;
  }
  alignas(16) unsigned char bytes[16] = {};
  stablehlo::EncodeNumber(number.dtype, number.real, number.imag, number.integer, bytes);
  ValuePtr value = FromHost(Intern(Type{number.dtype, {}}), bytes);
  value->number = number;
  if (number == number) {
    std::lock_guard guard(numbers_lock_);
    if (numbers_.size() >= kCapacity) numbers_.clear();
    numbers_.emplace(number, value);
  }
  return value;
}

std::vector<pjrt::Event> Device::InFlight() {
  std::vector<pjrt::Event> events;
  // While the lock is held no linked value can lose its buffer: destruction and donation unlink
  // first.
  std::lock_guard guard(lock_);
  for (Value* value = first_; value != nullptr;) {
    Value* next = value->next_;
    pjrt::Event event = value->buffer_.ReadyEvent();
    if (event.IsReady()) {
      UnlinkLocked(value);
    } else {
      events.push_back(std::move(event));
    }
    value = next;
  }
  return events;
}

void Device::Synchronize() {
  std::exception_ptr failure;
  for (const pjrt::Event& event : InFlight()) {
    try {
      event.Await();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  RaiseFailedChecks();
  if (failure) std::rethrow_exception(failure);
}

bool Device::Idle() { return InFlight().empty(); }

void Device::OnIdle(std::function<void()> done) {
  auto remaining = std::make_shared<std::atomic<int>>(1);
  auto shared = std::make_shared<std::function<void()>>(std::move(done));
  auto finish = [remaining, shared] {
    if (remaining->fetch_sub(1) == 1) (*shared)();
  };
  for (const pjrt::Event& event : InFlight()) {
    remaining->fetch_add(1);
    event.OnReady([finish](const std::optional<pjrt::Error>&) { finish(); });
  }
  finish();
}

void Device::AddCheck(PendingCheck check) {
  std::lock_guard guard(checks_mutex_);
  checks_.push_back(std::move(check));
  has_checks_.store(true, std::memory_order_release);
}

void Device::RaiseFailedChecks() {
  if (!has_checks_.load(std::memory_order_acquire)) return;
  std::vector<PendingCheck> checks;
  {
    std::lock_guard guard(checks_mutex_);
    checks.swap(checks_);
    has_checks_.store(false, std::memory_order_release);
  }
  for (const PendingCheck& check : checks) {
    bool ok = true;
    if (const void* host = check.ok->buffer().HostPointer()) {
      ok = *static_cast<const bool*>(host);
    } else {
      check.ok->buffer().ToHost(&ok, 1);
    }
    if (!ok) throw CheckFailed(check.message, check.index_error);
  }
}

}  // namespace torch_tpu::trace
