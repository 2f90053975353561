#pragma once

#include <ATen/core/Tensor.h>

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

// A part of a larger tensor, in one piece.
inline bool IsPiece(const at::Tensor& tensor) {
  return tensor.is_contiguous() && tensor.numel() > 0 && !tensor.is_conj() && !tensor.is_neg() &&
         tensor.nbytes() < tensor.storage().nbytes();
}

}  // namespace torch_tpu::aten
