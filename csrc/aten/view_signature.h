#pragma once

#include "trace/signature.h"
#include "trace/view.h"

namespace torch_tpu::aten {

// Everything that a view's recipe depends on, but the base.
inline void AddView(trace::Signature& signature, const trace::ViewSpec& view) {
  signature.Add(static_cast<uint64_t>(view.dtype) | uint64_t{view.conjugate} << 8 |
                uint64_t{view.negative} << 9 | static_cast<uint64_t>(view.sizes.size()) << 16);
  for (int64_t d : view.sizes) signature.Add(d);
  for (int64_t d : view.strides) signature.Add(d);
  signature.Add(view.offset);
}

}  // namespace torch_tpu::aten
