#include "pjrt/in_place.h"

#include <optional>
#include <utility>

namespace torch_tpu::pjrt {

Buffer FromHostInPlace(const Client& client, const void* data, PJRT_Buffer_Type type,
                       std::span<const int64_t> dims, const Device& device,
                       std::function<void()> done) {
  const Plugin& plugin = client.plugin();
  Buffer buffer;
  Event unused;
  try {
    TORCH_TPU_PJRT_ARGS(PJRT_Client_BufferFromHostBuffer_Args, args);
    args.client = client.raw();
    args.data = data;
    args.type = type;
    args.dims = dims.data();
    args.num_dims = dims.size();
    args.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableZeroCopy;
    args.device = device.raw();
    plugin.Check(plugin.api()->PJRT_Client_BufferFromHostBuffer(&args));
    unused = Event(&plugin, args.done_with_host_buffer);
    buffer = Buffer(&plugin, args.buffer);
    if (unused) {
      unused.OnReady([done](std::optional<Error>) { done(); });
      return buffer;
    }
  } catch (...) {
    // The buffer's end is the end of the plugin's use of the data.
    buffer.Reset();
    done();
    throw;
  }
  done();  // the copy is complete
  return buffer;
}

}  // namespace torch_tpu::pjrt
