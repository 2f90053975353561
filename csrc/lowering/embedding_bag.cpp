#include <c10/util/Exception.h>

#include <limits>
#include <optional>

#include "lowering/indices.h"
#include "lowering/rule.h"
#include "lowering/scan.h"

// Rows of a table, summed, averaged or maximized bag by bag.
namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT: rules read like the mathematics
using c10::ScalarType;

enum Mode : int64_t { kSum = 0, kMean = 1, kMax = 2 };

// Adds (or maximizes, ...) row i of `updates` into row place[i] of a constant array; places out of
// bounds are dropped.
Value IntoRows(Type type, double init, Value place, Value updates, Combine combine) {
  ScatterDims dims;
  for (int64_t d = 1; d < updates.rank(); ++d) dims.update_window_dims.push_back(d);
  dims.inserted_window_dims = {0};
  dims.scatter_dims_to_operand_dims = {0};
  dims.index_vector_dim = 1;
  type.dtype = updates.dtype();
  return Scatter(updates.builder().Constant(type, init), Reshape(place, {place.numel(), 1}),
                 updates, dims, CombineRegion(combine, updates.dtype()));
}

Value AcrossRow(Value per_row, Value rows) {
  return BroadcastInDim(per_row, rows.dims(), std::vector<int64_t>{0});
}

// Where `keep` is false, the bag beyond the last: its rows are dropped.
Value WithoutPadding(Value place, std::optional<Value> keep, int64_t bags) {
  if (!keep) return place;
  return Select(*keep, place, place.builder().ConstantInt(place.type(), bags));
}

std::optional<Value> NotPadding(const Call& c, Value indices) {
  const int64_t padding = c.integer("padding_idx");
  if (padding < 0) return std::nullopt;
  return Ne(indices, c.builder().ConstantInt(indices.type(), padding));
}

// The bag of each index: how many bags begin at or before it, less one.
Value BagOfIndex(Call& c, Value offsets, int64_t count) {
  Value starts = NarrowIndices(offsets, count + 1);
  Value ones = c.builder().ConstantInt(starts.type(), 1);
  Value begun = IntoRows({starts.dtype(), {count}}, 0, starts, ones, Combine::kAdd);
  Value bags = InclusiveScan(c, begun, Reduction::kSum, 0);
  return Subtract(bags, ConstantLike(bags, 1));
}

// Results: the bags, the bag of each index, the size of each bag, and, of maxima, the row each
// element comes from.
Values EmbeddingBag(Call& c) {
  Builder& b = c.builder();
  const Type& out = c.result();
  const int64_t bags = out.dims[0], mode = c.integer("mode");
  Value weight = c.tensor("weight"), offsets = c.tensor("offsets");
  const int64_t count = c.tensor("indices").numel();
  Values results;
  for (int i = 0; i < 4; ++i) results.push_back(ZeroConstant(b, c.result(i)));
  if (count == 0) return results;
  if (offsets.numel() > 0) {
    Value first = Reshape(SliceDim(offsets, 0, 0, 1), {});
    c.Check(Eq(first, ConstantLike(first, 0)),
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from "
            "position 0",
            Call::ErrorKind::kRuntime);
    Value last = Reshape(SliceDim(offsets, 0, offsets.dim(0) - 1, offsets.dim(0)), {});
    c.Check(Le(last, ConstantLike(last, static_cast<double>(count))),
            "offsets[-1] can not be greater than input's length", Call::ErrorKind::kRuntime);
  }
  Value indices = CheckedIndices(c, c.tensor("indices"), weight.dim(0), Negative::kIsError,
                                 "index out of range in self", Call::ErrorKind::kRuntime);
  Value bag = BagOfIndex(c, offsets, count);
  const std::optional<Value> keep = NotPadding(c, indices);
  Value place = WithoutPadding(bag, keep, bags);
  Value sizes =
      IntoRows({place.dtype(), {bags}}, 0, place, b.ConstantInt(place.type(), 1), Combine::kAdd);
  results[1] = Convert(bag, c.result(1).dtype);
  // With include_last_offset there is one offset more than there are bags.
  results[2] =
      Convert(Pad(sizes, ScalarInt(b, sizes.dtype(), 0), {0}, {c.result(2).numel() - bags}),
              c.result(2).dtype);
  if (out.numel() == 0) return results;

  const DType compute = ComputeType(out.dtype);
  Value rows = Convert(Take(weight, indices, 0), compute);
  if (auto factors = c.optional_tensor("per_sample_weights")) {
    rows = Multiply(rows, AcrossRow(Convert(*factors, compute), rows));
  }
  if (mode != kMax) {
    Value sum = IntoRows(out, 0, place, rows, Combine::kAdd);
    if (mode == kMean) {
      Value divisor = Maximum(sizes, ConstantLike(sizes, 1));
      sum = Divide(sum, AcrossRow(Convert(divisor, compute), sum));
    }
    results[0] = Convert(sum, out.dtype);
    return results;
  }
  Value top = IntoRows(out, -std::numeric_limits<double>::infinity(), place, rows, Combine::kMax);
  Value empty = AcrossRow(Eq(sizes, ConstantLike(sizes, 0)), top);
  results[0] = Convert(Select(empty, ConstantLike(top, 0), top), out.dtype);
  // The first index of the bag that attains the maximum.
  Value last_bag = b.ConstantInt(bag.type(), bags - 1);
  Value attained = Eq(rows, Take(top, Minimum(bag, last_bag), 0));
  Value position = Positions(b, rows.dims(), 0);
  position = Select(attained, position, b.ConstantInt(position.type(), count - 1));
  Value source = IntoRows({position.dtype(), out.dims}, static_cast<double>(count - 1), place,
                          position, Combine::kMin);
  Value row = Take(indices, source, 0);
  results[3] = Convert(Select(empty, ConstantLike(row, 0), row), c.result(3).dtype);
  return results;
}

