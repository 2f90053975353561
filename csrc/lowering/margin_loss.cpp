// Losses that ask a margin of the classes' scores: the target's score, or those of all targets,
// should exceed each other class's score by it.
#include <c10/util/Exception.h>

#include <cmath>

#include "lowering/indices.h"
#include "lowering/reduction.h"
#include "lowering/rule.h"
#include "lowering/scan.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: Add, Multiply, Reduce, ... read like the mathematics

// at::Reduction, the integer PyTorch passes as `reduction`.
constexpr int64_t kNone = 0;
constexpr int64_t kMean = 1;

// Scores as [rows, classes], whatever was given: a matrix, one row, or a single score.
struct Scores {
  Value x;
  int64_t rows, classes;

  Value OverClasses(Value row) const { return BroadcastInDim(row, x.dims(), {0}); }
};

Scores ScoresOf(Call& c) {
  Value x = c.tensor("self");
  const int64_t rows = x.rank() == 2 ? x.dim(0) : 1;
  const int64_t classes = x.rank() == 0 ? 1 : x.dim(-1);
  return {Reshape(x, {rows, classes}), rows, classes};
}

// The result of rows' losses, which are averaged over the classes already.
Value Reduced(Call& c, Value losses, int64_t rows) {
  const Type& out = c.result();
  const int64_t reduction = c.integer("reduction");
  if (reduction == kNone) return Reshape(losses, out.dims);
  Value sum = Reduce(losses, Reduction::kSum, {0});
  // Of no rows CPU's mean is zero as well.
  if (reduction != kMean || rows == 0) return sum;
  return Divide(sum, ConstantLike(sum, static_cast<double>(rows)));
}

// What reaches each score of the gradient of the result, as [rows, 1] broadcast to the scores.
Value RowGradient(Call& c, const Scores& s) {
  Value grad = c.tensor("grad_output");
  grad = BroadcastTo(Reshape(grad, grad.rank() == 0 ? Dims{1} : grad.dims()), {s.rows});
  double share = static_cast<double>(s.classes);
  if (c.integer("reduction") == kMean) share *= static_cast<double>(s.rows);
  return s.OverClasses(Divide(grad, ConstantLike(grad, share)));
}

Value Positive(Value x) { return Maximum(x, ConstantLike(x, 0)); }
Value IsPositive(Value x) { return Gt(x, ConstantLike(x, 0)); }
Value OrZero(Value predicate, Value x) { return Select(predicate, x, ConstantLike(x, 0)); }

// --- checks in common

void CheckScores(const ShapeTensor& self) {
  const size_t rank = self.sizes.size();
  TORCH_CHECK(rank <= 2 && (rank == 0 || self.sizes.back() != 0),
              "Expected non-empty vector or matrix with optional 0-dim batch size, but got: ",
              c10::IntArrayRef(self.sizes));
}

int64_t RowsOf(const ShapeTensor& self) { return self.sizes.size() == 2 ? self.sizes[0] : 1; }

void CheckDtypes(const ShapeTensor& self, const ShapeTensor& target, const char* kernel) {
  const bool known = self.dtype == c10::ScalarType::Float || self.dtype == c10::ScalarType::Double;
  TORCH_CHECK_NOT_IMPLEMENTED(known, '"', kernel, "\" not implemented for '", self.dtype, "'");
  TORCH_CHECK(target.dtype == c10::ScalarType::Long, "expected scalar type Long but found ",
              target.dtype);
}

// The gradient of rows that were not reduced is one number a row, or one for all.
void CheckRowGradient(const ShapeCall& s, int64_t rows) {
  const ShapeTensor& grad = s.tensor("grad_output");
  if (s.argument("reduction").toInt() != kNone || grad.sizes.empty()) return;
  TORCH_CHECK(grad.sizes.size() == 1 && grad.sizes[0] == rows,
              "Expected a tensor of dimension 1 and tensor.size[0] == ", rows,
              " but got: dimension ", grad.sizes.size(), " and tensor.size[0] = ", grad.sizes[0]);
}

std::vector<ResultSpec> LikeSelf(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  return {{.dtype = self.dtype, .sizes = self.sizes}};
}

// --- one target a row

struct SingleTarget {
  Scores scores;
  Value hot;     // i1 like the scores: the row's target
  Value excess;  // margin - x[target] + x, what is positive costs
  Value weight;  // of each row's target, like the scores; undefined if there are no weights
  bool squared;
};

SingleTarget SingleTargetOf(Call& c) {
  const Scores s = ScoresOf(c);
  Value target =
      CheckedIndices(c, Reshape(c.tensor("target"), {s.rows}), s.classes, Negative::kIsError,
                     "target out of range", Call::ErrorKind::kRuntime);
  SingleTarget t{.scores = s};
  t.squared = static_cast<int64_t>(c.number("p")) == 2;
  t.hot = Eq(c.builder().Iota({target.dtype(), s.x.dims()}, 1), s.OverClasses(target));
  Value of_target = Reduce(OrZero(t.hot, s.x), Reduction::kSum, {1});
  Value margin = BroadcastTo(c.scalar("margin", s.x.dtype()), s.x.dims());
  t.excess = Add(Subtract(margin, s.OverClasses(of_target)), s.x);
  if (auto weight = c.optional_tensor("weight")) {
    t.weight = s.OverClasses(Take(Reshape(*weight, {s.classes}), target, 0));
  }
  return t;
}

