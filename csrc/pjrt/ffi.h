#pragma once

#include <string_view>

#include "pjrt/plugin.h"
#include "pjrt/xla_ffi_abi.h"

namespace torch_tpu::pjrt {

// Makes `handler` the custom call `name` of every program of the plugin's CPU platform. False if
// the plugin cannot register handlers; throws what it says if it refuses this one (a name taken).
bool RegisterHostFunction(const Plugin& plugin, std::string_view name, ffi::Handler handler);

// What a handler does first: answers the plugin's question about the interface it was built for.
// True if that was all the call wanted.
bool AnswersMetadata(ffi::CallFrame* frame);

// An invalid-argument error for the handler to return; `message` is copied.
ffi::Error* InvalidArgument(ffi::CallFrame* frame, const char* message);

}  // namespace torch_tpu::pjrt
