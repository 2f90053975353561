#include "distributed/described_transport.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "distributed/step.h"

namespace torch_tpu::distributed {

void DescribedTransport::Run(Collective collective, c10::intrusive_ptr<TpuWork> work) {
  const c10::NoGradGuard no_grad;
  for (const Part& part : collective.parts) {
    if (part.inputs.empty() || part.outputs.empty()) continue;
    at::Tensor have = Joined(part.inputs).reshape(-1);
    const int64_t wanted = Count(part.outputs);
    if (wanted == have.numel() * size_) {
      have = have.repeat({size_});
    } else if (wanted * size_ == have.numel()) {
      have = have.narrow(0, rank_ * wanted, wanted);
    }
    int64_t offset = 0;
    for (const at::Tensor& output : part.outputs) {
      const int64_t count = std::min(output.numel(), have.numel() - offset);
      if (count == output.numel()) {
        output.copy_(have.narrow(0, offset, count).view(output.sizes()));
      }
      offset += count;
    }
  }
  work->Complete();
}

void DescribedTransport::Send(const at::Tensor&, int, int, c10::intrusive_ptr<TpuWork> work) {
  work->Complete();
}

void DescribedTransport::Receive(const at::Tensor&, int peer, int,
                                 c10::intrusive_ptr<TpuWork> work) {
  work->set_source_rank(std::max(peer, 0));
  work->Complete();
}

}  // namespace torch_tpu::distributed
