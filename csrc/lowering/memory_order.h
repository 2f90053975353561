#pragma once

#include <c10/core/MemoryFormat.h>

#include <cstdint>
#include <vector>

#include "lowering/rule.h"

namespace torch_tpu::lowering {

// Strides of a result in the argument's `suggest_memory_format`: channels-last, or empty for
// contiguous.
inline std::vector<int64_t> SuggestedStrides(const ShapeTensor& like) {
  if (like.sizes.size() == 4 && c10::is_channels_last_strides_2d(like.sizes, like.strides)) {
    return c10::get_channels_last_strides_2d(like.sizes);
  }
  if (like.sizes.size() == 5 && c10::is_channels_last_strides_3d(like.sizes, like.strides)) {
    return c10::get_channels_last_strides_3d(like.sizes);
  }
  return {};
}

}  // namespace torch_tpu::lowering
