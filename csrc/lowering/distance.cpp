// Distances between the rows of two matrices.
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "lowering/reduction.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT
using c10::IntArrayRef;

Value Positive(Value x) { return Gt(x, ConstantLike(x, 0)); }

Value PowerOf(Value x, double exponent) { return Power(x, ConstantLike(x, exponent)); }

// 0 where `divisor` is.
Value DivideOrZero(Value x, Value divisor) {
  Value zero = Eq(divisor, ConstantLike(divisor, 0));
  Value safe = Select(zero, ConstantLike(divisor, 1), divisor);
  return Select(zero, ConstantLike(x, 0), Divide(x, safe));
}

// x1[..., i, :] - x2[..., j, :], both broadcast to the batch dimensions of `dims`.
Value Differences(Value x1, Value x2, const Dims& batch) {
  const int64_t rows = x1.dim(-2), columns = x2.dim(-2), width = x1.dim(-1);
  const auto spread = [&](Value x, int64_t at) {
    Dims own = x.dims();
    own.insert(own.end() - 1 - at, 1);
    Dims full = batch;
    full.insert(full.end(), {rows, columns, width});
    return BroadcastTo(Reshape(x, own), full);
  };
  return Subtract(spread(x1, 0), spread(x2, 1));
}

Value Norm(Value difference, double p) {
  const std::vector<int64_t> last{difference.rank() - 1};
  Value size = Abs(difference);
  if (p == 0) {
    return Reduce(Convert(Positive(size), size.dtype()), Reduction::kSum, last);
  }
  if (std::isinf(p)) {
    // Of no columns the largest is 0.
    return difference.dim(-1) == 0 ? Reduce(size, Reduction::kSum, last)
                                   : Reduce(size, Reduction::kMax, last);
  }
  if (p == 1) return Reduce(size, Reduction::kSum, last);
  if (p == 2) return Sqrt(Reduce(Multiply(size, size), Reduction::kSum, last));
  return PowerOf(Reduce(PowerOf(size, p), Reduction::kSum, last), 1 / p);
}

// Derivative of Norm by each difference; 0 where it has none.
Value NormGradient(Value difference, Value norm, double p) {
  Value size = Abs(difference);
  Value sign = Sign(difference);
  if (p == 0) return ConstantLike(difference, 0);
  if (p == 1) return sign;
  if (p == 2) return DivideOrZero(difference, norm);
  if (std::isinf(p)) {
    return Select(Eq(size, norm), sign, ConstantLike(sign, 0));
  }
  Value nonzero = Positive(size);
  Value safe = Select(nonzero, size, ConstantLike(size, 1));
  Value factor = Select(nonzero, PowerOf(safe, p - 1), ConstantLike(size, 0));
  return Multiply(sign, DivideOrZero(factor, PowerOf(norm, p - 1)));
}

Values CdistForward(Call& c) {
  const Type& out = c.result();
  const DType compute = ComputeType(out.dtype);
  const Dims batch(out.dims.begin(), out.dims.end() - 2);
  Value difference =
      Differences(Convert(c.tensor("x1"), compute), Convert(c.tensor("x2"), compute), batch);
  return {Convert(Norm(difference, c.number("p")), out.dtype)};
}

Values CdistBackward(Call& c) {
  const Type& out = c.result();
  const DType compute = ComputeType(out.dtype);
  const Dims batch(out.dims.begin(), out.dims.end() - 2);
  if (out.numel() == 0 || c.tensor("x2").numel() == 0) return {ZeroConstant(c.builder(), out)};
  Value difference =
      Differences(Convert(c.tensor("x1"), compute), Convert(c.tensor("x2"), compute), batch);
  const Dims dims = difference.dims();
  const auto along_columns = [&](std::string_view name) {
    Value x = Convert(c.tensor(name), compute);
    Dims own = x.dims();
    own.push_back(1);
    return BroadcastTo(Reshape(x, own), dims);
  };
  Value gradient = Multiply(NormGradient(difference, along_columns("cdist"), c.number("p")),
                            along_columns("grad"));
  return {Convert(Reduce(gradient, Reduction::kSum, {gradient.rank() - 2}), out.dtype)};
}

std::vector<int64_t> BroadcastBatch(const ShapeTensor& x1, const ShapeTensor& x2) {
  const size_t rank = std::max(x1.sizes.size(), x2.sizes.size());
  std::vector<int64_t> batch(rank - 2);
  for (size_t d = 0; d < batch.size(); ++d) {
    const size_t missing1 = rank - x1.sizes.size(), missing2 = rank - x2.sizes.size();
    const int64_t a = d < missing1 ? 1 : x1.sizes[d - missing1];
    const int64_t b = d < missing2 ? 1 : x2.sizes[d - missing2];
    TORCH_CHECK(a == b || a == 1 || b == 1, "The size of tensor a (", a,
                ") must match the size of tensor b (", b, ") at non-singleton dimension ", d);
    batch[d] = a == 1 ? b : a;
  }
  return batch;
}

