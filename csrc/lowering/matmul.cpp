#include <ATen/core/TensorBody.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>

#include "lowering/dot.h"
#include "lowering/elementwise.h"
#include "lowering/host_dot.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT: rules read like the mathematics

// The dot product as a fused multiplication and sum.
Value ElementwiseDot(Value a, Value b, const DotDims& dims) {
  const auto a_free = FreeDims(a, dims.lhs_batch, dims.lhs_contract);
  const auto b_free = FreeDims(b, dims.rhs_batch, dims.rhs_contract);
  // Dimensions of the product: batch, a's free, b's free, contracted.
  const int64_t batch = static_cast<int64_t>(dims.lhs_batch.size());
  const int64_t contract = static_cast<int64_t>(dims.lhs_contract.size());
  Dims product;
  for (int64_t d : dims.lhs_batch) product.push_back(a.dim(d));
  for (int64_t d : a_free) product.push_back(a.dim(d));
  for (int64_t d : b_free) product.push_back(b.dim(d));
  for (int64_t d : dims.lhs_contract) product.push_back(a.dim(d));
  const int64_t rank = static_cast<int64_t>(product.size());

  std::vector<int64_t> a_to(a.rank()), b_to(b.rank()), contracted(contract);
  for (int64_t i = 0; i < batch; ++i) a_to[dims.lhs_batch[i]] = b_to[dims.rhs_batch[i]] = i;
  for (size_t i = 0; i < a_free.size(); ++i) a_to[a_free[i]] = batch + i;
  for (size_t i = 0; i < b_free.size(); ++i) b_to[b_free[i]] = batch + a_free.size() + i;
  for (int64_t i = 0; i < contract; ++i) {
    contracted[i] = rank - contract + i;
    a_to[dims.lhs_contract[i]] = b_to[dims.rhs_contract[i]] = contracted[i];
  }
  return Reduce(Multiply(BroadcastInDim(a, product, a_to), BroadcastInDim(b, product, b_to)),
                Reduction::kSum, contracted);
}

void RefuseBool(Value x, const char* kernel) {
  TORCH_CHECK_NOT_IMPLEMENTED(x.dtype() != DType::kPred, "\"", kernel,
                              "\" not implemented for 'Bool'");
}

// What `expand` says when it cannot.
void CheckExpands(const Dims& from, const Dims& to) {
  TORCH_CHECK(from.size() <= to.size(), "The expanded size of the tensor (", to.empty() ? 0 : to[0],
              ") must match the existing size at the number of dimensions. Target sizes: ",
              c10::IntArrayRef(to), ".  Tensor sizes: ", c10::IntArrayRef(from));
  const size_t offset = to.size() - from.size();
  for (size_t i = 0; i < from.size(); ++i) {
    TORCH_CHECK(from[i] == to[offset + i] || from[i] == 1, "The expanded size of the tensor (",
                to[offset + i], ") must match the existing size (", from[i],
                ") at non-singleton dimension ", offset + i,
                ".  Target sizes: ", c10::IntArrayRef(to),
                ".  Tensor sizes: ", c10::IntArrayRef(from));
  }
}

// The factors' dtypes, which PyTorch's shape functions leave to the kernels.
void CheckFactors(Value a, Value b) {
  const auto left = ToScalarType(a.dtype()), right = ToScalarType(b.dtype());
  if (a.rank() == 3) {
    TORCH_CHECK(left == right, "expected scalar type ", left, " but found ", right);
  } else {
    TORCH_CHECK(left == right, "expected m1 and m2 to have the same dtype, but got: ",
                c10::scalarTypeToTypeMeta(left), " != ", c10::scalarTypeToTypeMeta(right));
  }
}

constexpr int64_t kLast = -1, kLastButOne = -2;

// Dots over the last dimensions of a and the last but one of b, leading dimensions batched.
Value MatrixProduct(Call& c, Value a, Value b) {
  DotDims dims;
  for (int i = 0; i + 2 < a.rank(); ++i) {
    dims.lhs_batch.push_back(i);
    dims.rhs_batch.push_back(i);
  }
  dims.lhs_contract = {a.rank() + kLast};
  dims.rhs_contract = {b.rank() + kLastButOne};
  return AccumulatingDot(c, a, b, dims);
}

