#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "lowering/elementwise.h"
#include "lowering/reduction.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: Add, Multiply, Reduce, ... read like the mathematics

// at::Reduction, the integer PyTorch passes as `reduction`.
constexpr int64_t kNone = 0;
constexpr int64_t kMean = 1;

Value Finish(Call& c, Value x, int i = 0) {
  return Reshape(Convert(x, c.result(i).dtype), c.result(i).dims);
}

// Sum or mean of the elements' losses, or the losses themselves.
Value Reduced(Call& c, Value losses) {
  const int64_t reduction = c.integer("reduction");
  if (reduction == kNone) return losses;
  return reduction == kMean ? MeanOver(losses, AllDims(losses))
                            : Reduce(losses, Reduction::kSum, AllDims(losses));
}

// Two operands in one compute type and shape.
struct Pair {
  Value self, target;
};
Pair Operands(Call& c) {
  Value self = c.tensor("self"), target = c.tensor("target");
  const DType compute = ComputeType(c.result().dtype);
  const Dims dims = BroadcastShapes(self.dims(), target.dims());
  return {BroadcastTo(Convert(self, compute), dims), BroadcastTo(Convert(target, compute), dims)};
}

// What reaches an element's loss of the gradient of the result.
Value ElementGradient(Call& c, Value element) {
  Value grad = BroadcastTo(Convert(c.tensor("grad_output"), element.dtype()), element.dims());
  if (c.integer("reduction") != kMean) return grad;
  return Divide(grad, ConstantLike(grad, static_cast<double>(element.numel())));
}

// A run-time number like x.
Value Number(Call& c, std::string_view name, Value x) {
  return BroadcastTo(c.scalar(name, x.dtype()), x.dims());
}

Value Half(Value x) { return Multiply(x, ConstantLike(x, 0.5)); }

// --- shapes: a 0-d result, or one like the operands broadcast

ResultSpec LossResult(const ShapeCall& c, c10::ScalarType dtype) {
  ResultSpec elements = ElementwiseResult(c, {"self", "target"}, dtype);
  if (c.argument("reduction").toInt() == kNone) return elements;
  return {.dtype = dtype};
}

std::vector<ResultSpec> GradientShape(const ShapeCall& c) {
  ResultSpec elements =
      ElementwiseResult(c, {"self", "target", "grad_output"}, c.tensor("self").dtype);
  elements.strides.clear();
  return {elements};
}

// Gradients made by `empty_like(self)`.
std::vector<ResultSpec> GradientLikeSelfShape(const ShapeCall& c) {
  return {ElementwiseResult(c, {"self"}, c.tensor("self").dtype)};
}

// --- mean squared error

Values MseLoss(Call& c) {
  const Pair p = Operands(c);
  return {Finish(c, Reduced(c, Square(Subtract(p.self, p.target))))};
}

Values MseLossBackward(Call& c) {
  const Pair p = Operands(c);
  Value distance = Subtract(p.self, p.target);
  Value grad = ElementGradient(c, distance);
  return {Finish(c, Multiply(Multiply(ConstantLike(grad, 2), distance), grad))};
}

TPU_RULE({.op = "mse_loss", .lower = &MseLoss, .kinds = kFloat});
TPU_RULE({.op = "mse_loss_backward", .lower = &MseLossBackward, .shape = &GradientShape});

// --- smooth L1 and Huber: quadratic near zero, linear further away

Values SmoothL1Loss(Call& c) {
  const Pair p = Operands(c);
  Value distance = Abs(Subtract(p.self, p.target));
  Value beta = Number(c, "beta", distance);
  Value quadratic = Divide(Half(Square(distance)), beta);
  Value linear = Subtract(distance, Half(beta));
  return {Finish(c, Reduced(c, Select(Lt(distance, beta), quadratic, linear)))};
}

Values SmoothL1LossBackward(Call& c) {
  const Pair p = Operands(c);
  Value distance = Subtract(p.self, p.target);
  Value beta = Number(c, "beta", distance);
  Value one = ConstantLike(distance, 1);
  Value slope = Select(Le(distance, Negate(beta)), Negate(one),
                       Select(Ge(distance, beta), one, Divide(distance, beta)));
  return {Finish(c, Multiply(slope, ElementGradient(c, distance)))};
}

Values HuberLoss(Call& c) {
  const Pair p = Operands(c);
  Value distance = Abs(Subtract(p.self, p.target));
  Value delta = Number(c, "delta", distance);
  Value linear = Multiply(delta, Subtract(distance, Half(delta)));
  return {Finish(c, Reduced(c, Select(Lt(distance, delta), Half(Square(distance)), linear)))};
}