Values MultiMarginLoss(Call& c) {
  const SingleTarget t = SingleTargetOf(c);
  Value cost = Positive(t.excess);
  if (t.squared) cost = Multiply(cost, cost);
  if (t.weight) cost = Multiply(cost, t.weight);
  Value sum = Reduce(OrZero(Not(t.hot), cost), Reduction::kSum, {1});
  Value losses = Divide(sum, ConstantLike(sum, static_cast<double>(t.scores.classes)));
  return {Reduced(c, losses, t.scores.rows)};
}

Values MultiMarginLossBackward(Call& c) {
  const SingleTarget t = SingleTargetOf(c);
  Value grad = RowGradient(c, t.scores);
  if (t.squared) grad = Multiply(Multiply(ConstantLike(grad, 2), grad), t.excess);
  if (t.weight) grad = Multiply(grad, t.weight);
  grad = OrZero(And(IsPositive(t.excess), Not(t.hot)), grad);
  // The target's score takes from all others what they get.
  Value total = t.scores.OverClasses(Negate(Reduce(grad, Reduction::kSum, {1})));
  return {Reshape(Select(t.hot, total, grad), c.result().dims)};
}

void CheckMultiMargin(const ShapeCall& s, const char* kernel) {
  const ShapeTensor &self = s.tensor("self"), &target = s.tensor("target");
  const ShapeTensor& weight = s.tensor("weight");
  const auto p = s.argument("p").toScalar().toLong();
  TORCH_CHECK(p == 1 || p == 2, "only p == 1 and p == 2 supported");
  CheckScores(self);
  const int64_t rows = RowsOf(self), classes = self.sizes.empty() ? 1 : self.sizes.back();
  const bool fits =
      target.sizes.size() <= 1 && (target.sizes.empty() ? 1 : target.sizes[0]) == rows;
  TORCH_CHECK(fits,
              "multi_margin_loss: target tensor should be 1-D with size equal to the number of "
              "input samples (batch size). Expected target size [",
              rows, "], but got ", c10::IntArrayRef(target.sizes), ". Input has shape ",
              c10::IntArrayRef(self.sizes), ".");
  if (weight.defined) {
    const bool each =
        weight.sizes.size() <= 1 && (weight.sizes.empty() ? 1 : weight.sizes[0]) == classes;
    TORCH_CHECK(each, "inconsistent weight size, expected ", classes, " but got ",
                c10::IntArrayRef(weight.sizes));
  }
  CheckDtypes(self, target, kernel);
  TORCH_CHECK(!weight.defined || weight.dtype == self.dtype, "expected scalar type ", self.dtype,
              " but found ", weight.dtype);
}

std::vector<ResultSpec> MultiMarginLossShape(const ShapeCall& s) {
  CheckMultiMargin(s, "multi_margin_loss_cpu_kernel");
  const ShapeTensor &self = s.tensor("self"), &target = s.tensor("target");
  ResultSpec loss{.dtype = self.dtype};
  if (s.argument("reduction").toInt() == kNone) loss.sizes = target.sizes;
  return {loss};
}

std::vector<ResultSpec> MultiMarginLossBackwardShape(const ShapeCall& s) {
  CheckMultiMargin(s, "multi_margin_loss_backward_cpu_kernel");
  CheckRowGradient(s, RowsOf(s.tensor("self")));
  return LikeSelf(s);
}

TPU_RULE({.op = "multi_margin_loss",
          .lower = &MultiMarginLoss,
          .shape = &MultiMarginLossShape,
          .structural = {"p"}});
TPU_RULE({.op = "multi_margin_loss_backward",
          .lower = &MultiMarginLossBackward,
          .shape = &MultiMarginLossBackwardShape,
          .structural = {"p"}});

// --- any number of targets a row: a list that ends at the first negative one

struct ManyTargets {
  Scores scores;
  Value hot;        // i1 [rows, places, classes]: the class this place of the list names
  Value is_target;  // i1 like the scores: some place names it

  // A value of [rows, classes] for each place, and one of [rows, places] for each class.
  Value OverPlaces(Value x) const { return BroadcastInDim(x, hot.dims(), {0, 2}); }
  Value OverClasses(Value x) const { return BroadcastInDim(x, hot.dims(), {0, 1}); }

  // i1 and its excess: a place that names a class, and a class that no place names.
  struct Pairs {
    Value counted, excess;
  };
  Pairs PairsOf(Value other_is_target) const {
    Value names = Reduce(hot, Reduction::kOr, {2});
    Value of_place = Reduce(OrZero(hot, OverPlaces(scores.x)), Reduction::kSum, {2});
    Value excess = Add(Subtract(ConstantLike(OverPlaces(scores.x), 1), OverClasses(of_place)),
                       OverPlaces(scores.x));
    return {And(OverClasses(names), Not(OverPlaces(other_is_target))), excess};
  }
};

