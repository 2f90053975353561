#pragma once

#include <string>
#include <vector>

#include "aten/operator_entry.h"
#include "aten/plan.h"

namespace torch_tpu::aten {

// What a part of a signature is called and what it was.
struct SignaturePart {
  std::string name, text;
};

// Which parts differ, "argument 1 (other) was f32[8,64], now f32[8,128]; dim was 0, now 1": of
// those that both have, the first few.
std::string Difference(const std::vector<SignaturePart>& before,
                       const std::vector<SignaturePart>& now);
// As much of a tensor as AddTensor (tensor_signature.h) tells apart: "f32[64,8] (strides [1,64] of
// f32[8,64])". `base` as there.
std::string SignatureText(const at::Tensor& tensor, const trace::Type* base);

// Tells `operation`, just made for a call that had no plan, why there was none: what differs from
// the call of this operator that was planned last, "argument 1 (other) was f32[8,64], now
// f32[8,128]; dim was 0, now 1". Also the Python line that is running. `storages_shared`: the
// signature says which tensors share a storage. Takes the GIL; hold no lock.
void ExplainMiss(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments,
                 const Gathered& gathered, bool storages_shared, trace::Operation& operation);

}  // namespace torch_tpu::aten
