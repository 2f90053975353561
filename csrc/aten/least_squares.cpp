// linalg_lstsq: whether it returns residuals depends on the ranks of the matrices, so it is no
// rule but composed of operators that have one.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "aten/kernel.h"
#include "aten/resize.h"

namespace torch_tpu::aten {
namespace {

constexpr const char* kName = "torch.linalg.lstsq";

// Solution, residuals, ranks, singular values; what a driver does not give is empty.
using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

enum class Driver { kGels, kGelsy, kGelsd, kGelss };

Driver DriverNamed(std::optional<c10::string_view> name) {
  if (!name.has_value()) return Driver::kGelsy;  // as on CPU
  std::string lower(*name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::string_view kNames[] = {"gels", "gelsy", "gelsd", "gelss"};
  const auto* found = std::find(std::begin(kNames), std::end(kNames), lower);
  TORCH_CHECK(found != std::end(kNames), kName,
              ": parameter `driver` should be one of (gels, gelsy, gelsd, gelss)");
  return static_cast<Driver>(found - std::begin(kNames));
}

double Epsilon(c10::ScalarType dtype) {
  switch (c10::toRealValueType(dtype)) {
    case at::kFloat:
      return std::numeric_limits<float>::epsilon();
    case at::kDouble:
      return std::numeric_limits<double>::epsilon();
    default:
      TORCH_CHECK(false, "This function doesn't handle types other than float and double");
  }
}

// Dimensions of both that are not those of the matrices, broadcast.
std::vector<int64_t> BatchOf(const at::Tensor& a, const at::Tensor& b) {
  return at::infer_size(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2));
}

// As LAPACK's gels, which takes A's full rank for granted: R x = Q^H b, or for wide matrices the
// shortest solution, x = Q R^-H b with A^H = Q R.
at::Tensor SolveFullRank(const at::Tensor& a, const at::Tensor& b) {
  const bool tall = a.size(-2) >= a.size(-1);
  const auto [q, r] = at::linalg_qr(tall ? a : a.mH(), "reduced");
  // A matrix of zeros is not refused; its solution is 0.
  const at::Tensor any = a.ne(0).any(-1).any(-1);
  const at::Tensor zero = r.diagonal(0, -2, -1).eq(0).logical_and(any.unsqueeze(-1));
  if (zero.numel() > 0) {
    const at::Tensor info = at::argmax(zero.to(at::kInt), -1).add(1).mul(zero.any(-1));
    at::_linalg_check_errors(info.to(at::kInt), kName, a.dim() == 2);
  }
  const at::Tensor x = tall
                           ? at::linalg_solve_triangular(r, at::matmul(q.mH(), b), /*upper=*/true)
                           : at::matmul(q, at::linalg_solve_triangular(r.mH(), b, /*upper=*/false));
  return at::where(any.unsqueeze(-1).unsqueeze(-1), x, at::zeros({}, x.options()));
}

Results Solve(const at::Tensor& a, const at::Tensor& right, std::optional<double> rcond,
              std::optional<c10::string_view> driver_name) {
  TORCH_CHECK(a.dim() >= 2, kName, ": input must have at least 2 dimensions.");
  TORCH_CHECK(right.dim() >= 1, kName, ": other must have at least 1 dimension.");
  TORCH_CHECK(a.scalar_type() == right.scalar_type(), kName,
              ": Expected input and other to have the same dtype, but got input's dtype ",
              a.scalar_type(), " and other's dtype ", right.scalar_type());
  TORCH_CHECK(a.device() == right.device(), kName,
              ": Expected input and other to be on the same device, but found ", a.device(),
              " and ", right.device(), " instead.");
  const int64_t difference = a.dim() - right.dim();
  TORCH_CHECK(difference == 0 || difference == 1, kName,
              ": input.dim() must be greater or equal to other.dim() and (input.dim() - "
              "other.dim()) <= 1");
  const bool vectors =
      right.dim() == 1 || (difference == 1 && right.sizes() == a.sizes().slice(0, a.dim() - 1));
  TORCH_CHECK(a.size(-2) == right.size(vectors ? -1 : -2), kName,
              ": input.size(-2) should match other.size(", vectors ? -1 : -2, ")");
  const at::Tensor b = difference == 1 ? right.unsqueeze(-1) : right;
  const std::vector<int64_t> batch = BatchOf(a, b);
  const Driver driver = DriverNamed(driver_name);
  const int64_t m = a.size(-2), n = a.size(-1), k = b.size(-1);
  const double cutoff = rcond.has_value() && *rcond >= 0
                            ? *rcond
                            : Epsilon(a.scalar_type()) * static_cast<double>(std::max(m, n));

  const at::TensorOptions real = a.options().dtype(c10::toRealValueType(a.scalar_type()));
  at::Tensor rank = at::empty({0}, a.options().dtype(at::kLong));
  at::Tensor singular = at::empty({0}, real), residuals = at::empty({0}, real), x;
  bool full_rank = true;
  if (driver == Driver::kGels) {
    x = SolveFullRank(a, b);
  } else {
    // gelsy's pivoted QR decomposition finds the same shortest solution.
    const auto [u, s, vh] = at::linalg_svd(a, /*full_matrices=*/false);
    const at::Tensor counts =
        s.numel() > 0 ? s.gt(s.amax(-1, /*keepdim=*/true).mul(cutoff)) : s.to(at::kBool);
    const at::Tensor inverse = at::where(counts, s.reciprocal(), at::zeros({}, s.options()));
    x = at::matmul(vh.mH(), at::matmul(u.mH(), b).mul(inverse.unsqueeze(-1)));
    rank = counts.sum(-1);
    if (driver != Driver::kGelsy) {
      singular = s;
      if (m > n) full_rank = rank.eq(n).all().item().toBool();
    }
  }
  if (m > n && driver != Driver::kGelsy && full_rank) {
    residuals = b.sub(at::matmul(a, x)).abs().square().sum(-2);
  }

  // LAPACK leaves the solution in the upper part of the right-hand side's place.
  std::vector<int64_t> place = batch;
  place.insert(place.end(), {k, std::max(m, n)});
  at::Tensor solution = at::empty(place, a.options()).mT().narrow(-2, 0, n);
  solution.copy_(x);
  if (difference == 1) solution = solution.squeeze(-1);
  return {solution, residuals, rank, singular};
}

at::Tensor& Give(const at::Tensor& result, at::Tensor& out) {
  if (!out.sizes().equals(result.sizes())) ResizeOutput(out, result.sizes());
  return out.copy_(result);
}

std::tuple<at::Tensor&, at::Tensor&, at::Tensor&, at::Tensor&> SolveOut(
    const at::Tensor& a, const at::Tensor& b, std::optional<double> rcond,
    std::optional<c10::string_view> driver, at::Tensor& solution, at::Tensor& residuals,
    at::Tensor& rank, at::Tensor& singular) {
  const auto check = [&](const char* name, const at::Tensor& out, c10::ScalarType dtype) {
    TORCH_CHECK(c10::canCast(dtype, out.scalar_type()), kName, ": Expected ", name,
                " to be safely castable from ", dtype, " dtype, but got ", name, " with dtype ",
                out.scalar_type());
  };
  const c10::ScalarType real = c10::toRealValueType(a.scalar_type());
  check("solution", solution, a.scalar_type());
  check("residuals", residuals, real);
  check("rank", rank, at::kLong);
  check("singular_values", singular, real);
  const auto [x, r, k, s] = Solve(a, b, rcond, driver);
  return {Give(x, solution), Give(r, residuals), Give(k, rank), Give(s, singular)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("linalg_lstsq", &Kernel<&Solve>::Run);
  m.impl("linalg_lstsq.out", &Kernel<&SolveOut>::Run);
}

}  // namespace
}  // namespace torch_tpu::aten
