#include "stablehlo/decompositions.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>

#include "stablehlo/internal.h"

namespace torch_tpu::stablehlo {
namespace {

void CheckMatrices(std::string_view name, Value x) {
  CheckDefined(name, {x});
  const bool wide = x.dtype() == DType::kF32 || x.dtype() == DType::kF64 || IsComplex(x.dtype());
  if (!wide) FailDType(name, "not defined for this dtype", {x});
  if (x.rank() < 2 || x.numel() == 0) Fail(name, "no matrices", {x});
}

}  // namespace

QrFactors Qr(Value x) {
  CheckMatrices("Qr", x);
  Type taus = x.type();
  taus.dims.pop_back();
  taus.dims.back() = std::min(x.dim(-1), x.dim(-2));
  const Values results = CustomCall("Qr", {x}, "", {x.type(), taus});
  return {results[0], results[1]};
}

EighFactors Eigh(Value x, int max_sweeps, double tolerance) {
  CheckMatrices("Eigh", x);
  if (x.dim(-1) != x.dim(-2)) Fail("Eigh", "matrices are not square", {x});
  Type values{RealOf(x.dtype()), x.dims()};
  values.dims.pop_back();
  // Lower triangle, sorted, sweeps, tolerance.
  std::ostringstream config;
  config << "backend_config = \"1,1," << max_sweeps << ',' << tolerance << '"';
  const Values results = CustomCall("Eigh", {x}, config.str(), {x.type(), values});
  return {results[1], results[0]};
}

}  // namespace torch_tpu::stablehlo