// A matrix whose rows a view merged from several dimensions, with these apart: [rows..., columns].
std::optional<Value> WithRowsApart(Value matrix) {
  const Builder& builder = matrix.builder();
  const int64_t rows = matrix.dim(0), columns = matrix.dim(1);
  if (rows == 0 || columns == 0) return std::nullopt;
  for (Value x = builder.ReshapeSource(matrix); x.defined(); x = builder.ReshapeSource(x)) {
    Dims apart;
    int64_t count = 1;
    for (int64_t d : x.dims()) {
      if (count == rows) break;
      if (d != 1) apart.push_back(d);
      count *= d;
    }
    if (count != rows || apart.size() < 2) continue;
    apart.push_back(columns);
    return Reshape(x, apart);
  }
  return std::nullopt;
}

// The product of two matrices, possibly with its rows apart. The TPU's compiler is free to choose
// the order in memory of dimensions that are apart, such as batch and sequence; merged, it copies
// what attention then wants in another order.
Value RowsProduct(Call& c, Value a, Value b) {
  if (!c.on_tpu() || a.rank() != 2) return MatrixProduct(c, a, b);
  if (const auto rows = WithRowsApart(a)) {
    return AccumulatingDot(c, *rows, b, {.lhs_contract = {rows->rank() - 1}, .rhs_contract = {0}});
  }
  // A weight's gradient sums over merged rows.
  const auto* transposition = c.builder().TranspositionOf(a);
  if (transposition == nullptr) return MatrixProduct(c, a, b);
  const auto left = WithRowsApart(transposition->source), right = WithRowsApart(b);
  if (!left || !right ||
      !std::equal(left->dims().begin(), left->dims().end() - 1, right->dims().begin(),
                  right->dims().end() - 1)) {
    return MatrixProduct(c, a, b);
  }
  std::vector<int64_t> summed(left->rank() - 1);
  std::iota(summed.begin(), summed.end(), 0);
  return AccumulatingDot(c, *left, *right, {.lhs_contract = summed, .rhs_contract = summed});
}

// Rounds before it merges rows, so that views after and before that cancel.
Value Finish(Call& c, Value x) { return Reshape(Convert(x, c.result().dtype), c.result().dims); }

// beta * self + alpha * product, rounded once. A bias with beta = 0 is not even read. The product's
// rows may be apart, and stay so unless the bias has as many.
Value AddScaled(Call& c, Value product) {
  const Type& out = c.result();
  const Dims& bias = c.tensor("self").dims();
  if (product.rank() != out.rank() && bias.size() == out.dims.size() && bias[0] != 1) {
    product = Reshape(product, out.dims);
  }
  const DType compute = ComputeType(out.dtype);
  Value sum = Convert(product, compute);
  if (!c.is("alpha", 1)) {
    sum = Multiply(sum, BroadcastTo(c.scalar("alpha", compute), sum.dims()));
  }
  if (c.is("beta", 0)) return sum;
  Value self = Convert(c.tensor("self"), compute);
  if (!c.is("beta", 1)) {
    self = Multiply(self, BroadcastTo(c.scalar("beta", compute), self.dims()));
  }
  return Add(BroadcastTo(self, sum.dims()), sum);
}

const std::vector<std::pair<std::string, std::vector<double>>> kScales = {{"alpha", {1.0}},
                                                                          {"beta", {0.0, 1.0}}};

Values Matmul(Call& c) {
  Value a = c.tensor("self"), b = c.tensor("mat2");
  RefuseBool(a, a.rank() == 2 ? "addmm_impl_cpu_" : "baddbmm");
  CheckFactors(a, b);
  return {Finish(c, RowsProduct(c, a, b))};
}
TPU_RULE({.op = "mm", .lower = &Matmul});
TPU_RULE({.op = "bmm", .lower = &Matmul});
TPU_RULE({.op = "mm.dtype", .lower = &Matmul});
TPU_RULE({.op = "bmm.dtype", .lower = &Matmul});

