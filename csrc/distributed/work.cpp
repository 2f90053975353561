#include "distributed/work.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

#include "distributed/collective.h"
#include "distributed/serial_queue.h"

namespace torch_tpu::distributed {
namespace {

// The profiler keeps the pointer.
const char* ProfilingTitle(c10d::OpType type) {
  static const auto* titles = [] {
    auto* made = new std::array<std::string, 256>;
    for (size_t i = 0; i < made->size(); ++i) {
      (*made)[i] = std::string("tpu_dist:") + CallName(static_cast<c10d::OpType>(i));
    }
    return made;
  }();
  return (*titles)[static_cast<uint8_t>(type)].c_str();
}

c10d::WorkResult ResultOf(const std::exception_ptr& error) {
  if (!error) return c10d::WorkResult::SUCCESS;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return std::string(e.what()).find("timed out") != std::string::npos
               ? c10d::WorkResult::TIMEOUT
               : c10d::WorkResult::COMM_ERROR;
  } catch (...) {
    return c10d::WorkResult::UNKNOWN;
  }
}

}  // namespace

TpuWork::TpuWork(int rank, c10d::OpType type, uint64_t sequence, std::string description,
                 const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs)
    : Work(rank, type, ProfilingTitle(type), inputs),
      sequence_(sequence),
      description_(std::move(description)),
      outputs_(std::move(outputs)) {}

void TpuWork::Complete(std::exception_ptr error) {
  std::vector<std::function<void(std::exception_ptr)>> then;
  {
    std::lock_guard lock(mutex_);
    if (completed_) return;
    completed_ = true;
    exception_ = error;
    then.swap(then_);
    if (recordFunctionEndCallback_) {
      recordFunctionEndCallback_();
      recordFunctionEndCallback_ = nullptr;
    }
  }
  cv_.notify_all();
  for (auto& function : then) function(error);
}

void TpuWork::WhenComplete(std::function<void(std::exception_ptr)> then) {
  std::exception_ptr error;
  {
    std::lock_guard lock(mutex_);
    if (!completed_) {
      then_.push_back(std::move(then));
      return;
    }
    error = exception_;
  }
  then(error);
}

bool TpuWork::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto complete = [this] { return completed_; };
  if (timeout == kNoTimeout) {
    cv_.wait(lock, complete);
  } else if (!cv_.wait_for(lock, timeout, complete)) {
    C10_THROW_ERROR(DistBackendError, "tpu_dist: Work.wait() timed out after " +
                                          std::to_string(timeout.count()) + " ms in " +
                                          description_ + ", which goes on");
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void TpuWork::abort() {
  try {
    C10_THROW_ERROR(DistBackendError, "tpu_dist: " + description_ + " was aborted");
  } catch (...) {
    Complete(std::current_exception());
  }
}

c10::intrusive_ptr<c10::ivalue::Future> TpuWork::getFuture() {
  {
    std::lock_guard lock(mutex_);
    if (future_) return future_;
    std::vector<c10::Device> devices;
    for (const at::Tensor& tensor : outputs_) {
      const c10::Device device = tensor.device();
      if (!device.is_cpu() && std::find(devices.begin(), devices.end(), device) == devices.end()) {
        devices.push_back(device);
      }
    }
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::move(devices));
  }
  WhenComplete([future = future_, outputs = outputs_](const std::exception_ptr& error) {
    RunElsewhere([future, outputs, error] {
      if (error) {
        future->setError(error);
      } else {
        future->markCompleted(c10::IValue(outputs));
      }
    });
  });
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> TpuWork::getFutureResult() {
  {
    std::lock_guard lock(mutex_);
    if (future_result_) return future_result_;
    future_result_ = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  }
  WhenComplete([future = future_result_](const std::exception_ptr& error) {
    RunElsewhere([future, error] {
      future->markCompleted(c10::IValue(static_cast<int64_t>(ResultOf(error))));
    });
  });
  return future_result_;
}

}  // namespace torch_tpu::distributed
