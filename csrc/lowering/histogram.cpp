#include <c10/util/Exception.h>

#include <cmath>

#include "lowering/indices.h"
#include "lowering/reduction.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT

// The ends of the range, given equal ends widened by one each way.
struct Range {
  Value low, high;
};

Range Widened(Value low, Value high) {
  Value one = ConstantLike(low, 1);
  Value same = Eq(low, high);
  return {Select(same, Subtract(low, one), low), Select(same, Add(high, one), high)};
}

Values Histc(Call& c) {
  Builder& b = c.builder();
  const Type& out = c.result();
  const int64_t bins = out.dims[0];
  const DType compute = ComputeType(out.dtype);
  Value x = Convert(c.tensor("self"), compute);
  const int64_t count = x.numel();
  if (count == 0) return {Zeros(b, out)};
  x = Reshape(x, {count});
  Value low = c.scalar("min", compute), high = c.scalar("max", compute);
  // Equal ends ask for the range of the data.
  Value of_data = Eq(low, high);
  low = Select(of_data, Reduce(x, Reduction::kMin, {0}), low);
  high = Select(of_data, Reduce(x, Reduction::kMax, {0}), high);
  if (IsFloat(compute)) {
    c.Check(And(IsFinite(low), IsFinite(high)), "torch.histc: range is not finite",
            Call::ErrorKind::kRuntime);
  }
  c.Check(Le(low, high), "torch.histc: max must be larger than min", Call::ErrorKind::kRuntime);
  const Range range = Widened(low, high);
  low = BroadcastTo(range.low, x.dims());
  high = BroadcastTo(range.high, x.dims());
  Value scaled = Multiply(Subtract(x, low), ConstantLike(x, static_cast<double>(bins)));
  Value place = Convert(Divide(scaled, Subtract(high, low)), DType::kS32);
  // The last bin has its end, too; what is outside of all goes nowhere.
  Value last = b.ConstantInt(place.type(), bins - 1), nowhere = b.ConstantInt(place.type(), bins);
  place = Select(And(Ge(x, low), Le(x, high)), Minimum(place, last), nowhere);
  Value counts = ScatterSlices(Zeros(b, {DType::kS32, {bins}}), 0, place,
                               b.ConstantInt(place.type(), 1), Combine::kAdd);
  return {Convert(counts, out.dtype)};
}

std::vector<ResultSpec> HistcShape(const ShapeCall& s) {
  const c10::ScalarType dtype = s.tensor("self").dtype;
  // Integers as well, which CPU does not take and CUDA does.
  TORCH_CHECK_NOT_IMPLEMENTED(dtype != c10::ScalarType::Bool && !c10::isComplexType(dtype),
                              "\"histogram_cpu\" not implemented for '", dtype, "'");
  const int64_t bins = s.argument("bins").toInt();
  TORCH_CHECK(bins > 0, "torch.histogram(): bins must be > 0, but got ", bins, " for dimension 0");
  const double low = s.argument("min").toScalar().toDouble();
  const double high = s.argument("max").toScalar().toDouble();
  TORCH_CHECK(std::isfinite(low) && std::isfinite(high), "torch.histc: range of [", low, ", ", high,
              "] is not finite");
  TORCH_CHECK(low <= high, "torch.histc: max must be larger than min");
  return {{.dtype = dtype, .sizes = {bins}}};
}
TPU_RULE({.op = "histc", .lower = &Histc, .shape = &HistcShape, .scalars_as_self = true});

}  // namespace
}  // namespace torch_tpu::lowering