Values Addmm(Call& c) {
  Value a = c.tensor("mat1"), b = c.tensor("mat2");
  RefuseBool(a, "addmm_impl_cpu_");
  const auto self = ToScalarType(c.tensor("self").dtype()), mat2 = ToScalarType(b.dtype());
  // With out_dtype the bias may be of either.
  TORCH_CHECK(c.has("out_dtype") || self == mat2,
              "self and mat2 must have the same dtype, but got ", self, " and ", mat2);
  CheckFactors(a, b);
  CheckExpands(c.tensor("self").dims(), c.result().dims);
  return {Finish(c, AddScaled(c, RowsProduct(c, a, b)))};
}
TPU_RULE(
    {.op = "addmm", .lower = &Addmm, .specialize = kScales, .scalars_fit = Rule::Fits::kCompute});
TPU_RULE({.op = "addmm.dtype",
          .lower = &Addmm,
          .specialize = kScales,
          .scalars_fit = Rule::Fits::kCompute});

Values AddmmActivation(Call& c) {
  Value x = AddScaled(c, MatrixProduct(c, c.tensor("mat1"), c.tensor("mat2")));
  if (!c.boolean("use_gelu")) {
    x = Maximum(x, ConstantLike(x, 0));
  } else {
    Value phi = Add(Erf(Multiply(x, ConstantLike(x, M_SQRT1_2))), ConstantLike(x, 1));
    x = Multiply(Multiply(x, ConstantLike(x, 0.5)), phi);
  }
  return {Convert(x, c.result().dtype)};
}
TPU_RULE({.op = "_addmm_activation",
          .lower = &AddmmActivation,
          .specialize = kScales,
          .scalars_fit = Rule::Fits::kCompute});

Values Baddbmm(Call& c) {
  Value a = c.tensor("batch1"), b = c.tensor("batch2");
  RefuseBool(a, "baddbmm");
  return {Convert(AddScaled(c, MatrixProduct(c, a, b)), c.result().dtype)};
}
TPU_RULE({.op = "baddbmm",
          .lower = &Baddbmm,
          .specialize = kScales,
          .scalars_fit = Rule::Fits::kCompute});
TPU_RULE({.op = "baddbmm.dtype",
          .lower = &Baddbmm,
          .specialize = kScales,
          .scalars_fit = Rule::Fits::kCompute});

Values Addbmm(Call& c) {
  Value a = c.tensor("batch1"), b = c.tensor("batch2");
  RefuseBool(a, "addmm_impl_cpu_");
  const DotDims dims{.lhs_contract = {0, 2}, .rhs_contract = {0, 1}};
  return {Convert(AddScaled(c, AccumulatingDot(c, a, b, dims)), c.result().dtype)};
}

std::vector<ResultSpec> AddbmmShape(const ShapeCall& s) {
  const ShapeTensor &self = s.tensor("self"), &a = s.tensor("batch1"), &b = s.tensor("batch2");
  TORCH_CHECK(a.sizes.size() == 3, "batch1 must be a 3D tensor");
  TORCH_CHECK(b.sizes.size() == 3, "batch2 must be a 3D tensor");
  TORCH_CHECK(a.sizes[0] == b.sizes[0], "batch1 and batch2 must have same number of batches, got ",
              a.sizes[0], " and ", b.sizes[0]);
  TORCH_CHECK(a.sizes[2] == b.sizes[1], "Incompatible matrix sizes for bmm (", a.sizes[1], "x",
              a.sizes[2], " and ", b.sizes[1], "x", b.sizes[2], ")");
  const std::vector<int64_t> sizes = {a.sizes[1], b.sizes[2]};
  CheckExpands(self.sizes, sizes);
  const auto other = self.dtype != a.dtype ? a.dtype : b.dtype;
  TORCH_CHECK(self.dtype == other, "self and mat2 must have the same dtype, but got ", self.dtype,
              " and ", other);
  return {{.dtype = self.dtype, .sizes = sizes}};
}
TPU_RULE({.op = "addbmm",
          .lower = &Addbmm,
          .shape = &AddbmmShape,
          .specialize = kScales,
          .scalars_fit = Rule::Fits::kCompute});

