#include "stablehlo/decompositions.h"

#include <algorithm>
#include <string_view>

#include "stablehlo/internal.h"

namespace torch_tpu::stablehlo {

QrFactors Qr(Value x) {
  constexpr std::string_view kName = "Qr";
  CheckDefined(kName, {x});
  const bool wide = x.dtype() == DType::kF32 || x.dtype() == DType::kF64 || IsComplex(x.dtype());
  if (!wide) FailDType(kName, "not defined for this dtype", {x});
  if (x.rank() < 2 || x.numel() == 0) Fail(kName, "no matrices", {x});
  Type taus = x.type();
  taus.dims.pop_back();
  taus.dims.back() = std::min(x.dim(-1), x.dim(-2));
  const Values results = CustomCall(kName, {x}, "", {x.type(), taus});
  return {results[0], results[1]};
}

}  // namespace torch_tpu::stablehlo
