#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Exception.h>

#include <limits>

#include "lowering/reduction.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: Add, Multiply, Reduce, ... read like the mathematics

struct Rows {
  Value x;
  std::vector<int64_t> dim;

  Value Spread(Value reduced) const { return BroadcastReduced(reduced, x.dims(), dim); }
  Value SumOf(Value value) const { return Spread(Reduce(value, Reduction::kSum, dim)); }
};

Rows RowsOf(Call& c, std::string_view name, DType compute) {
  Value x = AtLeast1d(c.tensor(name));
  return {Convert(x, compute), {WrapDim(c.integer("dim"), x.rank())}};
}

Value Finish(Call& c, Value x) { return Reshape(Convert(x, c.result().dtype), c.result().dims); }

// Everything is done in float32 or wider; half_to_float only says that it stays so.
DType WideType(Call& c, std::string_view name) { return ComputeType(c.tensor(name).dtype()); }

Value LessLargest(const Rows& rows) {
  return Subtract(rows.x, rows.Spread(Reduce(rows.x, Reduction::kMax, rows.dim)));
}

Value SoftmaxOf(const Rows& rows) {
  Value exponentials = Exp(LessLargest(rows));
  return Divide(exponentials, rows.SumOf(exponentials));
}

Values Softmax(Call& c) { return {Finish(c, SoftmaxOf(RowsOf(c, "self", WideType(c, "self"))))}; }

Values LogSoftmax(Call& c) {
  Rows rows = RowsOf(c, "self", WideType(c, "self"));
  Value shifted = LessLargest(rows);
  Value log_sum = Log(Reduce(Exp(shifted), Reduction::kSum, rows.dim));
  return {Finish(c, Subtract(shifted, rows.Spread(log_sum)))};
}

// Rows with nothing but -inf give zeros instead of NaN.
Values SafeSoftmax(Call& c) {
  Value x = c.tensor("self");
  const DType dtype = c.dtype("dtype").value_or(x.dtype());
  Rows rows = RowsOf(c, "self", dtype);
  rows.x = Convert(rows.x, ComputeType(dtype));
  Value nothing = ConstantLike(rows.x, -std::numeric_limits<double>::infinity());
  Value empty = rows.Spread(Reduce(Eq(rows.x, nothing), Reduction::kAnd, rows.dim));
  return {Finish(c, Select(empty, ConstantLike(rows.x, 0), SoftmaxOf(rows)))};
}

std::vector<ResultSpec> SafeSoftmaxShape(const ShapeCall& c) {
  const ShapeTensor& self = c.tensor("self");
  c10::maybe_wrap_dim(c.argument("dim").toInt(), static_cast<int64_t>(self.sizes.size()));
  const c10::ScalarType dtype = c.has("dtype") ? c.argument("dtype").toScalarType() : self.dtype;
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isFloatingType(dtype),
                              "\"softmax_lastdim_kernel_impl\" not implemented for '", dtype, "'");
  return {{.dtype = dtype, .sizes = self.sizes}};
}

Values SoftmaxBackward(Call& c) {
  const DType compute = WideType(c, "output");
  Rows output = RowsOf(c, "output", compute);
  Value grad = Convert(AtLeast1d(c.tensor("grad_output")), compute);
  Value weighted = Multiply(grad, output.x);
  return {Finish(c, Subtract(weighted, Multiply(output.x, output.SumOf(weighted))))};
}

Values LogSoftmaxBackward(Call& c) {
  const DType compute = WideType(c, "output");
  Rows output = RowsOf(c, "output", compute);
  Value grad = Convert(AtLeast1d(c.tensor("grad_output")), compute);
  return {Finish(c, Subtract(grad, Multiply(Exp(output.x), output.SumOf(grad))))};
}

TPU_RULE({.op = "_softmax", .lower = &Softmax});
TPU_RULE({.op = "_log_softmax", .lower = &LogSoftmax});
TPU_RULE({.op = "_safe_softmax", .lower = &SafeSoftmax, .shape = &SafeSoftmaxShape});
TPU_RULE({.op = "_softmax_backward_data", .lower = &SoftmaxBackward});
TPU_RULE({.op = "_log_softmax_backward_data", .lower = &LogSoftmaxBackward});

}  // namespace
}  // namespace torch_tpu::lowering