Values Addmv(Call& c) {
  Value mat = c.tensor("mat"), vec = c.tensor("vec");
  RefuseBool(mat, "addmv_impl_cpu");
  const DotDims dims{.lhs_contract = {1}, .rhs_contract = {0}};
  return {Convert(AddScaled(c, AccumulatingDot(c, mat, vec, dims)), c.result().dtype)};
}
TPU_RULE(
    {.op = "addmv", .lower = &Addmv, .specialize = kScales, .scalars_fit = Rule::Fits::kCompute});

Values Mv(Call& c) {
  Value mat = c.tensor("self"), vec = c.tensor("vec");
  RefuseBool(mat, "addmv_impl_cpu");
  const DotDims dims{.lhs_contract = {1}, .rhs_contract = {0}};
  return {Convert(AccumulatingDot(c, mat, vec, dims), c.result().dtype)};
}

std::vector<ResultSpec> MvShape(const ShapeCall& s) {
  const ShapeTensor &mat = s.tensor("self"), &vec = s.tensor("vec");
  TORCH_CHECK_INDEX(!mat.sizes.empty(), "Dimension specified as 0 but tensor has no dimensions");
  TORCH_CHECK(mat.sizes.size() == 2 && vec.sizes.size() == 1,
              "vector + matrix @ vector expected, got 1, ", mat.sizes.size(), ", ",
              vec.sizes.size());
  TORCH_CHECK(mat.sizes[1] == vec.sizes[0], "size mismatch, got input (", mat.sizes[0], "), mat (",
              mat.sizes[0], "x", mat.sizes[1], "), vec (", vec.sizes[0], ")");
  TORCH_CHECK(mat.dtype == vec.dtype, "addmv input tensors must have the same dtype, but got ",
              vec.dtype, ", ", mat.dtype, ", and ", vec.dtype);
  return {{.dtype = vec.dtype, .sizes = {mat.sizes[0]}}};
}
TPU_RULE({.op = "mv", .lower = &Mv, .shape = &MvShape});

Values Dot(Call& c) {
  Value a = c.tensor("self"), b = c.tensor("tensor");
  RefuseBool(a, "dot");
  const DotDims dims{.lhs_contract = {0}, .rhs_contract = {0}};
  return {Convert(AccumulatingDot(c, a, b, dims), c.result().dtype)};
}

Values Vdot(Call& c) {
  Value a = Conj(c.tensor("self")), b = c.tensor("other");
  RefuseBool(a, "dot");
  const DotDims dims{.lhs_contract = {0}, .rhs_contract = {0}};
  return {Convert(AccumulatingDot(c, a, b, dims), c.result().dtype)};
}

std::vector<ResultSpec> VectorDotShape(const ShapeTensor& a, const ShapeTensor& b) {
  TORCH_CHECK(a.sizes.size() == 1 && b.sizes.size() == 1, "1D tensors expected, but got ",
              a.sizes.size(), "D and ", b.sizes.size(), "D tensors");
  TORCH_CHECK(a.dtype == b.dtype, "dot : expected both vectors to have same dtype, but found ",
              a.dtype, " and ", b.dtype);
  TORCH_CHECK(a.sizes == b.sizes, "inconsistent tensor size, expected tensor [", a.sizes[0],
              "] and src [", b.sizes[0], "] to have the same number of elements, but got ",
              a.sizes[0], " and ", b.sizes[0], " elements respectively");
  return {{.dtype = a.dtype, .sizes = {}}};
}
std::vector<ResultSpec> DotShape(const ShapeCall& s) {
  return VectorDotShape(s.tensor("self"), s.tensor("tensor"));
}
std::vector<ResultSpec> VdotShape(const ShapeCall& s) {
  return VectorDotShape(s.tensor("self"), s.tensor("other"));
}
TPU_RULE({.op = "dot", .lower = &Dot, .shape = &DotShape});
TPU_RULE({.op = "vdot", .lower = &Vdot, .shape = &VdotShape});

