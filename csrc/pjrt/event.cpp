#include "pjrt/event.h"

#include <memory>
#include <utility>

namespace torch_tpu::pjrt {
namespace {

struct Registration {
  const Plugin* plugin;
  std::function<void(std::optional<Error>)> callback;
};

void Deliver(PJRT_Error* error, void* argument) noexcept {
  std::unique_ptr<Registration> registration(static_cast<Registration*>(argument));
  std::optional<Error> result;
  if (error != nullptr) result = registration->plugin->TakeError(error);
  registration->callback(std::move(result));
}

}  // namespace

Event& Event::operator=(Event&& other) noexcept {
  if (this != &other) {
    Reset();
    plugin_ = other.plugin_;
    event_ = std::exchange(other.event_, nullptr);
  }
  return *this;
}

void Event::Reset() {
  if (event_ == nullptr) return;
  TORCH_TPU_PJRT_ARGS(PJRT_Event_Destroy_Args, args);
  args.event = std::exchange(event_, nullptr);
  plugin_->Ignore(plugin_->api()->PJRT_Event_Destroy(&args));
}

bool Event::IsReady() const {
  TORCH_TPU_PJRT_ARGS(PJRT_Event_IsReady_Args, args);
  args.event = event_;
  plugin_->Check(plugin_->api()->PJRT_Event_IsReady(&args));
  return args.is_ready;
}

void Event::Await() const {
  TORCH_TPU_PJRT_ARGS(PJRT_Event_Await_Args, args);
  args.event = event_;
  plugin_->Check(plugin_->api()->PJRT_Event_Await(&args));
}

void Event::OnReady(std::function<void(std::optional<Error>)> callback) const {
  auto registration = std::unique_ptr<Registration>(new Registration{plugin_, std::move(callback)});
  TORCH_TPU_PJRT_ARGS(PJRT_Event_OnReady_Args, args);
  args.event = event_;
  args.callback = &Deliver;
  args.user_arg = registration.get();
  // Once registered, `registration` may already be gone when the call returns: let go of it before.
  Registration* handed_over = registration.release();
  if (PJRT_Error* error = plugin_->api()->PJRT_Event_OnReady(&args)) {
    delete handed_over;
    throw plugin_->TakeError(error);
  }
}

}  // namespace torch_tpu::pjrt
