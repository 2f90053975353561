#include <c10/util/Exception.h>

#include <cmath>
#include <functional>
#include <limits>

#include "lowering/dot.h"
#include "lowering/elementwise.h"
#include "lowering/philox.h"
#include "lowering/rule.h"

// Scaled dot-product attention. Queries, keys and values are brought to [batch, kv head, ...]: the
// query heads that share a key head form a dimension of their own, so that keys are never repeated.
namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT: rules read like the mathematics

// Sizes of one call. A missing batch dimension counts as 1.
struct Heads {
  int64_t batch, kv_heads, group, queries, keys, features, value_features;

  int64_t query_heads() const { return kv_heads * group; }
  Dims query() const { return {batch, kv_heads, group, queries, features}; }
  Dims key() const { return {batch, kv_heads, keys, features}; }
  Dims value() const { return {batch, kv_heads, keys, value_features}; }
  Dims output() const { return {batch, kv_heads, group, queries, value_features}; }
  Dims scores() const { return {batch, kv_heads, group, queries, keys}; }
  Dims rows() const { return {batch, kv_heads, group, queries}; }
  Dims bias() const { return {batch, query_heads(), queries, keys}; }
};

Heads HeadsOf(const Dims& query, const Dims& key, const Dims& value) {
  const size_t rank = query.size();
  TORCH_CHECK(rank == 3 || rank == 4, "query must be 3D or 4D");
  TORCH_CHECK(key.size() == rank && value.size() == rank,
              "query, key and value must have the same number of dimensions");
  const auto from_end = [rank](const Dims& dims, int i) { return dims[rank - i]; };
  const int64_t query_heads = from_end(query, 3), kv_heads = from_end(key, 3);
  TORCH_CHECK(kv_heads > 0 && query_heads % kv_heads == 0, "Number of heads of the query (",
              query_heads, ") must be a multiple of that of key and value (", kv_heads, ")");
  TORCH_CHECK(from_end(value, 3) == kv_heads && from_end(value, 2) == from_end(key, 2),
              "key and value must have the same heads and the same length, but got ",
              c10::IntArrayRef(key), " and ", c10::IntArrayRef(value));
  TORCH_CHECK(from_end(key, 1) == from_end(query, 1),
              "query and key must have the same head dimension, but got ", c10::IntArrayRef(query),
              " and ", c10::IntArrayRef(key));
  TORCH_CHECK(rank == 3 || (query[0] == key[0] && query[0] == value[0]),
              "query, key and value must have the same batch size");
  return {.batch = rank == 4 ? query[0] : 1,
          .kv_heads = kv_heads,
          .group = query_heads / kv_heads,
          .queries = from_end(query, 2),
          .keys = from_end(key, 2),
          .features = from_end(query, 1),
          .value_features = from_end(value, 1)};
}

// The operands of forward and backward in their common form.
struct Attention {
  Heads heads;
  Value query, key, value;
  DType dtype, compute;
};

Attention AttentionOf(const Call& c) {
  Value q = c.tensor("query"), k = c.tensor("key"), v = c.tensor("value");
  const Heads heads = HeadsOf(q.dims(), k.dims(), v.dims());
  return {.heads = heads,
          .query = Reshape(q, heads.query()),
          .key = Reshape(k, heads.key()),
          .value = Reshape(v, heads.value()),
          .dtype = q.dtype(),
          .compute = ComputeType(q.dtype())};
}

Value ScaleOf(const Call& c, const Attention& a) {
  if (c.has("scale")) return c.scalar("scale", a.compute);
  const double scale = 1 / std::sqrt(static_cast<double>(a.heads.features));
  return Scalar(c.builder(), a.compute, scale);
}

Value Times(Value x, Value factor) { return Multiply(x, BroadcastTo(factor, x.dims())); }

// Contracts queries' (or probabilities') last dimension with `contract` of [batch, head, keys,
// features].
Value RowsTimes(const Call& c, Value rows, Value keys, int64_t contract) {
  return AccumulatingDot(
      c, rows, keys,
      {.lhs_batch = {0, 1}, .rhs_batch = {0, 1}, .lhs_contract = {4}, .rhs_contract = {contract}});
}

// Sums over the queries of all heads that share a key head.
Value SumOverQueries(const Call& c, Value a, Value b) {
  return AccumulatingDot(
      c, a, b,
      {.lhs_batch = {0, 1}, .rhs_batch = {0, 1}, .lhs_contract = {2, 3}, .rhs_contract = {2, 3}});
}