Values Addr(Call& c) {
  const Type& out = c.result();
  const DType compute = ComputeType(out.dtype);
  Value a = BroadcastInDim(Convert(c.tensor("vec1"), compute), out.dims, {0});
  Value b = BroadcastInDim(Convert(c.tensor("vec2"), compute), out.dims, {1});
  if (compute != DType::kPred) {
    return {Convert(AddScaled(c, Multiply(a, b)), out.dtype)};
  }
  Value product = And(a, b);
  if (!c.is("alpha", 1)) {
    product = And(product, BroadcastTo(c.scalar("alpha", compute), out.dims));
  }
  if (c.is("beta", 0)) return {product};
  Value self = BroadcastTo(Convert(c.tensor("self"), compute), out.dims);
  if (!c.is("beta", 1)) self = And(self, BroadcastTo(c.scalar("beta", compute), out.dims));
  return {Or(self, product)};
}

std::vector<ResultSpec> AddrShape(const ShapeCall& s) {
  const ShapeTensor &self = s.tensor("self"), &a = s.tensor("vec1"), &b = s.tensor("vec2");
  TORCH_CHECK(a.sizes.size() == 1, "addr: Expected 1-D argument vec1, but got ", a.sizes.size(),
              "-D");
  TORCH_CHECK(b.sizes.size() == 1, "addr: Expected 1-D argument vec2, but got ", b.sizes.size(),
              "-D");
  const std::vector<int64_t> sizes = {a.sizes[0], b.sizes[0]};
  CheckExpands(self.sizes, sizes);
  const auto dtype = PromoteArguments(s, {"self", "vec1", "vec2"});
  for (const char* name : {"beta", "alpha"}) {
    const c10::IValue& number = s.argument(name);
    TORCH_CHECK(!number.isBool() || dtype == c10::ScalarType::Bool, "Boolean ", name,
                " only supported for Boolean results.");
    TORCH_CHECK(c10::isFloatingType(dtype) || c10::isComplexType(dtype) ||
                    !(number.isDouble() || number.isComplexDouble()),
                "For integral input tensors, argument ", name,
                " must not be a floating point number.");
  }
  // As the sum of an expanded self, a column and a row.
  ShapeTensor expanded = self, column = a;
  expanded.sizes = sizes;
  expanded.strides.assign(2, 0);
  for (size_t i = 0; i < self.sizes.size(); ++i) {
    const size_t d = 2 - self.sizes.size() + i;
    if (self.sizes[i] == sizes[d]) expanded.strides[d] = self.strides[i];
  }
  column.sizes = {sizes[0], 1};
  column.strides = {a.strides[0], 1};
  const std::vector<std::string> names{"self", "column", "row"};
  const std::vector<std::vector<ShapeTensor>> operands{{expanded}, {column}, {b}};
  return {ElementwiseResult(ShapeCall(names, std::vector<c10::IValue>(3), operands),
                            {"self", "column", "row"}, dtype)};
}
TPU_RULE({.op = "addr",
          .lower = &Addr,
          .shape = &AddrShape,
          .specialize = kScales,
          .scalars_fit = Rule::Fits::kCompute});

// dim's three elements moved `by` places towards the front.
Value Roll3(Value x, int dim, int64_t by) {
  return Concatenate({SliceDim(x, dim, by, 3), SliceDim(x, dim, 0, by)}, dim);
}

Values LinalgCross(Call& c) {
  const Type& out = c.result();
  const DType compute = ComputeType(out.dtype);
  const int dim = static_cast<int>(WrapDim(c.integer("dim"), out.rank()));
  Value a = BroadcastTo(Convert(c.tensor("self"), compute), out.dims);
  Value b = BroadcastTo(Convert(c.tensor("other"), compute), out.dims);
  Value cross = Subtract(Multiply(Roll3(a, dim, 1), Roll3(b, dim, 2)),
                         Multiply(Roll3(a, dim, 2), Roll3(b, dim, 1)));
  return {Convert(cross, out.dtype)};
}
TPU_RULE({.op = "linalg_cross", .lower = &LinalgCross});