std::vector<ResultSpec> EmbeddingBagShape(const ShapeCall& s) {
  const ShapeTensor &weight = s.tensor("weight"), &indices = s.tensor("indices");
  const ShapeTensor &offsets = s.tensor("offsets"), &factors = s.tensor("per_sample_weights");
  const int64_t mode = s.argument("mode").toInt();
  const bool last = s.argument("include_last_offset").toBool();
  TORCH_CHECK(indices.sizes.size() == 1 && offsets.sizes.size() == 1,
              "input and offsets have to be 1D tensors, but got ", indices.sizes.size(), " and ",
              offsets.sizes.size(), " dimensions");
  TORCH_CHECK(weight.sizes.size() == 2, "weight has to be a 2D Tensor, but got Tensor of ",
              "dimension ", weight.sizes.size());
  for (const ShapeTensor* t : {&indices, &offsets}) {
    TORCH_CHECK(t->dtype == ScalarType::Int || t->dtype == ScalarType::Long,
                "Expected tensor for argument #1 'indices' to have one of the following scalar "
                "types: Long, Int; but got ",
                t->dtype, " instead (while checking arguments for embedding_bag)");
  }
  TORCH_CHECK(c10::isFloatingType(weight.dtype),
              "Expected tensor for argument #1 'weight' to have one of the following scalar types: "
              "Half, BFloat16, Float, Double; but got torch.",
              weight.dtype, " instead (while checking arguments for embedding_bag)");
  TORCH_CHECK(!last || offsets.sizes[0] >= 1,
              "include_last_offset: number of offsets should be at least 1");
  if (factors.defined) {
    TORCH_CHECK(mode == kSum, "embedding_bag: per_sample_weights only supported with mode='sum'");
    TORCH_CHECK(factors.dtype == weight.dtype, "expected scalar type ", weight.dtype, " but found ",
                factors.dtype);
    TORCH_CHECK(factors.sizes == indices.sizes,
                "embedding_bag: If per_sample_weights is not None, it must have the same shape as "
                "the indices");
  }
  const ScalarType index = indices.dtype == offsets.dtype ? indices.dtype : ScalarType::Long;
  const int64_t bags = offsets.sizes[0] - (last ? 1 : 0);
  std::vector<ResultSpec> results;
  results.push_back({.dtype = weight.dtype, .sizes = {bags, weight.sizes[1]}});
  results.push_back({.dtype = index, .sizes = indices.sizes});
  results.push_back({.dtype = index, .sizes = offsets.sizes});
  results.push_back({.dtype = index, .sizes = {0}});
  if (mode == kMax) results.back().sizes = results.front().sizes;
  return results;
}

// What both gradients read: rows and bags of the indices.
struct Bags {
  Value indices, bag;
  std::optional<Value> keep;
  Value grad;  // of each bag
};

Bags BagsOf(const Call& c, int64_t rows, DType compute) {
  Bags bags;
  bags.grad = Convert(c.tensor("grad"), compute);
  bags.indices = NarrowIndices(c.tensor("indices"), rows + 1);
  bags.bag = NarrowIndices(c.tensor("offset2bag"), bags.grad.dim(0));
  bags.keep = NotPadding(c, bags.indices);
  return bags;
}

