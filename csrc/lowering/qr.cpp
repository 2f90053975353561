// QR decompositions and the unitary matrices they are made of.
#include <c10/util/Exception.h>

#include <algorithm>

#include "lowering/householder.h"
#include "lowering/matrices.h"
#include "lowering/matrix.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT: rules read like the mathematics
using c10::IntArrayRef;

Values QrRule(Call& c) {
  Value a = c.tensor("A");
  RequireLapackDType(a.dtype(), "geqrf_cpu");
  const Reflections q = FactorQr(a);
  const Type &q_type = c.result(0), &r_type = c.result(1);
  Value r = FirstRows(UpperTriangle(q.packed), r_type.dims[r_type.rank() - 2]);
  if (c.string("mode") == "r") return {ZeroConstant(c.builder(), q_type), r};
  return {UnitaryColumns(q, q_type.dims.back()), r};
}
TPU_RULE({.op = "linalg_qr", .lower = &QrRule});

// Stored column by column, as LAPACK wants and leaves them.
ResultSpec Matrices(c10::ScalarType dtype, const std::vector<int64_t>& sizes) {
  return {.dtype = dtype, .sizes = sizes, .strides = ColumnMajorStrides(sizes)};
}

IntArrayRef BatchOf(const ShapeTensor& x, size_t dropped) {
  return IntArrayRef(x.sizes).slice(0, x.sizes.size() - dropped);
}

Values Geqrf(Call& c) {
  Value a = c.tensor("self");
  RequireLapackDType(a.dtype(), "geqrf_cpu");
  const Reflections q = FactorQr(a);
  return {q.packed, q.taus};
}

std::vector<ResultSpec> GeqrfShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const size_t rank = self.sizes.size();
  TORCH_CHECK(rank >= 2, "torch.geqrf: input must have at least 2 dimensions.");
  std::vector<int64_t> taus(self.sizes.begin(), self.sizes.end() - 1);
  taus.back() = std::min(self.sizes[rank - 2], self.sizes[rank - 1]);
  return {Matrices(self.dtype, self.sizes), {.dtype = self.dtype, .sizes = taus}};
}
TPU_RULE({.op = "geqrf", .lower = &Geqrf, .shape = &GeqrfShape});

Values HouseholderProduct(Call& c) {
  Value packed = c.tensor("input");
  RequireLapackDType(packed.dtype(), "orgqr_cpu");
  return {UnitaryColumns({packed, c.tensor("tau")}, packed.dim(-1))};
}

// What is asked of the vectors of taus of a matrix of reflections.
void CheckTaus(const char* name, const ShapeTensor& input, const ShapeTensor& tau) {
  TORCH_CHECK(input.sizes.size() == tau.sizes.size() + 1, name,
              ": Expected tau to have one dimension less than input, but got tau.ndim equal to ",
              tau.sizes.size(), " and input.ndim is equal to ", input.sizes.size());
}
void CheckTauBatch(const char* name, const ShapeTensor& input, const ShapeTensor& tau) {
  TORCH_CHECK(BatchOf(tau, 1) == BatchOf(input, 2), name,
              ": Expected batch dimensions of tau to be equal to input.shape[:-2], but got ",
              BatchOf(tau, 1));
}

std::vector<ResultSpec> HouseholderProductShape(const ShapeCall& s) {
  constexpr const char* kName = "torch.linalg.householder_product";
  const ShapeTensor &input = s.tensor("input"), &tau = s.tensor("tau");
  const size_t rank = input.sizes.size();
  TORCH_CHECK(rank >= 2, kName, ": input must have at least 2 dimensions.");
  TORCH_CHECK(input.sizes[rank - 2] >= input.sizes[rank - 1], kName,
              ": input.shape[-2] must be greater than or equal to input.shape[-1]");
  // A 0-d tau, which has no last dimension, is refused below.
  TORCH_CHECK(tau.sizes.empty() || input.sizes[rank - 1] >= tau.sizes.back(), kName,
              ": input.shape[-1] must be greater than or equal to tau.shape[-1]");
  CheckTaus(kName, input, tau);
  CheckTauBatch(kName, input, tau);
  TORCH_CHECK(tau.dtype == input.dtype, kName, ": tau dtype ", tau.dtype,
              " does not match input dtype ", input.dtype);
  return {Matrices(input.dtype, input.sizes)};
}
TPU_RULE({.op = "linalg_householder_product",
          .lower = &HouseholderProduct,
          .shape = &HouseholderProductShape});

Values Ormqr(Call& c) {
  const Reflections q{c.tensor("self"), c.tensor("input2")};
  Value x = c.tensor("input3");
  RequireLapackDType(x.dtype(), "ormqr_cpu");
  const bool adjoint = c.boolean("transpose");
  if (c.boolean("left")) return {ApplyReflections(q, x, adjoint)};
  return {Adjoint(ApplyReflections(q, Adjoint(x), !adjoint))};
}

std::vector<ResultSpec> OrmqrShape(const ShapeCall& s) {
  constexpr const char* kName = "torch.ormqr";
  const ShapeTensor &input = s.tensor("self"), &tau = s.tensor("input2"),
                    &other = s.tensor("input3");
  const size_t rank = input.sizes.size(), other_rank = other.sizes.size();
  TORCH_CHECK(rank >= 2, kName, ": input must have at least 2 dimensions.");
  TORCH_CHECK(other_rank >= 2, kName, ": other must have at least 2 dimensions.");
  const int side = s.argument("left").toBool() ? -2 : -1;
  const int64_t size = other.sizes[other_rank + side];
  const int64_t taus = tau.sizes.empty() ? 0 : tau.sizes.back();
  TORCH_CHECK(size >= taus, kName, ": other.shape[", side,
              "] must be greater than or equal to tau.shape[-1]");
  TORCH_CHECK(size == input.sizes[rank - 2], kName, ": other.shape[", side,
              "] must be equal to input.shape[-2]");
  TORCH_CHECK(taus == std::min(size, input.sizes[rank - 1]), kName,
              ": tau.shape[-1] must be equal to min(other.shape[", side, "], input.shape[-1])");
  CheckTaus(kName, input, tau);
  TORCH_CHECK(rank == other_rank, kName,
              ": Expected other to have the same number of dimensions as input, but got ",
              "other.ndim equal to ", other_rank, " and input.ndim is equal to ", rank);
  CheckTauBatch(kName, input, tau);
  TORCH_CHECK(BatchOf(other, 2) == BatchOf(input, 2), kName,
              ": Expected batch dimensions of other to be equal to input.shape[:-2], but got ",
              BatchOf(other, 2));
  TORCH_CHECK(tau.dtype == input.dtype, kName,
              ": Expected input and tau to have the same dtype, but input has dtype ", input.dtype,
              " and tau has dtype ", tau.dtype);
  TORCH_CHECK(other.dtype == input.dtype, kName,
              ": Expected input and other to have the same dtype, but input has dtype", input.dtype,
              " and other has dtype ", other.dtype);
  return {Matrices(other.dtype, other.sizes)};
}
TPU_RULE({.op = "ormqr", .lower = &Ormqr, .shape = &OrmqrShape});

}  // namespace
}  // namespace torch_tpu::lowering