Values HuberLossBackward(Call& c) {
  const Pair p = Operands(c);
  Value distance = Subtract(p.self, p.target);
  Value delta = Number(c, "delta", distance);
  return {Finish(c, Multiply(Clamp(Negate(delta), distance, delta), ElementGradient(c, distance)))};
}

std::vector<ResultSpec> HuberLossShape(const ShapeCall& c) {
  TORCH_CHECK(c.argument("delta").toDouble() > 0,
              "huber_loss does not support non-positive values for delta.");
  const c10::ScalarType dtype = c.tensor("self").dtype;
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isFloatingType(dtype), "\"huber_cpu\" not implemented for '",
                              dtype, "'");
  return {LossResult(c, dtype)};
}

TPU_RULE({.op = "smooth_l1_loss", .lower = &SmoothL1Loss});
TPU_RULE({.op = "smooth_l1_loss_backward",
          .lower = &SmoothL1LossBackward,
          .shape = &GradientShape});
TPU_RULE({.op = "huber_loss", .lower = &HuberLoss, .shape = &HuberLossShape});
TPU_RULE({.op = "huber_loss_backward", .lower = &HuberLossBackward, .shape = &GradientShape});

// --- soft margin: log(1 + exp(-target * self))

Values SoftMarginLoss(Call& c) {
  const Pair p = Operands(c);
  return {Finish(c, Reduced(c, Log1p(Exp(Negate(Multiply(p.target, p.self))))))};
}

Values SoftMarginLossBackward(Call& c) {
  const Pair p = Operands(c);
  Value pull = Logistic(Negate(Multiply(p.target, p.self)));
  return {Finish(c, Multiply(Negate(Multiply(p.target, pull)), ElementGradient(c, pull)))};
}

std::vector<ResultSpec> SoftMarginLossShape(const ShapeCall& c) {
  return {LossResult(c, c.tensor("self").dtype)};
}

TPU_RULE({.op = "soft_margin_loss", .lower = &SoftMarginLoss, .shape = &SoftMarginLossShape});
TPU_RULE({.op = "soft_margin_loss_backward",
          .lower = &SoftMarginLossBackward,
          .shape = &GradientLikeSelfShape});

// --- binary cross entropy

// The losses times an optional weight of each.
Value Weighted(Call& c, Value losses) {
  auto weight = c.optional_tensor("weight");
  if (!weight) return losses;
  return Multiply(losses, BroadcastTo(Convert(*weight, losses.dtype()), losses.dims()));
}

void CheckProbabilities(Call& c, Value x, const char* message) {
  Value above = Ge(x, ConstantLike(x, 0)), below = Le(x, ConstantLike(x, 1));
  c.Check(And(above, below), message, Call::ErrorKind::kRuntime);
}

Values BinaryCrossEntropy(Call& c) {
  const Pair p = Operands(c);
  CheckProbabilities(c, p.self, "all elements of input should be between 0 and 1");
  CheckProbabilities(c, p.target, "all elements of target should be between 0 and 1");
  // Logarithms stop at -100, so that a loss is always finite.
  Value floor = ConstantLike(p.self, -100);
  Value log_no = Maximum(Log1p(Negate(p.self)), floor);
  Value log_yes = Maximum(Log(p.self), floor);
  Value no = Subtract(p.target, ConstantLike(p.target, 1));
  Value losses = Subtract(Multiply(no, log_no), Multiply(p.target, log_yes));
  return {Finish(c, Reduced(c, Weighted(c, losses)))};
}

Values BinaryCrossEntropyBackward(Call& c) {
  const Pair p = Operands(c);
  Value spread = Multiply(Subtract(ConstantLike(p.self, 1), p.self), p.self);
  Value slope = Divide(Subtract(p.self, p.target), Maximum(spread, ConstantLike(spread, 1e-12)));
  return {Finish(c, Weighted(c, Multiply(ElementGradient(c, slope), slope)))};
}

std::vector<ResultSpec> BinaryCrossEntropyShape(const ShapeCall& c) {
  const c10::ScalarType dtype = c.tensor("self").dtype;
  TORCH_CHECK(c.tensor("target").dtype == dtype, "Found dtype ", c.tensor("target").dtype,
              " but expected ", dtype);
  return {LossResult(c, dtype)};
}

