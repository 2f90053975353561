#pragma once

#include <c10/core/MemoryFormat.h>

#include <cstdint>
#include <vector>

#include "lowering/rule.h"

namespace torch_tpu::lowering {

// What `suggest_memory_format` says of an argument.
inline c10::MemoryFormat SuggestedFormat(const ShapeTensor& t) {
  if (t.sizes.size() == 4 && c10::is_channels_last_strides_2d(t.sizes, t.strides)) {
    return c10::MemoryFormat::ChannelsLast;
  }
  if (t.sizes.size() == 5 && c10::is_channels_last_strides_3d(t.sizes, t.strides)) {
    return c10::MemoryFormat::ChannelsLast3d;
  }
  return c10::MemoryFormat::Contiguous;
}

// Strides of a result in a format; empty for contiguous.
inline std::vector<int64_t> StridesIn(c10::MemoryFormat format, const std::vector<int64_t>& sizes) {
  if (format == c10::MemoryFormat::ChannelsLast) return c10::get_channels_last_strides_2d(sizes);
  if (format == c10::MemoryFormat::ChannelsLast3d) return c10::get_channels_last_strides_3d(sizes);
  return {};
}

// Strides of a result of the argument's sizes, in its suggested format.
inline std::vector<int64_t> SuggestedStrides(const ShapeTensor& like) {
  return StridesIn(SuggestedFormat(like), like.sizes);
}

// Strides of a concatenation: the format that all arguments suggest, else contiguous.
inline std::vector<int64_t> CommonStrides(const std::vector<ShapeTensor>& tensors,
                                          const std::vector<int64_t>& sizes) {
  c10::MemoryFormat common = c10::MemoryFormat::Contiguous;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const c10::MemoryFormat format = SuggestedFormat(tensors[i]);
    if (i > 0 && format != common) return {};
    common = format;
  }
  return StridesIn(common, sizes);
}

}  // namespace torch_tpu::lowering