// Scaled, biased and masked, in the compute type.
Value ScoresOf(const Call& c, const Attention& a, Value scale) {
  const Dims dims = a.heads.scores();
  Value scores = Times(RowsTimes(c, a.query, a.key, 3), scale);
  Value nothing = BroadcastTo(MinValue(c.builder(), a.compute), dims);
  if (auto bias = c.optional_tensor("attn_bias")) {
    Value wide = Reshape(BroadcastTo(*bias, a.heads.bias()), dims);
    scores = bias->dtype() == DType::kPred ? Select(wide, scores, nothing)
                                           : Add(scores, Convert(wide, a.compute));
  }
  if (c.boolean("is_causal")) {
    const Type table{DType::kS32, {a.heads.queries, a.heads.keys}};
    Value seen = Ge(c.builder().Iota(table, 0), c.builder().Iota(table, 1));
    scores = Select(BroadcastTo(seen, dims), scores, nothing);
  }
  return scores;
}

// Drops entries with the call's probability and scales up the others.
Value Dropout(const Call& c, Value x, Value seed, Value offset) {
  Value words = Reshape(RandomWords(seed, offset, x.numel(), Stream::kCall), x.dims());
  words = ShiftRightLogical(words, ConstantLike(words, 8));
  Value uniform = Convert(words, DType::kF32);
  uniform = Multiply(uniform, ConstantLike(uniform, 0x1p-24));
  Value probability = c.scalar("dropout_p", DType::kF32);
  Value keep = Ge(uniform, BroadcastTo(probability, x.dims()));
  Value kept = Subtract(ConstantLike(probability, 1), probability);
  Value scale = Convert(Divide(ConstantLike(kept, 1), kept), x.dtype());
  return Select(keep, Times(x, scale), ConstantLike(x, 0));
}

Value AlongRows(Value rows, const Dims& dims) { return BroadcastInDim(rows, dims, {0, 1, 2, 3}); }

Value ReplaceRow(Value rows, Value where, double value) {
  return Select(where, ConstantLike(rows, value), rows);
}

// Rows with every key masked attend to nothing and give zeros, not NaN: -inf counts as 0 where it
// is subtracted.
Value WithoutMasked(Value rows) {
  Value masked = BroadcastTo(MinValue(rows.builder(), rows.dtype()), rows.dims());
  return ReplaceRow(rows, Eq(rows, masked), 0);
}

// exp(scores - top), not yet divided by its sums.
struct Softmax {
  Value top, weights, sum;
};
Softmax SoftmaxOf(Value scores) {
  Value top = WithoutMasked(Reduce(scores, Reduction::kMax, {4}));
  Value weights = Exp(Subtract(scores, AlongRows(top, scores.dims())));
  return {top, weights, Reduce(weights, Reduction::kSum, {4})};
}

// False where the probability is known to be 0.
bool Drops(const CallSpec& spec) {
  return spec.argument("dropout_p").kind != ArgumentSpec::Kind::kConstant;
}

// Results: output, logsumexp, two cumulative lengths (of nested tensors only: empty), the seed and
// offset dropout used, and the debug mask (empty).
Values AttentionForward(Call& c) {
  const Attention a = AttentionOf(c);
  Builder& b = c.builder();
  const auto rest = [&](int first) {
    Values values;
    for (int i = first; i < static_cast<int>(c.num_results()); ++i) {
      if (!c.wants(i)) {
        values.emplace_back();
      } else if ((i == 4 || i == 5) && Drops(c.spec())) {
        Value state = i == 4 ? c.seed() : c.offset();
        values.push_back(BitcastConvert(state, DType::kS64));
      } else {
        values.push_back(b.Constant(c.result(i), 0));
      }
    }
    return values;
  };
  if (c.result(0).numel() == 0 || a.heads.keys == 0) {
    Values results = {b.Constant(c.result(0), 0),
                      b.Constant(c.result(1), -std::numeric_limits<double>::infinity())};
    for (Value v : rest(2)) results.push_back(v);
    return results;
  }
  Value scores = ScoresOf(c, a, ScaleOf(c, a));
  const Softmax rows = SoftmaxOf(scores);
  Value weights = rows.weights, sum = rows.sum;
  Value logsumexp = Add(Log(sum), rows.top);
  if (Drops(c.spec())) weights = Dropout(c, weights, c.seed(), c.offset());
  weights = Convert(weights, a.dtype);
  Value divisor = ReplaceRow(sum, Eq(sum, ConstantLike(sum, 0)), 1);
  Value output;
  if (c.on_tpu()) {
    // Features before queries: the order that its compiler finds for what reads the output, and
    // does not find by itself.
    output = AccumulatingDot(
        c, a.value, weights,
        {.lhs_batch = {0, 1}, .rhs_batch = {0, 1}, .lhs_contract = {2}, .rhs_contract = {4}});
    output = Divide(output, BroadcastInDim(divisor, output.dims(), {0, 1, 3, 4}));
    output = Transpose(output, {0, 1, 3, 4, 2});
  } else {
    output = RowsTimes(c, weights, a.value, 2);
    output = Divide(output, AlongRows(divisor, output.dims()));
  }
  Values results = {Reshape(Convert(output, a.dtype), c.result(0).dims),
                    Reshape(Convert(logsumexp, c.result(1).dtype), c.result(1).dims)};
  for (Value v : rest(2)) results.push_back(v);
  return results;
}

