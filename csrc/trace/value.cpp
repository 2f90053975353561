#include "trace/value.h"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "trace/device.h"

namespace torch_tpu::trace {
namespace {

struct TypeHash {
  size_t operator()(const Type& type) const {
    uint64_t hash = static_cast<uint64_t>(type.dtype) + 1;
    for (int64_t d : type.dims) {
      hash ^= static_cast<uint64_t>(d);
      hash *= 0x9E3779B97F4A7C15ull;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

std::atomic<bool> abandoned{false};

}  // namespace

void Value::AbandonBuffers() { abandoned.store(true, std::memory_order_relaxed); }

const Type* Intern(const Type& type) {
  static auto* lock = new SpinLock;
  static auto* types = new std::unordered_map<Type, std::unique_ptr<const Type>, TypeHash>;
  std::lock_guard guard(*lock);
  auto it = types->find(type);
  if (it == types->end()) it = types->emplace(type, std::make_unique<const Type>(type)).first;
  return it->second.get();
}

Value::Value(const Type* type, Device* device, pjrt::Buffer buffer, const std::string* producer)
    : type_(type),
      device_(device),
      buffer_(std::move(buffer)),
      bytes_(static_cast<int64_t>(type->bytes())),
      producer_(producer) {
  device_->Add(this);
}

Value::Value(const Type* type, Device* device, const std::string* producer)
    : type_(type), device_(device), launch_(LaunchState::kQueued), producer_(producer) {}

Value::Value(const Type* type, Device* device, Trace* trace, int node, int index)
    : type_(type), device_(device), trace_(trace), node_(node), index_(index) {}

Value::~Value() {
  if (trace_ != nullptr) return;
  if (C10_UNLIKELY(abandoned.load(std::memory_order_relaxed))) {
    buffer_.Abandon();
    return;
  }
  device_->Drop(this);
}

void Value::Fill(PJRT_Buffer* buffer) {
  buffer_ = pjrt::Buffer(&device_->client().plugin(), buffer);
  bytes_ = static_cast<int64_t>(type_->bytes());
  device_->Add(this);
  launch_.store(LaunchState::kDone, std::memory_order_release);
}

void Value::Fail(const pjrt::Error& error) {
  failure_ = std::make_unique<const pjrt::Error>(error);
  device_->NoteFailedLaunch(*this, error);
  launch_.store(LaunchState::kFailed, std::memory_order_release);
}

void Value::AwaitLaunch() const {
  device_->queue().Await(*this);
  if (failure_) throw *failure_;
}

const void* Value::HostPointer() const {
  // Off, the host sees no more of a value than it does on a TPU.
  static const bool direct = [] {
    const char* text = std::getenv("TORCH_TPU_DIRECT_READ");
    return text == nullptr || std::string_view(text) != "0";
  }();
  if (!direct) return nullptr;
  try {
    return buffer().HostPointer();
  } catch (const pjrt::Error& error) {
    device_->RaiseFailureOf(*this, error);
  }
}

void Value::ToHost(void* destination, size_t bytes) const {
  try {
    buffer().ToHost(destination, bytes);
  } catch (const pjrt::Error& error) {
    device_->RaiseFailureOf(*this, error);
  }
}

void Value::BeginDonation() { device_->Remove(this); }

void Value::EndDonation(bool taken) {
  if (!taken) {
    device_->Add(this);
    return;
  }
  bytes_ = -1;
  buffer_.Reset();
}

}  // namespace torch_tpu::trace
