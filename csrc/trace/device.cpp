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
  value->sequence_ = next_sequence_++;
  memory_.allocated += value->bytes_;
  memory_.total_allocated += value->bytes_;
  memory_.peak = std::max(memory_.peak, memory_.allocated);
  ++memory_.buffers;
  ++memory_.total_buffers;
  memory_.peak_buffers = std::max(memory_.peak_buffers, memory_.buffers);
}

void Device::Remove(Value* value) {
  std::lock_guard guard(lock_);
  RemoveLocked(value);
}

void Device::Drop(Value* value) {
  if (value->bytes_ < 0) return;
  // An event costs as much as a small program; keeping one small buffer a little longer does not.
  constexpr int64_t kSmallBytes = 1 << 15;
  pjrt::Buffer displaced;  // freed after the lock is
  std::lock_guard guard(lock_);
  if (value->linked_) {
    if (value->bytes_ <= kSmallBytes) {
      displaced = std::move(last_dropped_);
      last_dropped_ = std::move(value->buffer_);
    } else {
      if (dropped_.size() >= prune_dropped_at_) {
        std::erase_if(dropped_, [this](const Work& work) { return IsCompleteLocked(work); });
        prune_dropped_at_ = std::max<size_t>(64, 2 * dropped_.size());
      }
      Work work = WorkOf(*value);
      if (!IsCompleteLocked(work)) dropped_.push_back(std::move(work));
    }
  }
  RemoveLocked(value);
}

void Device::RemoveLocked(Value* value) {
  UnlinkLocked(value);
  memory_.allocated -= value->bytes_;
  memory_.total_freed += value->bytes_;
  --memory_.buffers;
  ++memory_.freed_buffers;
}

void Device::UnlinkLocked(Value* value) {
  if (!value->linked_) return;
  if (value->previous_ != nullptr) value->previous_->next_ = value->next_;
  if (value->next_ != nullptr) value->next_->previous_ = value->previous_;
  if (first_ == value) first_ = value->next_;
  value->previous_ = value->next_ = nullptr;
  value->linked_ = false;
}

MemoryCounts Device::memory() {
  queue_.Drain();  // queued launches hold what they will free
  std::lock_guard guard(lock_);
  return memory_;
}

void Device::ResetPeak() {
  queue_.Drain();
  std::lock_guard guard(lock_);
  memory_.peak = memory_.allocated;
  memory_.peak_buffers = memory_.buffers;
}

