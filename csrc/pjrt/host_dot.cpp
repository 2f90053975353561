#include "pjrt/host_dot.h"

#include <map>
#include <mutex>

#include "pjrt/ffi.h"
#include "pjrt/small_dot.h"

namespace torch_tpu::pjrt {
namespace {

template <bool transposed_lhs, bool transposed_rhs>
ffi::Error* HostDot(ffi::CallFrame* frame) {
  if (AnswersMetadata(frame)) return nullptr;
  if (frame->stage != ffi::kExecuteStage) return nullptr;
  if (frame->arguments.size != 2 || frame->results.size != 1) {
    return InvalidArgument(frame, "torch_tpu_dot: takes two operands and has one result");
  }
  const ffi::Buffer &lhs = *frame->arguments.buffers[0], &rhs = *frame->arguments.buffers[1];
  const ffi::Buffer& out = *frame->results.buffers[0];
  for (const ffi::Buffer* buffer : {&lhs, &rhs, &out}) {
    if (buffer->dtype != ffi::kFloat32 || buffer->rank != 3) {
      return InvalidArgument(frame, "torch_tpu_dot: operands and result are [batch, _, _] float32");
    }
  }
  const int64_t batch = out.dims[0];
  const SmallDot dot{.m = out.dims[1],
                     .n = out.dims[2],
                     .k = lhs.dims[transposed_lhs ? 1 : 2],
                     .transposed_lhs = transposed_lhs,
                     .transposed_rhs = transposed_rhs};
  if (lhs.dims[0] != batch || rhs.dims[0] != batch || lhs.dims[transposed_lhs ? 2 : 1] != dot.m ||
      rhs.dims[transposed_rhs ? 2 : 1] != dot.k || rhs.dims[transposed_rhs ? 1 : 2] != dot.n) {
    return InvalidArgument(frame, "torch_tpu_dot: the operands' dimensions do not fit");
  }
  const auto* a = static_cast<const float*>(lhs.data);
  const auto* b = static_cast<const float*>(rhs.data);
  auto* c = static_cast<float*>(out.data);
  for (int64_t i = 0; i < batch; ++i) {
    MultiplySmall(dot, a + i * dot.m * dot.k, b + i * dot.k * dot.n, c + i * dot.m * dot.n);
  }
  return nullptr;
}

}  // namespace

std::string HostDotName(bool transposed_lhs, bool transposed_rhs) {
  return std::string("torch_tpu_dot_") + (transposed_lhs ? 't' : 'n') +
         (transposed_rhs ? 't' : 'n');
}

bool RegisterHostDot(const Plugin& plugin) {
  // A plugin is never unloaded and takes a name only once.
  static std::mutex* mutex = new std::mutex;
  static auto* registered = new std::map<const Plugin*, bool>;
  std::lock_guard lock(*mutex);
  const auto [entry, first] = registered->emplace(&plugin, false);
  if (!first) return entry->second;
  try {
    entry->second =
        RegisterHostFunction(plugin, HostDotName(false, false), &HostDot<false, false>) &&
        RegisterHostFunction(plugin, HostDotName(false, true), &HostDot<false, true>) &&
        RegisterHostFunction(plugin, HostDotName(true, false), &HostDot<true, false>) &&
        RegisterHostFunction(plugin, HostDotName(true, true), &HostDot<true, true>);
  } catch (const Error&) {
    // A plugin that refuses host functions computes every dot itself.
  }
  return entry->second;
}

}  // namespace torch_tpu::pjrt