Values IntMm(Call& c) {
  Value a = c.tensor("self"), b = c.tensor("mat2");
  const DotDims dims{.lhs_contract = {1}, .rhs_contract = {0}};
  // The TPU multiplies int8 matrices natively; on CPU the widened dot is the fast one.
  if (c.on_tpu() && a.dtype() == DType::kS8 && b.dtype() == DType::kS8) {
    return {DotGeneral(a, b, dims, Precision::kDefault, DType::kS32)};
  }
  return {DotGeneral(Convert(a, DType::kS32), Convert(b, DType::kS32), dims, Precision::kDefault)};
}

std::vector<ResultSpec> IntMmShape(const ShapeCall& s) {
  const ShapeTensor &a = s.tensor("self"), &b = s.tensor("mat2");
  TORCH_CHECK(a.sizes.size() == 2, "int_mm_out_cpu: Expected self to be of dimension 2 but got ",
              a.sizes.size());
  TORCH_CHECK(b.sizes.size() == 2, "int_mm_out_cpu: Expected mat2 to be of dimension 2 but got ",
              b.sizes.size());
  TORCH_CHECK(a.sizes[1] == b.sizes[0],
              "int_mm_out_cpu: self.size(1) needs to match mat2.size(0) but got ", a.sizes[1],
              " and ", b.sizes[0]);
  TORCH_CHECK(a.dtype == c10::ScalarType::Char || a.dtype == c10::ScalarType::Byte,
              "int_mm_out_cpu: Expected self dtype to be int8 or uint8 but got ",
              caffe2::TypeMeta::fromScalarType(a.dtype));
  TORCH_CHECK(b.dtype == c10::ScalarType::Char,
              "int_mm_out_cpu: Expected mat2 dtype to be of type int8 but got ",
              caffe2::TypeMeta::fromScalarType(b.dtype));
  return {{.dtype = c10::ScalarType::Int, .sizes = {a.sizes[0], b.sizes[1]}}};
}
TPU_RULE({.op = "_int_mm", .lower = &IntMm, .shape = &IntMmShape});

// Visits the groups of rows (group g: rows [offs[g-1], offs[g])) tile by tile, skipping the empty
// ones. The number of steps is at most rows / tile plus the number of groups that have rows. The
// matrices are carried through the loop, as regions are to capture nothing.
struct Tile {
  Value a, b;
  Value start, group, zero;  // 0-d indices
  Value mask;                // which rows of the tile belong to the group
  Value accumulator;
};
using TileBody = std::function<Value(const Tile&)>;

Value ForEachTile(Value a, Value b, Value offs, int64_t rows, int64_t tile, Value init,
                  const TileBody& body) {
  Builder& builder = offs.builder();
  const auto index = [&](int64_t i) { return ScalarInt(builder, DType::kS32, i); };
  const int64_t groups = offs.dim(0);
  Value end = Minimum(Reshape(SliceDim(offs, 0, groups - 1, groups), {}), index(rows));
  const auto more = [](const Values& v) { return Values{Lt(v[0], v[1])}; };
  const auto step = [&](const Values& v) {
    Value row = v[0], end = v[1], offs = v[2];
    Value passed = Convert(Le(offs, BroadcastTo(row, {groups})), DType::kS32);
    Value group = Reduce(passed, Reduction::kSum, {0});
    Value group_end = Minimum(Reshape(DynamicSlice(offs, {group}, {1}), {}), end);
    Value start = Minimum(row, index(rows - tile));
    // Always forward: offsets out of order must not hang the device.
    Value stop = Maximum(Minimum(group_end, Add(start, index(tile))), Add(row, index(1)));
    Value numbers = Add(builder.Iota({DType::kS32, {tile}}, 0), BroadcastTo(start, {tile}));
    Value mask = And(Ge(numbers, BroadcastTo(row, {tile})), Lt(numbers, BroadcastTo(stop, {tile})));
    const Tile t{v[3], v[4], start, group, index(0), mask, v[5]};
    return Values{stop, end, offs, v[3], v[4], body(t)};
  };
  return While({index(0), end, offs, a, b, init}, more, step)[5];
}

