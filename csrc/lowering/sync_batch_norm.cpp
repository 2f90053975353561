// The pieces that torch.nn.SyncBatchNorm puts together with its collectives between them: the
// statistics of one process's share of a batch, those of the whole batch, and the same for the
// gradients. Channels are dimension 1.
#include <c10/util/Exception.h>

#include "lowering/memory_order.h"
#include "lowering/reduction.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: Add, Multiply, Reduce, ... read like the mathematics

Value Finish(Call& c, Value x, int i) {
  return Reshape(Convert(x, c.result(i).dtype), c.result(i).dims);
}

std::vector<int64_t> AllButChannels(Value x) {
  std::vector<int64_t> dims = AllDims(x);
  dims.erase(dims.begin() + 1);
  return dims;
}

// A tensor over channels and elements in the type that statistics are computed in.
struct Channels {
  Value x;
  std::vector<int64_t> others;

  explicit Channels(Value input)
      : x(Convert(input, ComputeType(input.dtype()))), others(AllButChannels(input)) {}
  Value Spread(Value per_channel) const {
    return BroadcastReduced(Convert(per_channel, x.dtype()), x.dims(), others);
  }
  Value Sum(Value elements) const { return Reduce(elements, Reduction::kSum, others); }
  Value Centred(Value mean) const { return Subtract(x, Spread(mean)); }
};

Value Spread(Value number, Value like) { return BroadcastTo(number, like.dims()); }

Value InverseRoot(Value variance, Value eps) { return Rsqrt(Add(variance, Spread(eps, variance))); }

Values Stats(Call& c) {
  const Channels in(c.tensor("input"));
  const Moments moments = MomentsOver(in.x, in.others);
  Value count =
      ConstantLike(moments.squares, static_cast<double>(CountOver(in.x.dims(), in.others)));
  Value variance = Divide(moments.squares, count);
  return {Finish(c, moments.mean, 0),
          Finish(c, InverseRoot(variance, c.scalar("eps", in.x.dtype())), 1)};
}

// running <- (1 - momentum) running + momentum now
Value Running(Value running, Value momentum, Value now) {
  Value old = Convert(running, now.dtype());
  Value moved = Multiply(Spread(momentum, now), Subtract(now, old));
  return Convert(Add(old, moved), running.dtype());
}

// What a batch's running statistics become, as results after the declared ones.
void AppendRunning(Call& c, Value mean, Value variance, Value count, Values& out) {
  Value momentum = c.scalar("momentum", mean.dtype());
  if (auto running = c.optional_tensor("running_mean")) {
    out.push_back(Running(*running, momentum, mean));
  }
  if (auto running = c.optional_tensor("running_var")) {
    Value unbiased = Divide(count, Subtract(count, ConstantLike(count, 1)));
    out.push_back(Running(*running, momentum, Multiply(variance, Spread(unbiased, variance))));
  }
}

// From the statistics of shares, [shares, channels], of `counts` elements a channel, [shares].
Values GatherStats(Call& c, Value counts) {
  Value means = c.tensor("mean"), invstds = c.tensor("invstd");
  const DType dtype = ComputeType(means.dtype());
  means = Convert(means, dtype);
  invstds = Convert(invstds, dtype);
  Value eps = c.scalar("eps", dtype);
  Value weights = BroadcastReduced(Convert(counts, dtype), means.dims(), {1});
  Value count = Reduce(Convert(counts, dtype), Reduction::kSum, {0});
  auto average = [&](Value x) {
    Value sum = Reduce(Multiply(weights, x), Reduction::kSum, {0});
    return Divide(sum, Spread(count, sum));
  };
  Value mean = average(means);
  Value variances =
      Subtract(Divide(ConstantLike(invstds, 1), Multiply(invstds, invstds)), Spread(eps, invstds));
  Value distance = Subtract(means, BroadcastReduced(mean, means.dims(), {0}));
  Value variance = average(Add(variances, Multiply(distance, distance)));
  Values out = {Finish(c, mean, 0), Finish(c, InverseRoot(variance, eps), 1)};
  AppendRunning(c, mean, variance, count, out);
  return out;
}

Values GatherStatsOfEqualShares(Call& c) {
  Value means = c.tensor("mean");
  return GatherStats(
      c, c.builder().Constant({ComputeType(means.dtype()), {means.dim(0)}}, c.integer("count")));
}

Values GatherStatsWithCounts(Call& c) { return GatherStats(c, c.tensor("counts")); }

Values UpdateStats(Call& c) {
  const Channels in(c.tensor("input"));
  const Moments moments = MomentsOver(in.x, in.others);
  Value count =
      Scalar(c.builder(), in.x.dtype(), static_cast<double>(CountOver(in.x.dims(), in.others)));
  Value variance = Divide(moments.squares, Spread(count, moments.squares));
  Values out = {Finish(c, moments.mean, 0), Finish(c, variance, 1)};
  AppendRunning(c, moments.mean, variance, count, out);
  return out;
}

Values Normalize(Call& c) {
  const Channels in(c.tensor("input"));
  Value y = Multiply(in.Centred(c.tensor("mean")), in.Spread(c.tensor("invstd")));
  if (auto weight = c.optional_tensor("weight")) y = Multiply(y, in.Spread(*weight));
  if (auto bias = c.optional_tensor("bias")) y = Add(y, in.Spread(*bias));
  return {Finish(c, y, 0)};
}

