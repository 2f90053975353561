#pragma once

#include <functional>
#include <span>

#include "pjrt/client.h"

namespace torch_tpu::pjrt {

// A buffer of `data` (dense, row-major) that is the memory itself where the plugin can have it so:
// XLA:CPU with data aligned to 64 bytes. Elsewhere it is a copy. The bytes must not change until
// `done` is called (from any thread, exactly once, also if this throws): then they are not needed
// any more.
Buffer FromHostInPlace(const Client& client, const void* data, PJRT_Buffer_Type type,
                       std::span<const int64_t> dims, const Device& device,
                       std::function<void()> done);

}  // namespace torch_tpu::pjrt
