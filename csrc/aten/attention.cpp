// Which implementation F.scaled_dot_product_attention takes on this device.
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

namespace torch_tpu::aten {
namespace {

// True if `tensor` broadcasts to `sizes`.
bool BroadcastsTo(const at::Tensor& tensor, c10::SymIntArrayRef sizes) {
  if (tensor.dim() > static_cast<int64_t>(sizes.size())) return false;
  const auto offset = static_cast<int64_t>(sizes.size()) - tensor.dim();
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.sym_size(d) != 1 && tensor.sym_size(d) != sizes[offset + d]) return false;
  }
  return true;
}

// The fused operator's rule takes [batch, heads, length, features] without broadcasting of batches;
// query heads may share key heads where the caller says so. Sizes may be symbols: under
// torch.compile asking for a number would make each of them a constant.
bool FitsFused(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, bool enable_gqa) {
  for (const at::Tensor* t : {&query, &key, &value}) {
    if (t->is_nested() || t->layout() != c10::kStrided || t->dim() != 4) return false;
    if (t->scalar_type() != query.scalar_type()) return false;
    if (t->sym_size(0) != query.sym_size(0)) return false;
  }
  if (!c10::isFloatingType(query.scalar_type())) return false;
  const c10::SymInt heads = query.sym_size(1), shared = key.sym_size(1);
  if (value.sym_size(1) != shared || (heads != shared && !enable_gqa)) return false;
  if (shared == 0 || heads % shared != 0) return false;
  if (key.sym_size(2) != value.sym_size(2) || key.sym_size(3) != query.sym_size(3)) return false;
  const c10::SymInt scores[] = {query.sym_size(0), heads, query.sym_size(2), key.sym_size(2)};
  return !mask || BroadcastsTo(*mask, scores);
}

int64_t FusedChoice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const std::optional<at::Tensor>& mask, double, bool, std::optional<double>,
                    bool enable_gqa) {
  const at::Context& context = at::globalContext();
  at::SDPBackend choice = at::SDPBackend::error;
  if (context.userEnabledOverrideableSDP() && FitsFused(query, key, value, mask, enable_gqa)) {
    choice = at::SDPBackend::overrideable;
  } else if (context.userEnabledMathSDP()) {
    choice = at::SDPBackend::math;
  }
  TORCH_CHECK(choice != at::SDPBackend::error,
              "No viable backend for scaled_dot_product_attention was found.");
  return static_cast<int64_t>(choice);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_fused_sdp_choice", &FusedChoice); }

}  // namespace
}  // namespace torch_tpu::aten

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torch_tpu::aten::FusedChoice)
}  // namespace at::native