TPU_RULE({.op = "binary_cross_entropy",
          .lower = &BinaryCrossEntropy,
          .shape = &BinaryCrossEntropyShape});
TPU_RULE({.op = "binary_cross_entropy_backward",
          .lower = &BinaryCrossEntropyBackward,
          .shape = &GradientLikeSelfShape});

Values BinaryCrossEntropyWithLogits(Call& c) {
  const Pair p = Operands(c);
  Value x = p.self;
  Value zero = ConstantLike(x, 0), one = ConstantLike(x, 1);
  // -log(sigmoid(x)) without overflow.
  Value cost = Subtract(Log1p(Exp(Negate(Abs(x)))), Minimum(x, zero));
  if (auto weight = c.optional_tensor("pos_weight")) {
    Value more = Subtract(BroadcastTo(Convert(*weight, x.dtype()), x.dims()), one);
    cost = Multiply(cost, Add(Multiply(more, p.target), one));
  }
  Value losses = Add(Multiply(Subtract(one, p.target), x), cost);
  return {Finish(c, Reduced(c, Weighted(c, losses)))};
}

// The losses are made in place of `1 - target`.
std::vector<ResultSpec> BinaryCrossEntropyWithLogitsShape(const ShapeCall& c) {
  const ShapeTensor &self = c.tensor("self"), &target = c.tensor("target");
  TORCH_CHECK(c10::canCast(self.dtype, target.dtype), "result type ", self.dtype,
              " can't be cast to the desired output type ", target.dtype);
  const ResultSpec both = ElementwiseResult(c, {"self", "target"}, target.dtype);
  TORCH_CHECK(both.sizes == target.sizes, "output with shape ", c10::IntArrayRef(target.sizes),
              " doesn't match the broadcast shape ", c10::IntArrayRef(both.sizes));
  if (c.argument("reduction").toInt() != kNone) return {{.dtype = target.dtype}};
  return {ElementwiseResult(c, {"target"}, target.dtype)};
}

TPU_RULE({.op = "binary_cross_entropy_with_logits",
          .lower = &BinaryCrossEntropyWithLogits,
          .shape = &BinaryCrossEntropyWithLogitsShape});

// --- negative log likelihood

// Log probabilities with the classes in dimension 1, and a target for each row.
struct Classified {
  Value scores;   // [rows, classes, ...]
  Value target;   // [rows, ...], 32-bit where the classes allow
  Value counted;  // i1 like target: not the ignored index
  Value hot;      // i1 like scores: this is the row's target class
  int64_t classes;

  Value OverClasses(Value row) const { return BroadcastReduced(row, scores.dims(), {1}); }
};

Classified Classify(Call& c, bool check_bounds) {
  Classified s;
  s.scores = c.tensor("self");
  s.scores = Convert(s.scores, ComputeType(s.scores.dtype()));
  if (s.scores.rank() == 1) s.scores = Reshape(s.scores, {1, s.scores.dim(0)});
  s.classes = s.scores.dim(1);
  Value target = AtLeast1d(c.tensor("target"));
  // The ignored index may not fit the target's dtype, which may be uint8.
  target = Convert(target, DType::kS64);
  s.counted = Ne(target, c.builder().ConstantInt(target.type(), c.integer("ignore_index")));
  Value zero = ConstantLike(target, 0);
  target = Select(s.counted, target, zero);
  if (check_bounds) {
    Value classes = c.builder().ConstantInt(target.type(), s.classes);
    c.Check(And(Ge(target, zero), Lt(target, classes)), "Target is out of bounds.");
  }
  s.target = NarrowIndices(target, s.classes);
  Value position = c.builder().Iota({s.target.dtype(), s.scores.dims()}, 1);
  s.hot = Eq(position, s.OverClasses(s.target));
  return s;
}

// The scores of the targets. A TPU reads them by comparing, everything else by indexing.
Value TargetScores(Call& c, const Classified& s) {
  if (c.on_tpu() || s.scores.rank() != 2 || s.scores.numel() == 0) {
    return Reduce(Select(s.hot, s.scores, ConstantLike(s.scores, 0)), Reduction::kSum, {1});
  }
  Value row = c.builder().Iota({DType::kS64, s.target.dims()}, 0);
  Value offsets = Multiply(row, c.builder().ConstantInt(row.type(), s.classes));
  Value indices = Add(offsets, Convert(s.target, DType::kS64));
  return Take(Reshape(s.scores, {s.scores.numel()}), NarrowIndices(indices, s.scores.numel()), 0);
}