ManyTargets ManyTargetsOf(Call& c, const char* out_of_range) {
  ManyTargets t{.scores = ScoresOf(c)};
  const int64_t classes = t.scores.classes;
  Value target = Reshape(c.tensor("target"), t.scores.x.dims());
  Builder& b = c.builder();
  c.Check(And(Ge(target, b.ConstantInt(target.type(), -1)),
              Lt(target, b.ConstantInt(target.type(), classes))),
          out_of_range, Call::ErrorKind::kRuntime);
  target = NarrowIndices(target, classes);
  Value zero = ConstantLike(target, 0);
  Value listed = InclusiveScan(c, Minimum(target, zero), Reduction::kMin, 1);
  // A place after the end of the list names no class.
  target = Select(Lt(listed, zero), listed, target);
  const Dims dims = {t.scores.rows, classes, classes};
  t.hot = Eq(BroadcastInDim(target, dims, {0, 1}), b.Iota({target.dtype(), dims}, 2));
  t.is_target = Reduce(t.hot, Reduction::kOr, {1});
  return t;
}

Values MultilabelMarginLoss(Call& c) {
  const ManyTargets t = ManyTargetsOf(c, "argument #2 'target' is out of range");
  const ManyTargets::Pairs pairs = t.PairsOf(t.is_target);
  Value sum = Reduce(OrZero(pairs.counted, Positive(pairs.excess)), Reduction::kSum, {1, 2});
  Value losses = Divide(sum, ConstantLike(sum, static_cast<double>(t.scores.classes)));
  return {Reduced(c, losses, t.scores.rows),
          Reshape(Convert(t.is_target, c.result(1).dtype), c.result(1).dims)};
}

Values MultilabelMarginLossBackward(Call& c) {
  const ManyTargets t = ManyTargetsOf(c, "argument #3 'target' is out of range");
  Value is_target = Convert(Reshape(c.tensor("is_target"), t.scores.x.dims()), DType::kPred);
  const ManyTargets::Pairs pairs = t.PairsOf(is_target);
  Value costs = And(pairs.counted, IsPositive(pairs.excess));
  Value one = Convert(costs, t.scores.x.dtype());
  // Each pair that costs raises the class and lowers the one its place names.
  Value raised = Reduce(one, Reduction::kSum, {1});
  Value of_place = Reduce(one, Reduction::kSum, {2});
  Value lowered = Reduce(OrZero(t.hot, t.OverClasses(of_place)), Reduction::kSum, {1});
  Value grad = Multiply(RowGradient(c, t.scores), Subtract(raised, lowered));
  return {Reshape(grad, c.result().dims)};
}

void CheckMultilabel(const ShapeCall& s, const char* kernel) {
  const ShapeTensor &self = s.tensor("self"), &target = s.tensor("target");
  CheckScores(self);
  const bool vector = self.sizes.size() <= 1;
  const int64_t classes = self.sizes.empty() ? 1 : self.sizes.back();
  const bool fits =
      vector ? target.sizes.size() <= 1 && (target.sizes.empty() ? 1 : target.sizes[0]) == classes
             : target.sizes == self.sizes;
  TORCH_CHECK(fits, "inconsistent target size: ", c10::IntArrayRef(target.sizes),
              " for input of size: ", c10::IntArrayRef(self.sizes));
  CheckDtypes(self, target, kernel);
}

std::vector<ResultSpec> MultilabelMarginLossShape(const ShapeCall& s) {
  CheckMultilabel(s, "multilabel_margin_loss_forward_out_frame");
  const ShapeTensor &self = s.tensor("self"), &target = s.tensor("target");
  ResultSpec loss{.dtype = self.dtype};
  const bool rows = s.argument("reduction").toInt() == kNone && self.sizes.size() == 2;
  if (rows) loss.sizes = {self.sizes[0]};
  return {loss, {.dtype = self.dtype, .sizes = target.sizes}};
}

std::vector<ResultSpec> MultilabelMarginLossBackwardShape(const ShapeCall& s) {
  CheckMultilabel(s, "multilabel_margin_loss_backward_out_frame");
  const ShapeTensor &target = s.tensor("target"), &is_target = s.tensor("is_target");
  TORCH_CHECK(target.sizes == is_target.sizes,
              "Expected tensor for argument #3 'target' to have same size as tensor for argument "
              "#5 'is_target'; but ",
              c10::IntArrayRef(target.sizes), " does not equal ", c10::IntArrayRef(is_target.sizes),
              " (while checking arguments for multilabel_margin_loss_backward_cpu_template)");
  CheckRowGradient(s, RowsOf(s.tensor("self")));
  return LikeSelf(s);
}

TPU_RULE({.op = "multilabel_margin_loss_forward",
          .lower = &MultilabelMarginLoss,
          .shape = &MultilabelMarginLossShape});
TPU_RULE({.op = "multilabel_margin_loss_backward",
          .lower = &MultilabelMarginLossBackward,
          .shape = &MultilabelMarginLossBackwardShape});

}  // namespace
}  // namespace torch_tpu::lowering
