#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "lowering/call.h"
#include "trace/signature.h"
#include "trace/value.h"

namespace torch_tpu::aten {

// Adds what a program that reads or writes `tensor` depends on: its dtype, its geometry and the
// type of its storage's value (`base`; nullptr if nothing was written yet). A whole storage, the
// usual case, is one word.
inline void AddTensor(trace::Signature& signature, const at::Tensor& tensor,
                      const trace::Type* base, bool with_offset = true) {
  constexpr uint64_t kViewFlag = uint64_t{1} << 63, kEmptyFlag = uint64_t{1} << 62;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const c10::IntArrayRef sizes = impl.sizes();
  const auto dtype = static_cast<uint64_t>(c10::typeMetaToScalarType(impl.dtype()));
  const uint64_t bits = uint64_t{tensor.is_conj()} | uint64_t{tensor.is_neg()} << 1;
  if (base != nullptr && bits == 0 && impl.storage_offset() == 0 && impl.is_contiguous() &&
      sizes.equals(base->dims) &&
      lowering::ToDType(static_cast<c10::ScalarType>(dtype)) == base->dtype) {
    signature.Add(reinterpret_cast<uint64_t>(base));
    return;
  }
  if (base != nullptr) {
    signature.Add(reinterpret_cast<uint64_t>(base) | kViewFlag);
  } else {
    signature.Add(tensor.storage().nbytes() | kViewFlag | kEmptyFlag);
  }
  const bool contiguous = impl.is_contiguous();
  signature.Add(dtype | bits << 8 | uint64_t{contiguous} << 10 | sizes.size() << 16);
  for (int64_t d : sizes) signature.Add(static_cast<uint64_t>(d));
  if (!contiguous) {
    for (int64_t d : impl.strides()) signature.Add(static_cast<uint64_t>(d));
  }
  if (with_offset) signature.Add(static_cast<uint64_t>(impl.storage_offset()));
}

// How many elements lie between the first of a view and its last, both included.
inline int64_t SpanOf(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  int64_t span = 1;
  for (size_t i = 0; i < sizes.size(); ++i) span += (sizes[i] - 1) * strides[i];
  return span;
}

// Whether a view leaves out less than it takes of what it spans, as rows without their last
// elements do. Views that repeat elements do not count.
inline bool HasSmallGaps(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  const int64_t count = c10::multiply_integers(sizes);
  return SpanOf(sizes, strides) >= count && 2 * SpanOf(sizes, strides) < 3 * count &&
         std::find(strides.begin(), strides.end(), 0) == strides.end();
}

// A part of a larger tensor, in one piece or nearly so.
inline bool IsPiece(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || tensor.is_conj() || tensor.is_neg()) return false;
  if (tensor.is_contiguous()) return tensor.nbytes() < tensor.storage().nbytes();
  // With gaps only if there is room for another.
  return 2 * tensor.nbytes() < tensor.storage().nbytes() &&
         HasSmallGaps(tensor.sizes(), tensor.strides());
}

}  // namespace torch_tpu::aten