// The weight of each row: that of its target class, nothing if it is ignored.
Value RowWeights(Call& c, const Classified& s) {
  Value counted = Convert(s.counted, s.scores.dtype());
  auto weight = c.optional_tensor("weight");
  if (!weight || s.classes == 0) return counted;
  Value of_target = Take(Convert(*weight, s.scores.dtype()), s.target, 0);
  return Select(s.counted, of_target, ConstantLike(of_target, 0));
}

Values NllLoss(Call& c) {
  const Classified s = Classify(c, /*check_bounds=*/true);
  Value weights = RowWeights(c, s);
  Value scores = TargetScores(c, s);
  // An ignored row may hold infinities.
  Value losses = Select(s.counted, Negate(Multiply(scores, weights)), ConstantLike(scores, 0));
  const std::vector<int64_t> all = AllDims(losses);
  Value total = Reduce(weights, Reduction::kSum, all);
  const int64_t reduction = c.integer("reduction");
  // Without a reduction of several rows nobody needs their total weight, and CPU gives zero.
  const bool rows = c.tensor("self").rank() > 1;
  Value total_weight = reduction == kNone && rows ? ConstantLike(total, 0) : total;
  if (reduction == kNone) return {Finish(c, losses, 0), Finish(c, total_weight, 1)};
  Value loss = Reduce(losses, Reduction::kSum, all);
  if (reduction == kMean) loss = Divide(loss, total);
  return {Finish(c, loss, 0), Finish(c, total_weight, 1)};
}

// The forward checked the targets.
Values NllLossBackward(Call& c) {
  const Classified s = Classify(c, /*check_bounds=*/false);
  Value weights = RowWeights(c, s);
  Value grad = Convert(c.tensor("grad_output"), weights.dtype());
  if (c.integer("reduction") == kMean) {
    grad = Divide(grad, Convert(Reshape(c.tensor("total_weight"), {}), grad.dtype()));
  }
  grad = BroadcastTo(grad, weights.dims());
  Value row = Select(s.counted, Negate(Multiply(weights, grad)), ConstantLike(grad, 0));
  return {Finish(c, Select(s.hot, s.OverClasses(row), ConstantLike(s.scores, 0)))};
}

// The checks of images: [N, C, H, W] scores and [N, H, W] targets.
void CheckNll2d(const ShapeCall& c) {
  const ShapeTensor &self = c.tensor("self"), &target = c.tensor("target");
  const ShapeTensor& weight = c.tensor("weight");
  TORCH_CHECK(target.sizes.size() == 3,
              "only batches of spatial targets supported (3D tensors) but got targets of "
              "dimension: ",
              target.sizes.size());
  TORCH_CHECK(self.sizes.size() == 4,
              "only batches of spatial inputs supported (4D tensors), but got input of dimension: ",
              self.sizes.size());
  TORCH_CHECK(!weight.defined || (weight.sizes.size() == 1 && weight.sizes[0] == self.sizes[1]),
              "weight tensor should be defined either for all or no classes");
  const bool same = self.sizes[0] == target.sizes[0] && self.sizes[2] == target.sizes[1] &&
                    self.sizes[3] == target.sizes[2];
  TORCH_CHECK(same, "size mismatch (got input: ", c10::IntArrayRef(self.sizes),
              " , target: ", c10::IntArrayRef(target.sizes));
}

std::vector<ResultSpec> NllLoss2dShape(const ShapeCall& c) {
  CheckNll2d(c);
  const ShapeTensor& self = c.tensor("self");
  ResultSpec loss{.dtype = self.dtype};
  if (c.argument("reduction").toInt() == kNone) loss.sizes = c.tensor("target").sizes;
  return {loss, {.dtype = self.dtype}};
}

std::vector<ResultSpec> NllLoss2dBackwardShape(const ShapeCall& c) {
  CheckNll2d(c);
  const ShapeTensor& self = c.tensor("self");
  return {{.dtype = self.dtype, .sizes = self.sizes}};
}

TPU_RULE({.op = "nll_loss_forward", .lower = &NllLoss});
TPU_RULE({.op = "nll_loss_backward", .lower = &NllLossBackward});
TPU_RULE({.op = "nll_loss2d_forward", .lower = &NllLoss, .shape = &NllLoss2dShape});
TPU_RULE({.op = "nll_loss2d_backward",
          .lower = &NllLossBackward,
          .shape = &NllLoss2dBackwardShape});

}  // namespace
}  // namespace torch_tpu::lowering
