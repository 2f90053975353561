#pragma once

namespace torch_tpu::aten {

// Registers the hooks interface and the allocator with PyTorch. Once.
void RegisterHooks();

}  // namespace torch_tpu::aten