void Device::ResetTotals() {
  queue_.Drain();
  std::lock_guard guard(lock_);
  memory_.total_allocated = memory_.total_freed = 0;
  memory_.total_buffers = memory_.freed_buffers = 0;
  memory_.out_of_memory = 0;
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

ValuePtr Device::Adopt(const Type* type, PJRT_Buffer* buffer, const std::string* producer) {
  return c10::make_intrusive<Value>(type, this, pjrt::Buffer(&client_->plugin(), buffer), producer);
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

Device::Work Device::WorkOf(const Value& value) const {
  return {std::make_shared<const pjrt::Event>(value.buffer_.ReadyEvent()), value.sequence_,
          value.type_, value.producer_};
}

bool Device::IsCompleteLocked(const Work& work) {
  if (!work.ready->IsReady()) return false;
  try {
    work.ready->Await();
  } catch (const pjrt::Error& error) {
    NoteFailureLocked(work, error);
  }
  return true;
}

void Device::NoteFailureLocked(const Work& work, const pjrt::Error& error) {
  if (failure_ && failure_->sequence <= work.sequence) return;
  std::string message = error.what();
  if (work.producer != nullptr) {
    message += " (in aten::" + *work.producer + ", which computes " + work.type->str() + ")";
  }
  // The CPU plugins lose the code on the way.
  const bool memory = error.code() == pjrt::Code::kResourceExhausted ||
                      message.find("Out of memory allocating") != std::string::npos;
  const pjrt::Code code = memory ? pjrt::Code::kResourceExhausted : error.code();
  failure_.emplace(Failure{work.sequence, pjrt::Error(code, message)});
}

void Device::NoteFailedLaunch(const Value& value, const pjrt::Error& error) {
  std::lock_guard guard(lock_);
  NoteFailureLocked({nullptr, next_sequence_++, value.type_, value.producer_}, error);
}

void Device::RaiseFailure() {
  std::optional<Failure> failure;
  {
    std::lock_guard guard(lock_);
    failure.swap(failure_);
    if (failure && failure->error.code() == pjrt::Code::kResourceExhausted) {
      ++memory_.out_of_memory;
    }
  }
  if (failure) throw failure->error;
}

void Device::RaiseFailureOf(const Value& value, const pjrt::Error& error) {
  InFlight();
  RaiseFailure();
  // It was raised before, and the value read nevertheless.
  {
    std::lock_guard guard(lock_);
    NoteFailureLocked({nullptr, value.sequence_, value.type_, value.producer_}, error);
  }
  RaiseFailure();
  throw error;
}

std::vector<Device::Work> Device::InFlight() {
  std::vector<Work> works;
  queue_.Drain();
  // While the lock is held no linked value can lose its buffer: destruction and donation unlink
  // first.
  pjrt::Buffer done;  // freed after the lock is
  std::lock_guard guard(lock_);
  for (Value* value = first_; value != nullptr;) {
    Value* next = value->next_;
    Work work = WorkOf(*value);
    if (IsCompleteLocked(work)) {
      UnlinkLocked(value);
    } else {
      works.push_back(std::move(work));
    }
    value = next;
  }
  if (last_dropped_) {
    // Its failure, if any, is that of something large that it was computed from.
    auto ready = std::make_shared<const pjrt::Event>(last_dropped_.ReadyEvent());
    if (ready->IsReady()) {
      done = std::move(last_dropped_);
    } else {
      works.push_back({std::move(ready), next_sequence_});
    }
  }
  std::erase_if(dropped_, [this](const Work& work) { return IsCompleteLocked(work); });
  works.insert(works.end(), dropped_.begin(), dropped_.end());
  return works;
}

void Device::AwaitLaunched() {
  for (const Work& work : InFlight()) {
    try {
      work.ready->Await();
    } catch (const pjrt::Error& error) {
      std::lock_guard guard(lock_);
      NoteFailureLocked(work, error);
    }
  }
}

void Device::Synchronize() {
  AwaitLaunched();
  // What has failed is known now, and is not to be found again.
  InFlight();
  RaiseFailure();
  RaiseFailedChecks();
}

bool Device::Idle() { return InFlight().empty(); }

void Device::OnIdle(std::function<void()> done) {
  auto remaining = std::make_shared<std::atomic<int>>(1);
  auto shared = std::make_shared<std::function<void()>>(std::move(done));
  auto finish = [remaining, shared] {
    if (remaining->fetch_sub(1) == 1) (*shared)();
  };
  for (const Work& work : InFlight()) {
    remaining->fetch_add(1);
    work.ready->OnReady([finish](const std::optional<pjrt::Error>&) { finish(); });
  }
  finish();
}

namespace {

// Waits for the check.
bool Passed(const PendingCheck& check) {
  bool ok = true;
  try {
    if (const void* host = check.ok->buffer().HostPointer()) {
      ok = *static_cast<const bool*>(host);
    } else {
      check.ok->buffer().ToHost(&ok, 1);
    }
  } catch (const pjrt::Error&) {
    // The computation failed, and with it the check: that is told elsewhere.
  }
  return ok;
}

}  // namespace

void Device::AddCheck(PendingCheck check) {
  std::lock_guard guard(checks_mutex_);
  // A program that never synchronizes must not pile them up.
  if (checks_.size() >= prune_checks_at_) {
    std::erase_if(checks_, [](const PendingCheck& pending) {
      return pending.ok->launched() && Passed(pending);
    });
    prune_checks_at_ = std::max<size_t>(kPruneChecksAt, 2 * checks_.size());
  }
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
    if (!Passed(check)) throw CheckFailed(check.message, check.index_error);
  }
}

}  // namespace torch_tpu::trace