std::vector<ResultSpec> CdistForwardShape(const ShapeCall& s) {
  const ShapeTensor &x1 = s.tensor("x1"), &x2 = s.tensor("x2");
  TORCH_CHECK(x1.sizes.size() >= 2,
              "cdist only supports at least 2D tensors, X1 got: ", x1.sizes.size(), "D");
  TORCH_CHECK(x2.sizes.size() >= 2,
              "cdist only supports at least 2D tensors, X2 got: ", x2.sizes.size(), "D");
  TORCH_CHECK(x1.sizes.back() == x2.sizes.back(),
              "X1 and X2 must have the same number of columns. X1: ", x1.sizes.back(),
              " X2: ", x2.sizes.back());
  TORCH_CHECK(c10::isFloatingType(x1.dtype),
              "cdist only supports floating-point dtypes, X1 got: ", x1.dtype);
  TORCH_CHECK(c10::isFloatingType(x2.dtype),
              "cdist only supports floating-point dtypes, X2 got: ", x2.dtype);
  TORCH_CHECK(x1.dtype == x2.dtype, "expected scalar type ", x1.dtype, " but found ", x2.dtype);
  TORCH_CHECK(s.argument("p").toDouble() >= 0, "cdist only supports non-negative p values");
  const c10::IValue& mode = s.argument("compute_mode");
  TORCH_CHECK(mode.isNone() || (mode.toInt() >= 0 && mode.toInt() <= 2),
              "possible modes: 0, 1, 2, but was: ", mode.isNone() ? 0 : mode.toInt());
  std::vector<int64_t> sizes = BroadcastBatch(x1, x2);
  sizes.push_back(x1.sizes[x1.sizes.size() - 2]);
  sizes.push_back(x2.sizes[x2.sizes.size() - 2]);
  return {{.dtype = x1.dtype, .sizes = sizes}};
}
TPU_RULE({.op = "_cdist_forward",
          .lower = &CdistForward,
          .shape = &CdistForwardShape,
          .structural = {"p"}});

std::vector<ResultSpec> CdistBackwardShape(const ShapeCall& s) {
  const ShapeTensor& x1 = s.tensor("x1");
  std::vector<int64_t> sizes = BroadcastBatch(x1, s.tensor("x2"));
  sizes.insert(sizes.end(), x1.sizes.end() - 2, x1.sizes.end());
  return {{.dtype = x1.dtype, .sizes = sizes}};
}
TPU_RULE({.op = "_cdist_backward",
          .lower = &CdistBackward,
          .shape = &CdistBackwardShape,
          .structural = {"p"}});

// --- distances between the rows of one matrix, each pair once

int64_t Pairs(int64_t rows) { return rows * (rows - 1) / 2; }

// [rows, rows]: where the result has the pair (i, j); beyond its end for rows with themselves.
Value PairPositions(Builder& b, int64_t rows) {
  const DType dtype = rows < (1 << 15) ? DType::kS32 : DType::kS64;
  const Type type{dtype, {rows, rows}};
  const auto constant = [&](int64_t value) { return b.ConstantInt(type, value); };
  Value row = b.Iota(type, 0), column = b.Iota(type, 1);
  Value first = Minimum(row, column), second = Maximum(row, column);
  Value before = Divide(Multiply(first, Subtract(constant(2 * rows - 1), first)), constant(2));
  Value position = Add(before, Subtract(Subtract(second, first), constant(1)));
  return Select(Eq(row, column), constant(Pairs(rows)), position);
}

Values PdistForward(Call& c) {
  const Type& out = c.result();
  Value x = Convert(c.tensor("self"), ComputeType(out.dtype));
  const int64_t rows = x.dim(0);
  Value norms = Norm(Differences(x, x, {}), c.number("p"));
  ScatterDims dims;
  dims.inserted_window_dims = {0};
  dims.scatter_dims_to_operand_dims = {0};
  dims.index_vector_dim = 1;
  Value places = Reshape(PairPositions(c.builder(), rows), {rows * rows, 1});
  // Either of the two that go to one place will do: they are equal.
  Value packed =
      Scatter(ZeroConstant(c.builder(), {norms.dtype(), out.dims}), places,
              Reshape(norms, {rows * rows}), dims, [](const Values& v) { return Values{v[1]}; });
  return {Convert(packed, out.dtype)};
}

Values PdistBackward(Call& c) {
  const Type& out = c.result();
  const int64_t rows = out.dims[0];
  if (out.numel() == 0 || rows < 2) return {ZeroConstant(c.builder(), out)};
  Value x = Convert(c.tensor("self"), ComputeType(out.dtype));
  Value difference = Differences(x, x, {});
  Value positions = PairPositions(c.builder(), rows);
  Value apart = Lt(positions, c.builder().ConstantInt(positions.type(), Pairs(rows)));
  const auto of_pair = [&](std::string_view name) {
    Value each = Take(Convert(c.tensor(name), x.dtype()), positions, 0);
    each = Select(apart, each, ConstantLike(each, 0));
    return BroadcastInDim(each, difference.dims(), {0, 1});
  };
  Value gradient =
      Multiply(NormGradient(difference, of_pair("pdist"), c.number("p")), of_pair("grad"));
  return {Convert(Reduce(gradient, Reduction::kSum, {1}), out.dtype)};
}

std::vector<ResultSpec> PdistForwardShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const int64_t rows = self.sizes.at(0);
  return {{.dtype = self.dtype, .sizes = {rows > 1 ? Pairs(rows) : 0}}};
}
std::vector<ResultSpec> PdistBackwardShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  return {{.dtype = self.dtype, .sizes = self.sizes}};
}
TPU_RULE({.op = "_pdist_forward",
          .lower = &PdistForward,
          .shape = &PdistForwardShape,
          .structural = {"p"}});
TPU_RULE({.op = "_pdist_backward",
          .lower = &PdistBackward,
          .shape = &PdistBackwardShape,
          .structural = {"p"}});

}  // namespace
}  // namespace torch_tpu::lowering
