#include "lowering/taps.h"

#include <algorithm>

#include "lowering/dot.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT: rules read like the mathematics

int64_t MostTaps(const Taps& map) {
  size_t most = 0;
  for (const auto& taps : map.taps) most = std::max(most, taps.size());
  return static_cast<int64_t>(most);
}

bool IsIdentity(const Taps& map) {
  if (map.output_size() != map.input_size) return false;
  for (int64_t i = 0; i < map.input_size; ++i) {
    const auto& taps = map.taps[i];
    if (taps.size() != 1 || taps[0].input != i || taps[0].weight != 1) return false;
  }
  return true;
}

// Whether output i is input i / times.
bool IsRepeat(const Taps& map) {
  const int64_t in = map.input_size, out = map.output_size();
  if (in == 0 || out % in != 0) return false;
  const int64_t times = out / in;
  for (int64_t i = 0; i < out; ++i) {
    const auto& taps = map.taps[i];
    if (taps.size() != 1 || taps[0].input != i / times || taps[0].weight != 1) return false;
  }
  return true;
}

// Whether output i is the sum of the i-th run of equally many inputs, all times one weight.
bool IsBlockSum(const Taps& map) {
  const int64_t in = map.input_size, out = map.output_size();
  if (out == 0 || in % out != 0) return false;
  const int64_t length = in / out;
  if (length == 0) return false;
  for (int64_t i = 0; i < out; ++i) {
    const auto& taps = map.taps[i];
    if (static_cast<int64_t>(taps.size()) != length) return false;
    for (int64_t j = 0; j < length; ++j) {
      if (taps[j].input != i * length + j || taps[j].weight != map.taps[0][0].weight) return false;
    }
  }
  return true;
}

Dims Inserted(Dims dims, int dim, int64_t first, int64_t second) {
  dims[dim] = first;
  dims.insert(dims.begin() + dim + 1, second);
  return dims;
}

Value Repeat(Value x, int dim, int64_t times) {
  const Dims wide = Inserted(x.dims(), dim, x.dim(dim), times);
  std::vector<int64_t> mapping(x.rank());
  for (int i = 0; i < x.rank(); ++i) mapping[i] = i <= dim ? i : i + 1;
  Dims merged = x.dims();
  merged[dim] *= times;
  return Reshape(BroadcastInDim(x, wide, mapping), merged);
}

Value BlockSum(Value x, int dim, int64_t blocks, double weight) {
  Value split = Reshape(x, Inserted(x.dims(), dim, blocks, x.dim(dim) / blocks));
  Value sum = Reduce(split, Reduction::kSum, {dim + 1});
  return weight == 1 ? sum : Multiply(sum, ConstantLike(sum, weight));
}

// The taps as rectangular tables, [outputs, most taps], padded with weight 0.
struct Tables {
  Value index, weight, used;
  bool full = true;
};
Tables TablesOf(Builder& b, const Taps& map, int64_t width, DType dtype) {
  const Dims dims = {map.output_size(), width};
  std::vector<int64_t> index, used;
  std::vector<double> weight;
  Tables tables;
  for (const auto& taps : map.taps) {
    for (int64_t j = 0; j < width; ++j) {
      const bool present = j < static_cast<int64_t>(taps.size());
      index.push_back(present ? taps[j].input : 0);
      weight.push_back(present ? taps[j].weight : 0);
      used.push_back(present);
      tables.full &= present;
    }
  }
  tables.index = b.ConstantInts({DType::kS32, dims}, index);
  tables.weight = b.ConstantFloats({dtype, dims}, weight);
  tables.used = b.ConstantInts({DType::kPred, dims}, used);
  return tables;
}

Value ApplyByGather(Value x, int dim, const Tables& tables) {
  Value read = Take(x, tables.index, dim);  // [..., outputs, taps, ...]
  const auto spread = [&](Value table) {
    return BroadcastInDim(table, read.dims(), {dim, dim + 1});
  };
  Value weighted = Multiply(read, spread(tables.weight));
  if (!tables.full) weighted = Select(spread(tables.used), weighted, ConstantLike(weighted, 0));
  return Reduce(weighted, Reduction::kSum, {dim + 1});
}

// The matrix is built on the device from the tables: they are short, and it is mostly zeros.
Value ApplyByMatrix(Value x, int dim, const Tables& tables, int64_t input_size) {
  const Dims dims = {tables.index.dim(0), tables.index.dim(1), input_size};
  Builder& b = x.builder();
  Value here = Eq(b.Iota({DType::kS32, dims}, 2), BroadcastInDim(tables.index, dims, {0, 1}));
  Value weights = BroadcastInDim(tables.weight, dims, {0, 1});
  Value matrix = Reduce(Select(here, weights, ConstantLike(weights, 0)), Reduction::kSum, {1});
  Value product =
      DotGeneral(x, matrix, {.lhs_contract = {dim}, .rhs_contract = {1}}, Precision::kHighest);
  // The mapped dimension came out last.
  std::vector<int64_t> permutation;
  for (int i = 0; i < x.rank(); ++i) {
    permutation.push_back(i < dim ? i : i == dim ? x.rank() - 1 : i - 1);
  }
  return Transpose(product, permutation);
}

}  // namespace

Taps Transposed(const Taps& map) {
  Taps result{.input_size = map.output_size(),
              .taps = std::vector<std::vector<Tap>>(map.input_size)};
  for (int64_t i = 0; i < map.output_size(); ++i) {
    for (const Tap& tap : map.taps[i]) result.taps[tap.input].push_back({i, tap.weight});
  }
  return result;
}

Value Apply(Call& c, Value x, int dim, const Taps& map) {
  if (IsIdentity(map)) return x;
  Dims dims = x.dims();
  dims[dim] = map.output_size();
  const Type out{x.dtype(), dims};
  const int64_t width = MostTaps(map);
  if (x.numel() == 0 || out.numel() == 0 || width == 0) return c.builder().Constant(out, 0);
  if (IsRepeat(map)) return Repeat(x, dim, map.output_size() / map.input_size);
  if (IsBlockSum(map)) return BlockSum(x, dim, map.output_size(), map.taps[0][0].weight);
  const Tables tables = TablesOf(c.builder(), map, width, x.dtype());
  // Gathers along a minor dimension are slow on TPU, and matrix products are not.
  if (c.on_tpu()) return ApplyByMatrix(x, dim, tables, map.input_size);
  return ApplyByGather(x, dim, tables);
}

}  // namespace torch_tpu::lowering
