#pragma once

#include "aten/operator_entry.h"
#include "aten/plan.h"

namespace torch_tpu::aten {

// Tells `operation`, just made for a call that had no plan, why there was none: what differs from
// the call of this operator that was planned last, "argument 1 (other) was f32[8,64], now
// f32[8,128]; dim was 0, now 1". Also the Python line that is running. `storages_shared`: the
// signature says which tensors share a storage. Takes the GIL; hold no lock.
void ExplainMiss(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments,
                 const Gathered& gathered, bool storages_shared, trace::Operation& operation);

}  // namespace torch_tpu::aten
