#include "pjrt/buffer.h"

#include <array>
#include <utility>

namespace torch_tpu::pjrt {
namespace {

struct TypeInfo {
  const char* name;
  size_t bytes;
};

TypeInfo Info(PJRT_Buffer_Type type) {
  switch (type) {
    case PJRT_Buffer_Type_PRED:
      return {"pred", 1};
    case PJRT_Buffer_Type_S2:
      return {"s2", 1};
    case PJRT_Buffer_Type_S4:
      return {"s4", 1};
    case PJRT_Buffer_Type_S8:
      return {"s8", 1};
    case PJRT_Buffer_Type_S16:
      return {"s16", 2};
    case PJRT_Buffer_Type_S32:
      return {"s32", 4};
    case PJRT_Buffer_Type_S64:
      return {"s64", 8};
    case PJRT_Buffer_Type_U2:
      return {"u2", 1};
    case PJRT_Buffer_Type_U4:
      return {"u4", 1};
    case PJRT_Buffer_Type_U8:
      return {"u8", 1};
    case PJRT_Buffer_Type_U16:
      return {"u16", 2};
    case PJRT_Buffer_Type_U32:
      return {"u32", 4};
    case PJRT_Buffer_Type_U64:
      return {"u64", 8};
    case PJRT_Buffer_Type_F16:
      return {"f16", 2};
    case PJRT_Buffer_Type_F32:
      return {"f32", 4};
    case PJRT_Buffer_Type_F64:
      return {"f64", 8};
    case PJRT_Buffer_Type_BF16:
      return {"bf16", 2};
    case PJRT_Buffer_Type_C64:
      return {"c64", 8};
    case PJRT_Buffer_Type_C128:
      return {"c128", 16};
    case PJRT_Buffer_Type_F8E5M2:
      return {"f8e5m2", 1};
    case PJRT_Buffer_Type_F8E4M3FN:
      return {"f8e4m3fn", 1};
    case PJRT_Buffer_Type_F8E4M3B11FNUZ:
      return {"f8e4m3b11fnuz", 1};
    case PJRT_Buffer_Type_F8E5M2FNUZ:
      return {"f8e5m2fnuz", 1};
    case PJRT_Buffer_Type_F8E4M3FNUZ:
      return {"f8e4m3fnuz", 1};
    case PJRT_Buffer_Type_F8E4M3:
      return {"f8e4m3", 1};
    case PJRT_Buffer_Type_F8E3M4:
      return {"f8e3m4", 1};
    case PJRT_Buffer_Type_F8E8M0FNU:
      return {"f8e8m0fnu", 1};
    case PJRT_Buffer_Type_F4E2M1FN:
      return {"f4e2m1fn", 1};
    case PJRT_Buffer_Type_TOKEN:
      return {"token", 0};
    case PJRT_Buffer_Type_INVALID:
      break;
  }
  return {"invalid", 0};
}

// Elements smaller than a byte may be packed in the device's memory.
bool IsSubByte(PJRT_Buffer_Type type) {
  return type == PJRT_Buffer_Type_S2 || type == PJRT_Buffer_Type_S4 ||
         type == PJRT_Buffer_Type_U2 || type == PJRT_Buffer_Type_U4 ||
         type == PJRT_Buffer_Type_F4E2M1FN;
}

}  // namespace

size_t ByteSize(PJRT_Buffer_Type type) { return Info(type).bytes; }
const char* TypeName(PJRT_Buffer_Type type) { return Info(type).name; }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    Reset();
    plugin_ = other.plugin_;
    buffer_ = std::exchange(other.buffer_, nullptr);
  }
  return *this;
}

void Buffer::Reset() {
  if (buffer_ == nullptr) return;
  TORCH_TPU_PJRT_ARGS(PJRT_Buffer_Destroy_Args, args);
  args.buffer = std::exchange(buffer_, nullptr);
  plugin_->Ignore(plugin_->api()->PJRT_Buffer_Destroy(&args));
}

PJRT_Buffer_Type Buffer::type() const {
  TORCH_TPU_PJRT_ARGS(PJRT_Buffer_ElementType_Args, args);
  args.buffer = buffer_;
  plugin_->Check(plugin_->api()->PJRT_Buffer_ElementType(&args));
  return args.type;
}

std::vector<int64_t> Buffer::dims() const {
  TORCH_TPU_PJRT_ARGS(PJRT_Buffer_Dimensions_Args, args);
  args.buffer = buffer_;
  plugin_->Check(plugin_->api()->PJRT_Buffer_Dimensions(&args));
  return std::vector<int64_t>(args.dims, args.dims + args.num_dims);
}

size_t Buffer::on_device_bytes() const {
  TORCH_TPU_PJRT_ARGS(PJRT_Buffer_OnDeviceSizeInBytes_Args, args);
  args.buffer = buffer_;
  plugin_->Check(plugin_->api()->PJRT_Buffer_OnDeviceSizeInBytes(&args));
  return args.on_device_size_in_bytes;
}

