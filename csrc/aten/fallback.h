#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_tpu::aten {

enum class FallbackPolicy { kWarn, kSilent, kError };

struct FallbackRecord {
  std::string op;
  int64_t count = 0;
  std::string where;  // Python line of the first call
};

// Runs `op` on CPU copies of its arguments, counted and reported. Refuses what it would get
// silently wrong.
void CpuFallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

std::vector<FallbackRecord> Fallbacks();
void ClearFallbacks();
FallbackPolicy GetFallbackPolicy();  // from TORCH_TPU_FALLBACK (warn, silent, error) unless set
void SetFallbackPolicy(FallbackPolicy policy);

}  // namespace torch_tpu::aten