Values BackwardReduce(Call& c) {
  const Channels in(c.tensor("input"));
  Value grad = Convert(c.tensor("grad_out"), in.x.dtype());
  Value sum = in.Sum(grad);
  Value along = in.Sum(Multiply(grad, in.Centred(c.tensor("mean"))));
  Values out = {Value(), Value(), Value(), Value()};
  if (c.wants(0)) out[0] = Finish(c, sum, 0);
  if (c.wants(1)) out[1] = Finish(c, along, 1);
  if (c.wants(2)) {
    out[2] = Finish(c, Multiply(along, Convert(c.tensor("invstd"), along.dtype())), 2);
  }
  if (c.wants(3)) out[3] = Finish(c, sum, 3);
  return out;
}

Values BackwardElementwise(Call& c) {
  const Channels in(c.tensor("input"));
  const DType dtype = in.x.dtype();
  Value grad = Convert(c.tensor("grad_out"), dtype);
  Value invstd = Convert(c.tensor("invstd"), dtype);
  Value counts = c.tensor("count");
  Value count = Convert(Reduce(counts, Reduction::kSum, AllDims(counts)), dtype);
  auto average = [&](const char* name) {
    Value sum = Convert(c.tensor(name), dtype);
    return Divide(sum, Spread(count, sum));
  };
  Value along = Multiply(average("sum_dy_xmu"), Multiply(invstd, invstd));
  Value rest = Subtract(Subtract(grad, in.Spread(average("sum_dy"))),
                        Multiply(in.Centred(c.tensor("mean")), in.Spread(along)));
  Value factor = invstd;
  if (auto weight = c.optional_tensor("weight")) factor = Multiply(factor, Convert(*weight, dtype));
  return {Finish(c, Multiply(rest, in.Spread(factor)), 0)};
}

// --- shapes

// Half precision keeps its statistics in float32.
c10::ScalarType StatisticsType(const ShapeTensor& t) {
  return c10::isReducedFloatingType(t.dtype) ? c10::ScalarType::Float : t.dtype;
}

int64_t ChannelsOf(const ShapeTensor& input) {
  TORCH_CHECK(input.sizes.size() >= 2, "expected an input of at least 2 dimensions, got ",
              c10::IntArrayRef(input.sizes));
  TORCH_CHECK(c10::isFloatingType(input.dtype), "expected a floating point input, got ",
              input.dtype);
  return input.sizes[1];
}

std::vector<ResultSpec> StatsShape(const ShapeCall& c) {
  const ShapeTensor& input = c.tensor("input");
  const ResultSpec one = {.dtype = StatisticsType(input), .sizes = {ChannelsOf(input)}};
  return {one, one};
}

std::vector<ResultSpec> UpdateStatsShape(const ShapeCall& c) {
  const ShapeTensor& input = c.tensor("input");
  const ResultSpec one = {.dtype = input.dtype, .sizes = {ChannelsOf(input)}};
  return {one, one};
}

std::vector<ResultSpec> GatherStatsShape(const ShapeCall& c) {
  const ShapeTensor &input = c.tensor("input"), &mean = c.tensor("mean");
  const int64_t channels = ChannelsOf(input);
  for (const char* name : {"mean", "invstd"}) {
    const ShapeTensor& t = c.tensor(name);
    TORCH_CHECK(t.sizes.size() == 2 && t.sizes[1] == channels, "expected ", name,
                " of shape [shares, ", channels, "], got ", c10::IntArrayRef(t.sizes));
  }
  const ResultSpec one = {.dtype = StatisticsType(mean), .sizes = {channels}};
  return {one, one};
}

std::vector<ResultSpec> LikeInput(const ShapeCall& c) {
  const ShapeTensor& input = c.tensor("input");
  ChannelsOf(input);
  return {{.dtype = input.dtype, .sizes = input.sizes, .strides = SuggestedStrides(input)}};
}

std::vector<ResultSpec> BackwardReduceShape(const ShapeCall& c) {
  const ShapeTensor &mean = c.tensor("mean"), &weight = c.tensor("weight");
  const std::vector<int64_t> sizes = {ChannelsOf(c.tensor("input"))};
  const c10::ScalarType of_weight = weight.defined ? weight.dtype : mean.dtype;
  auto result = [&](const char* wanted, c10::ScalarType dtype) {
    return ResultSpec{.dtype = dtype, .sizes = sizes, .defined = c.argument(wanted).toBool()};
  };
  return {result("input_g", mean.dtype), result("input_g", mean.dtype),
          result("weight_g", of_weight), result("bias_g", of_weight)};
}

TPU_RULE({.op = "batch_norm_stats", .lower = &Stats, .shape = &StatsShape});
TPU_RULE({.op = "batch_norm_update_stats",
          .lower = &UpdateStats,
          .shape = &UpdateStatsShape,
          .also_writes = {"running_mean", "running_var"}});
TPU_RULE({.op = "batch_norm_gather_stats",
          .lower = &GatherStatsOfEqualShares,
          .shape = &GatherStatsShape,
          .also_writes = {"running_mean", "running_var"}});
TPU_RULE({.op = "batch_norm_gather_stats_with_counts",
          .lower = &GatherStatsWithCounts,
          .shape = &GatherStatsShape,
          .also_writes = {"running_mean", "running_var"}});
TPU_RULE({.op = "batch_norm_elemt", .lower = &Normalize, .shape = &LikeInput});
TPU_RULE({.op = "batch_norm_backward_reduce",
          .lower = &BackwardReduce,
          .shape = &BackwardReduceShape});
TPU_RULE({.op = "batch_norm_backward_elemt", .lower = &BackwardElementwise, .shape = &LikeInput});

}  // namespace
}  // namespace torch_tpu::lowering