Values EmbeddingBagBackward(Call& c) {
  Builder& b = c.builder();
  const Type& out = c.result();
  const int64_t rows = out.dims[0], mode = c.integer("mode");
  const DType compute = ComputeType(out.dtype);
  if (c.tensor("indices").numel() == 0 || c.tensor("grad").numel() == 0 || out.numel() == 0) {
    return {ZeroConstant(b, out)};
  }
  const Bags bags = BagsOf(c, rows, compute);
  Value sizes = SliceDim(c.tensor("bag_size"), 0, 0, bags.grad.dim(0));
  if (mode == kMax) {
    // Element by element: each has a row of its own, that of an empty bag out of bounds.
    Value source = NarrowIndices(c.tensor("maximum_indices"), rows + 1);
    Value empty = AcrossRow(Eq(sizes, ConstantLike(sizes, 0)), source);
    source = Select(empty, b.ConstantInt(source.type(), rows), source);
    Value zeros = ZeroConstant(b, {compute, out.dims});
    return {Convert(ScatterElements(zeros, 0, source, bags.grad, Combine::kAdd), out.dtype)};
  }
  Value updates = Take(bags.grad, bags.bag, 0);
  Value place = WithoutPadding(bags.indices, bags.keep, rows);
  if (auto factors = c.optional_tensor("per_sample_weights")) {
    updates = Multiply(updates, AcrossRow(Convert(*factors, compute), updates));
  }
  if (mode == kMean) {
    Value size = Convert(Take(Maximum(sizes, ConstantLike(sizes, 1)), bags.bag, 0), compute);
    updates = Divide(updates, AcrossRow(size, updates));
  }
  if (c.boolean("scale_grad_by_freq")) {
    Value one = b.Constant({compute, {place.numel()}}, 1);
    Value uses = IntoRows({compute, {rows}}, 0, bags.indices, one, Combine::kAdd);
    updates = Divide(updates, AcrossRow(Take(uses, bags.indices, 0), updates));
  }
  return {Convert(IntoRows(out, 0, place, updates, Combine::kAdd), out.dtype)};
}

std::vector<ResultSpec> EmbeddingBagBackwardShape(const ShapeCall& s) {
  TORCH_CHECK_NOT_IMPLEMENTED(!s.has("sparse") || !s.argument("sparse").toBool(),
                              "embedding_bag: sparse gradients are not supported on tpu");
  const ShapeTensor& grad = s.tensor("grad");
  return {{.dtype = grad.dtype, .sizes = {s.argument("num_weights").toInt(), grad.sizes.at(1)}}};
}

Values EmbeddingBagFactorsBackward(Call& c) {
  const Type& out = c.result();
  Value weight = c.tensor("weight");
  const DType compute = ComputeType(out.dtype);
  if (out.numel() == 0 || c.tensor("grad").numel() == 0) return {ZeroConstant(c.builder(), out)};
  const Bags bags = BagsOf(c, weight.dim(0), compute);
  Value rows = Convert(Take(weight, bags.indices, 0), compute);
  Value products = Multiply(rows, Take(bags.grad, bags.bag, 0));
  Value sum = Reduce(products, Reduction::kSum, {1});
  if (bags.keep) sum = Select(*bags.keep, sum, ConstantLike(sum, 0));
  return {Convert(sum, out.dtype)};
}

std::vector<ResultSpec> EmbeddingBagFactorsBackwardShape(const ShapeCall& s) {
  TORCH_CHECK(s.argument("mode").toInt() == kSum,
              "embedding_bag_backward: per_sample_weights only supported for mode='sum'");
  return {{.dtype = s.tensor("grad").dtype, .sizes = s.tensor("indices").sizes}};
}

TPU_RULE({.op = "_embedding_bag", .lower = &EmbeddingBag, .shape = &EmbeddingBagShape});
TPU_RULE({.op = "_embedding_bag_forward_only",
          .lower = &EmbeddingBag,
          .shape = &EmbeddingBagShape});
TPU_RULE({.op = "_embedding_bag_backward",
          .lower = &EmbeddingBagBackward,
          .shape = &EmbeddingBagBackwardShape});
TPU_RULE({.op = "_embedding_bag_dense_backward",
          .lower = &EmbeddingBagBackward,
          .shape = &EmbeddingBagBackwardShape});
TPU_RULE({.op = "_embedding_bag_per_sample_weights_backward",
          .lower = &EmbeddingBagFactorsBackward,
          .shape = &EmbeddingBagFactorsBackwardShape});

}  // namespace
}  // namespace torch_tpu::lowering