// Rows a step takes: about two groups' worth on average, in multiples of 8.
int64_t TileRows(int64_t rows, int64_t groups) {
  const int64_t wanted = (2 * rows / std::max<int64_t>(groups, 1) + 7) / 8 * 8;
  return std::min(rows, std::clamp<int64_t>(wanted, 8, 512));
}

const DotDims kMatrixDims{.lhs_contract = {1}, .rhs_contract = {0}};

// [rows, k] times [groups, k, n], each row with its group's matrix; rows past the last group are 0.
Value GroupedRows(Call& c, Value a, Value b, Value offs, DType out) {
  const int64_t rows = a.dim(0), k = a.dim(1), n = b.dim(2);
  const int64_t tile = TileRows(rows, b.dim(0));
  Value init = c.builder().Constant({out, {rows, n}}, 0);
  return ForEachTile(a, b, offs, rows, tile, init, [&](const Tile& t) {
    Value lhs = DynamicSlice(t.a, {t.start, t.zero}, {tile, k});
    Value rhs = Reshape(DynamicSlice(t.b, {t.group, t.zero, t.zero}, {1, k, n}), {k, n});
    Value product = Convert(AccumulatingDot(c, lhs, rhs, kMatrixDims), out);
    Value old = DynamicSlice(t.accumulator, {t.start, t.zero}, {tile, n});
    Value ours = BroadcastInDim(t.mask, {tile, n}, {0});
    return DynamicUpdateSlice(t.accumulator, Select(ours, product, old), {t.start, t.zero});
  });
}

// [m, k] times [k, n] with k in groups, one product a group: [groups, m, n].
Value GroupedContraction(Call& c, Value a, Value b, Value offs, DType out) {
  const int64_t m = a.dim(0), k = a.dim(1), n = b.dim(1), groups = offs.dim(0);
  const int64_t tile = TileRows(k, groups);
  Value init = c.builder().Constant({ComputeType(out), {groups, m, n}}, 0);
  Value sums = ForEachTile(a, b, offs, k, tile, init, [&](const Tile& t) {
    Value lhs = DynamicSlice(t.a, {t.zero, t.start}, {m, tile});
    Value rhs = DynamicSlice(t.b, {t.start, t.zero}, {tile, n});
    // Both sides: a NaN of another group times zero is still NaN.
    lhs = Select(BroadcastInDim(t.mask, {m, tile}, {1}), lhs, ConstantLike(lhs, 0));
    rhs = Select(BroadcastInDim(t.mask, {tile, n}, {0}), rhs, ConstantLike(rhs, 0));
    Value product = Convert(AccumulatingDot(c, lhs, rhs, kMatrixDims), t.accumulator.dtype());
    Value old = DynamicSlice(t.accumulator, {t.group, t.zero, t.zero}, {1, m, n});
    return DynamicUpdateSlice(t.accumulator, Add(old, Reshape(product, {1, m, n})),
                              {t.group, t.zero, t.zero});
  });
  return Convert(sums, out);
}

Values GroupedMm(Call& c) {
  Value a = c.tensor("self"), b = c.tensor("mat2");
  const Type& out = c.result();
  if (a.rank() == 3 && b.rank() == 3) return {Convert(MatrixProduct(c, a, b), out.dtype)};
  Value offs = c.tensor("offs");
  if (a.numel() == 0 || b.numel() == 0 || out.numel() == 0 || offs.numel() == 0) {
    return {c.builder().Constant(out, 0)};
  }
  if (a.rank() == 2 && b.rank() == 3) return {GroupedRows(c, a, b, offs, out.dtype)};
  if (a.rank() == 2) return {GroupedContraction(c, a, b, offs, out.dtype)};
  // Groups of columns are groups of rows of the transposed product.
  Value product = GroupedRows(c, Transpose(b, {1, 0}), Transpose(a, {0, 2, 1}), offs, out.dtype);
  return {Transpose(product, {1, 0})};
}