// Sums the dimensions `dims` broadcasts.
Value SumTo(Value x, const Dims& dims) {
  const int offset = x.rank() - static_cast<int>(dims.size());
  std::vector<int64_t> summed;
  for (int i = 0; i < x.rank(); ++i) {
    if (i < offset || (dims[i - offset] == 1 && x.dim(i) != 1)) summed.push_back(i);
  }
  return Reshape(summed.empty() ? x : Reduce(x, Reduction::kSum, summed), dims);
}

Values AttentionBackward(Call& c) {
  Attention a = AttentionOf(c);
  Values results(4);
  if (c.tensor("grad_out").numel() == 0 || a.heads.keys == 0) {
    for (int i = 0; i < 4; ++i) {
      if (c.wants(i)) results[i] = c.builder().Constant(c.result(i), 0);
    }
    return results;
  }
  Value grad = Reshape(c.tensor("grad_out"), a.heads.output());
  if (c.on_tpu()) {
    // Where forward and backward are one program its compiler would find that the scores are the
    // forward's and keep those, queries times keys in size, until here.
    const Values anew = OptimizationBarrier({a.query, a.key, grad});
    a.query = anew[0];
    a.key = anew[1];
    grad = anew[2];
  }
  Value scale = ScaleOf(c, a);
  Value scores = ScoresOf(c, a, scale);
  // Forward saves float32, which is too little for float64.
  const Softmax rows = SoftmaxOf(scores);
  Value logsumexp = a.compute == DType::kF64
                        ? Add(Log(rows.sum), rows.top)
                        : Reshape(Convert(c.tensor("logsumexp"), a.compute), a.heads.rows());
  logsumexp = WithoutMasked(logsumexp);
  Value weights = Exp(Subtract(scores, AlongRows(logsumexp, scores.dims())));

  Value output = Reshape(c.tensor("out"), a.heads.output());
  Value delta =
      Reduce(Multiply(Convert(grad, a.compute), Convert(output, a.compute)), Reduction::kSum, {4});
  Value grad_weights = RowsTimes(c, grad, a.value, 3);
  Value dropped = weights;
  if (Drops(c.spec())) {
    Value seed = BitcastConvert(Convert(c.tensor("philox_seed"), DType::kS64), DType::kU64);
    Value offset = BitcastConvert(Convert(c.tensor("philox_offset"), DType::kS64), DType::kU64);
    dropped = Dropout(c, weights, seed, offset);
    grad_weights = Dropout(c, grad_weights, seed, offset);
  }
  Value grad_scores = Multiply(weights, Subtract(grad_weights, AlongRows(delta, scores.dims())));
  Value rounded = Convert(grad_scores, a.dtype);

  const auto give = [&](int i, const std::function<Value()>& compute) {
    if (!c.wants(i)) return;
    results[i] = Reshape(Convert(compute(), c.result(i).dtype), c.result(i).dims);
  };
  give(0, [&] { return Times(RowsTimes(c, rounded, a.key, 2), scale); });
  give(1, [&] { return Times(SumOverQueries(c, rounded, a.query), scale); });
  give(2, [&] { return SumOverQueries(c, Convert(dropped, a.dtype), grad); });
  give(3, [&] { return SumTo(Reshape(grad_scores, a.heads.bias()), c.result(3).dims); });
  return results;
}

std::vector<ResultSpec> AttentionBackwardShape(const ShapeCall& s) {
  const auto mask = s.argument("grad_input_mask").toBoolList();
  std::vector<ResultSpec> results;
  const char* const inputs[] = {"query", "key", "value", "attn_bias"};
  for (int i = 0; i < 4; ++i) {
    const ShapeTensor& input = s.tensor(inputs[i]);
    if (!mask.get(i) || !input.defined) {
      results.push_back({.defined = false});
    } else {
      results.push_back(ElementwiseResult(s, {inputs[i]}, input.dtype));
    }
  }
  return results;
}

TPU_RULE({.op = "_scaled_dot_product_fused_attention_overrideable",
          .lower = &AttentionForward,
          .specialize = {{"dropout_p", {0.0}}},
          .random = true,
          .draws = &Drops});
TPU_RULE({.op = "_scaled_dot_product_fused_attention_overrideable_backward",
          .lower = &AttentionBackward,
          .shape = &AttentionBackwardShape,
          .specialize = {{"dropout_p", {0.0}}}});

}  // namespace
}  // namespace torch_tpu::lowering
