#include "aten/debug.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

#include "lowering/call.h"
#include "trace/operation.h"

namespace torch_tpu::aten {
namespace {

using stablehlo::Value;
using trace::Type;

Value IsNaN(Value x) {
  if (stablehlo::IsComplex(x.dtype())) {
    return stablehlo::Or(IsNaN(stablehlo::Real(x)), IsNaN(stablehlo::Imag(x)));
  }
  x = stablehlo::Convert(x, lowering::ComputeType(x.dtype()));
  return stablehlo::Ne(x, x);
}

bool HasNaN(trace::Device& device, const Examined& examined) {
  const trace::ViewSpec& view = examined.view;
  if (!examined.value || view.numel() == 0) return false;
  if (!stablehlo::IsFloat(view.dtype) && !stablehlo::IsComplex(view.dtype)) return false;
  auto operation = std::make_shared<trace::Operation>(
      "has_nan", std::vector<const Type*>{examined.value->type()},
      [&view](stablehlo::Builder&, const stablehlo::Values& inputs) {
        Value nan = IsNaN(trace::ReadView(inputs[0], view));
        std::vector<int64_t> dims(nan.dims().size());
        std::iota(dims.begin(), dims.end(), 0);
        return trace::Lowered{{stablehlo::Reduce(nan, stablehlo::Reduction::kOr, dims)}, {}};
      });
  trace::ValuePtr input = examined.value, result;
  trace::Run(operation, device, {&input, 1}, false, &result);
  bool has = false;
  result->ToHost(&has, sizeof has);
  return has;
}

}  // namespace

Examined Whole(trace::ValuePtr value) {
  const Type& type = *value->type();
  trace::ViewSpec view{type.dtype, type.dims, std::vector<int64_t>(type.dims.size(), 1)};
  for (size_t d = type.dims.size(); d-- > 1;) {
    view.strides[d - 1] = view.strides[d] * std::max<int64_t>(type.dims[d], 1);
  }
  return {std::move(value), std::move(view)};
}

void CheckForNaN(trace::Device& device, std::span<const Examined> inputs,
                 std::span<const Examined> results, const std::function<std::string()>& describe) {
  auto has_nan = [&](const Examined& examined) { return HasNaN(device, examined); };
  if (std::none_of(results.begin(), results.end(), has_nan)) return;
  if (std::any_of(inputs.begin(), inputs.end(), has_nan)) return;
  TORCH_CHECK(false, describe(), " produced NaN from arguments without NaN");
}

}  // namespace torch_tpu::aten