// CPU's checks except those for its alignment and its three dtypes: here any dtype and stride will
// do.
std::vector<ResultSpec> GroupedMmShape(const ShapeCall& s) {
  const ShapeTensor &a = s.tensor("self"), &b = s.tensor("mat2"), &offs = s.tensor("offs");
  const size_t a_rank = a.sizes.size(), b_rank = b.sizes.size();
  TORCH_CHECK(a.dtype == b.dtype, "expected m1 and m2 to have the same dtype, but got: ",
              caffe2::TypeMeta::fromScalarType(a.dtype),
              " != ", caffe2::TypeMeta::fromScalarType(b.dtype));
  TORCH_CHECK(a_rank == 2 || a_rank == 3, "mat_a has to be 2 or 3d");
  TORCH_CHECK(b_rank == 2 || b_rank == 3, "mat_b has to be 2 or 3d");
  const bool any_2d = a_rank == 2 || b_rank == 2;
  TORCH_CHECK(a.sizes[a_rank - 1] == b.sizes[b_rank - 2],
              "contraction dimension of mat_a and mat_b must match");
  TORCH_CHECK(offs.defined == any_2d,
              "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are "
              "3d");
  if (offs.defined) {
    TORCH_CHECK(offs.sizes.size() == 1, "offs has to be 1D");
    TORCH_CHECK(offs.dtype == c10::ScalarType::Int, "Offsets have to be int32");
  }
  TORCH_CHECK(!s.has("bias"), "Bias not supported yet");
  const c10::IValue& out_dtype = s.argument("out_dtype");
  TORCH_CHECK(out_dtype.isNone() || out_dtype.toScalarType() == a.dtype,
              "Grouped gemm output dtype must match `mat_a` dtype");
  std::vector<int64_t> sizes;
  if (a_rank == 2 && b_rank == 2) {
    sizes = {offs.sizes[0], a.sizes[0], b.sizes[1]};
  } else if (a_rank == 2) {
    TORCH_CHECK(offs.sizes[0] == b.sizes[0], "matrix batch sizes have to match");
    sizes = {a.sizes[0], b.sizes[2]};
  } else if (b_rank == 2) {
    TORCH_CHECK(offs.sizes[0] == a.sizes[0], "matrix batch sizes have to match");
    sizes = {a.sizes[1], b.sizes[1]};
  } else {
    TORCH_CHECK(a.sizes[0] == b.sizes[0], "batched dimension has to match");
    sizes = {a.sizes[0], a.sizes[1], b.sizes[2]};
  }
  return {{.dtype = a.dtype, .sizes = sizes}};
}
TPU_RULE({.op = "_grouped_mm", .lower = &GroupedMm, .shape = &GroupedMmShape});

}  // namespace

std::vector<int64_t> FreeDims(Value x, const std::vector<int64_t>& batch,
                              const std::vector<int64_t>& contract) {
  std::vector<int64_t> free;
  for (int64_t i = 0; i < x.rank(); ++i) {
    const auto is = [i](int64_t d) { return d == i; };
    if (std::none_of(batch.begin(), batch.end(), is) &&
        std::none_of(contract.begin(), contract.end(), is)) {
      free.push_back(i);
    }
  }
  return free;
}

Value AccumulatingDot(const Call& c, Value a, Value b, const DotDims& dims) {
  const DType dtype = a.dtype();
  if (ComputeType(dtype) != dtype) {  // half types
    return DotGeneral(a, b, dims, PrecisionOf(c, dtype), ComputeType(dtype));
  }
  if (auto product = HostDot(c, a, b, dims)) return *product;
  if (!IsInteger(dtype) && dtype != DType::kPred) {
    return DotGeneral(a, b, dims, PrecisionOf(c, dtype));
  }
  if (ByteSize(dtype) == 8) {
    // The TPU has no 64-bit integer dot.
    return c.on_tpu() ? ElementwiseDot(a, b, dims) : DotGeneral(a, b, dims, Precision::kDefault);
  }
  // Narrow integers wrap alike whether summed narrow or wide.
  return DotGeneral(Convert(a, DType::kS32), Convert(b, DType::kS32), dims, Precision::kDefault);
}

}  // namespace torch_tpu::lowering
