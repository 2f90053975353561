#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "stablehlo/builder.h"

namespace torch_tpu::trace {

// A strided view of a storage whose bytes are one dense row-major array (the base).
struct ViewSpec {
  stablehlo::DType dtype = stablehlo::DType::kF32;
  stablehlo::Dims sizes, strides;
  int64_t offset = 0;
  bool conjugate = false, negative = false;

  int64_t numel() const;
};

// True if the view is the base itself.
bool IsPlain(const stablehlo::Type& base, const ViewSpec& view);

// The view's elements, from the base's value. Built from reshape, slice, transpose and broadcast
// where the strides nest, else a gather.
stablehlo::Value ReadView(stablehlo::Value base, const ViewSpec& view);

// The type the base has after `update` was written through the view. `base` is nullptr for a
// storage that nothing was written to yet, of `storage_bytes` bytes.
stablehlo::Type BaseAfterWrite(const stablehlo::Type* base, const ViewSpec& view,
                               int64_t storage_bytes);
// True if the write replaces every element, so that the old base is not read.
bool CoversBase(const stablehlo::Type* base, const ViewSpec& view, int64_t storage_bytes);

// The base with `update` (the view's shape and dtype) written through the view: of type
// BaseAfterWrite. `base` may be undefined where CoversBase holds.
stablehlo::Value WriteView(stablehlo::Value base, stablehlo::Value update, const ViewSpec& view,
                           const stablehlo::Type& after);

}  // namespace torch_tpu::trace