PJRT_Device* Buffer::device() const {
  TORCH_TPU_PJRT_ARGS(PJRT_Buffer_Device_Args, args);
  args.buffer = buffer_;
  plugin_->Check(plugin_->api()->PJRT_Buffer_Device(&args));
  return args.device;
}

bool Buffer::deleted() const {
  TORCH_TPU_PJRT_ARGS(PJRT_Buffer_IsDeleted_Args, args);
  args.buffer = buffer_;
  plugin_->Check(plugin_->api()->PJRT_Buffer_IsDeleted(&args));
  return args.is_deleted;
}

void Buffer::Await() const { ReadyEvent().Await(); }
bool Buffer::IsReady() const { return ReadyEvent().IsReady(); }

Event Buffer::ReadyEvent() const {
  TORCH_TPU_PJRT_ARGS(PJRT_Buffer_ReadyEvent_Args, args);
  args.buffer = buffer_;
  plugin_->Check(plugin_->api()->PJRT_Buffer_ReadyEvent(&args));
  return Event(plugin_, args.event);
}

void Buffer::ToHost(void* destination, size_t bytes) const {
  ToHostAsync(destination, bytes).Await();
}

Event Buffer::ToHostAsync(void* destination, size_t bytes) const {
  const PJRT_Api* api = plugin_->api();
  TORCH_TPU_PJRT_ARGS(PJRT_Buffer_Dimensions_Args, shape);
  shape.buffer = buffer_;
  plugin_->Check(api->PJRT_Buffer_Dimensions(&shape));
  size_t needed = ByteSize(type());
  for (size_t i = 0; i < shape.num_dims; ++i) needed *= static_cast<size_t>(shape.dims[i]);
  if (bytes != needed) {
    throw Error(Code::kInvalidArgument, "copy to host: the buffer has " + std::to_string(needed) +
                                            " bytes, the destination " + std::to_string(bytes));
  }

  // Without a layout the plugin would write the device's own order of dimensions.
  constexpr size_t kInline = 8;
  std::array<int64_t, kInline> inline_order;
  std::vector<int64_t> long_order;
  int64_t* order = inline_order.data();
  if (shape.num_dims > kInline) {
    long_order.resize(shape.num_dims);
    order = long_order.data();
  }
  for (size_t i = 0; i < shape.num_dims; ++i) {
    order[i] = static_cast<int64_t>(shape.num_dims - 1 - i);
  }
  TORCH_TPU_PJRT_ARGS(PJRT_Buffer_MemoryLayout, layout);
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE;
  layout.tiled.minor_to_major = order;
  layout.tiled.minor_to_major_size = shape.num_dims;

  // A null destination would be a question for the size; an empty tensor may well have one.
  char nowhere;
  TORCH_TPU_PJRT_ARGS(PJRT_Buffer_ToHostBuffer_Args, args);
  args.src = buffer_;
  args.host_layout = &layout;
  args.dst = destination != nullptr || bytes != 0 ? destination : &nowhere;
  args.dst_size = bytes;
  if (args.dst == nullptr) throw Error(Code::kInvalidArgument, "copy to host: null destination");
  plugin_->Check(api->PJRT_Buffer_ToHostBuffer(&args));
  return Event(plugin_, args.event);
}

const void* Buffer::HostPointer() const {
  const PJRT_Api* api = plugin_->api();
  if (!TORCH_TPU_PJRT_HAS(api, PJRT_Buffer_IsOnCpu) ||
      !TORCH_TPU_PJRT_HAS(api, PJRT_Buffer_UnsafePointer)) {
    return nullptr;
  }
  TORCH_TPU_PJRT_ARGS(PJRT_Buffer_IsOnCpu_Args, on_cpu);
  on_cpu.buffer = buffer_;
  plugin_->Check(api->PJRT_Buffer_IsOnCpu(&on_cpu));
  if (!on_cpu.is_on_cpu || IsSubByte(type())) return nullptr;
  Await();
  TORCH_TPU_PJRT_ARGS(PJRT_Buffer_UnsafePointer_Args, args);
  args.buffer = buffer_;
  if (PJRT_Error* error = api->PJRT_Buffer_UnsafePointer(&args)) {
    Error reason = plugin_->TakeError(error);
    if (reason.code() == Code::kUnimplemented) return nullptr;
    throw reason;
  }
  return reinterpret_cast<const void*>(args.buffer_pointer);
}

Buffer Buffer::CopyTo(PJRT_Device* device) const {
  TORCH_TPU_PJRT_ARGS(PJRT_Buffer_CopyToDevice_Args, args);
  args.buffer = buffer_;
  args.dst_device = device;
  plugin_->Check(plugin_->api()->PJRT_Buffer_CopyToDevice(&args));
  return Buffer(plugin_, args.dst_buffer);
}

}  // namespace torch_tpu::pjrt
