#include "lowering/search.h"

#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <limits>
#include <string>

#include "lowering/elementwise.h"
#include "lowering/indices.h"
#include "lowering/reduction.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
using namespace stablehlo;  // NOLINT
using c10::IntArrayRef;

// All values are searched for at once, each step halving what is left.
Value Search(Value sequence, Value values, bool right) {
  const int last = sequence.rank() - 1;
  const int64_t size = sequence.dim(last);
  const bool narrow = size < std::numeric_limits<int32_t>::max();
  const DType index = narrow ? DType::kS32 : DType::kS64;
  Value low = ZeroConstant(values.builder(), {index, values.dims()});
  if (size == 0) return low;
  Value high = values.builder().ConstantInt(low.type(), size);
  Value one = ConstantLike(low, 1);
  for (int64_t left = size; left > 0; left /= 2) {
    Value open = Lt(low, high);
    Value middle = Add(low, ShiftRightArithmetic(Subtract(high, low), one));
    Value inside = Minimum(middle, ConstantLike(middle, static_cast<double>(size - 1)));
    Value found =
        sequence.rank() == 1 ? Take(sequence, inside, 0) : GatherElements(sequence, last, inside);
    Value behind = Not(right ? Gt(found, values) : Ge(found, values));
    low = Select(And(open, behind), Add(middle, one), low);
    high = Select(And(open, Not(behind)), middle, high);
  }
  return low;
}

namespace {

Values SearchRule(Call& c, Value sequence, Value values, bool right) {
  const DType type = ComputeType(c.promoted());
  Value places = Search(Convert(sequence, type), Convert(values, type), right);
  return {Reshape(Convert(places, c.result().dtype), c.result().dims)};
}

Values SearchSorted(Call& c) {
  Value sequence = c.tensor("sorted_sequence");
  if (auto sorter = c.optional_tensor("sorter")) {
    const int last = sequence.rank() - 1;
    Value order = CheckedIndices(c, *sorter, sequence.dim(last), Negative::kIsError,
                                 "torch.searchsorted(): sorter index out of range",
                                 Call::ErrorKind::kRuntime);
    sequence = GatherElements(sequence, last, order);
  }
  const bool right = c.boolean("right") || c.string("side") == "right";
  return SearchRule(c, sequence, RawOperand(c, "self", c.promoted()), right);
}

Values Bucketize(Call& c) {
  return SearchRule(c, c.tensor("boundaries"), RawOperand(c, "self", c.promoted()),
                    c.boolean("right"));
}

void CheckSearchable(const ShapeTensor& boundaries) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      boundaries.dtype != c10::ScalarType::Bool && !c10::isComplexType(boundaries.dtype),
      "\"searchsorted_out_cpu\" not implemented for '", boundaries.dtype, "'");
}

ResultSpec Places(const ShapeCall& s, const std::vector<int64_t>& sizes) {
  const bool narrow = s.argument("out_int32").toBool();
  return {.dtype = narrow ? c10::ScalarType::Int : c10::ScalarType::Long, .sizes = sizes};
}

std::vector<ResultSpec> SearchSortedShape(const ShapeCall& s) {
  const ShapeTensor& boundaries = s.tensor("sorted_sequence");
  const bool scalar = s.tensors("self").empty();
  const std::vector<int64_t> values = scalar ? std::vector<int64_t>() : s.tensor("self").sizes;
  if (s.has("side")) {
    const std::string& side = s.argument("side").toStringRef();
    TORCH_CHECK(side == "left" || side == "right",
                "torch.searchsorted(): side can only be 'left' or 'right' but got ", side);
    TORCH_CHECK(side == "right" || !s.argument("right").toBool(),
                "torch.searchsorted(): side and right can't be set to opposites, got side of ",
                side, " while right was True");
  }
  TORCH_CHECK(!values.empty() || boundaries.sizes.size() == 1,
              "torch.searchsorted(): input value can be a scalar only when boundaries tensor "
              "dimension is 1, but we got boundaries tensor dim(",
              boundaries.sizes.size(), ") and input value's dim(0) numel(1)");
  TORCH_CHECK(!boundaries.sizes.empty(),
              "torch.searchsorted(): boundaries tensor should have positive dimension, but got 0 "
              "dimension");
  bool fits = boundaries.sizes.size() == 1 || boundaries.sizes.size() == values.size();
  for (size_t d = 0; fits && boundaries.sizes.size() > 1 && d + 1 < values.size(); ++d) {
    fits = boundaries.sizes[d] == values[d];
  }
  TORCH_CHECK(fits,
              "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 "
              "dimensions of boundaries tensor and input value tensor must match, but we got "
              "boundaries tensor ",
              IntArrayRef(boundaries.sizes), " and input value tensor ", IntArrayRef(values));
  if (!s.tensors("sorter").empty() && s.tensor("sorter").defined) {
    const ShapeTensor& sorter = s.tensor("sorter");
    TORCH_CHECK(sorter.sizes == boundaries.sizes,
                "torch.searchsorted(): boundary and sorter must have the same size, but got "
                "boundary tensor ",
                IntArrayRef(boundaries.sizes), "and got sorter tensor ", IntArrayRef(sorter.sizes));
    TORCH_CHECK(sorter.dtype == c10::ScalarType::Long,
                "torch.searchsorted(): sorter must be a tensor of long dtype but got dtype ",
                sorter.dtype);
  }
  CheckSearchable(boundaries);
  return {Places(s, values)};
}
TPU_RULE({.op = "searchsorted.Tensor", .lower = &SearchSorted, .shape = &SearchSortedShape});
TPU_RULE({.op = "searchsorted.Scalar", .lower = &SearchSorted, .shape = &SearchSortedShape});

std::vector<ResultSpec> BucketizeShape(const ShapeCall& s) {
  const ShapeTensor& boundaries = s.tensor("boundaries");
  TORCH_CHECK(boundaries.sizes.size() == 1, "boundaries tensor must be 1 dimension, but got dim(",
              boundaries.sizes.size(), ")");
  CheckSearchable(boundaries);
  return {Places(s, s.tensors("self").empty() ? std::vector<int64_t>() : s.tensor("self").sizes)};
}
TPU_RULE({.op = "bucketize.Tensor", .lower = &Bucketize, .shape = &BucketizeShape});
TPU_RULE({.op = "bucketize.Scalar", .lower = &Bucketize, .shape = &BucketizeShape});

// --- isin

// Up to so many candidates each element is compared with all of them.
constexpr int64_t kFewCandidates = 256;

Values IsIn(Call& c, std::string_view elements, std::string_view candidates) {
  Builder& b = c.builder();
  const Type& out = c.result();
  const DType type = c.promoted();
  Value x = RawOperand(c, elements, type), among = RawOperand(c, candidates, type);
  const int64_t count = among.numel();
  among = Reshape(among, {count});
  Value found;
  if (count == 0) {
    found = ZeroConstant(b, {DType::kPred, x.dims()});
  } else if (count <= kFewCandidates || type == DType::kPred) {
    Dims pairs = x.dims();
    pairs.push_back(count);
    Dims column = x.dims();
    column.push_back(1);
    Value equal = Eq(BroadcastTo(Reshape(x, column), pairs), BroadcastTo(among, pairs));
    found = Reduce(equal, Reduction::kOr, {x.rank()});
  } else {
    Value sorted = Sort({among}, 0, /*stable=*/false, [](const Values& v) {
                     return Values{Lt(v[0], v[1])};
                   }).front();
    Value place = Search(sorted, x, /*right=*/false);
    Value last = ConstantLike(place, static_cast<double>(count - 1));
    found = Eq(Take(sorted, Minimum(place, last), 0), x);
  }
  return {Reshape(c.boolean("invert") ? Not(found) : found, out.dims)};
}

Values IsInTensors(Call& c) { return IsIn(c, "elements", "test_elements"); }
Values IsInNumber(Call& c) { return IsIn(c, "elements", "test_element"); }
Values NumberIsIn(Call& c) { return IsIn(c, "element", "test_elements"); }

TPU_RULE({.op = "isin.Tensor_Tensor", .lower = &IsInTensors});
TPU_RULE({.op = "isin.Tensor_Scalar", .lower = &IsInNumber});

// PyTorch's own shape function leaves the size to the kernel.
std::vector<ResultSpec> NumberIsInShape(const ShapeCall& s) {
  const c10::ScalarType type = s.tensor("test_elements").dtype;
  TORCH_CHECK(type != c10::ScalarType::Bool && type != c10::ScalarType::BFloat16 &&
                  !c10::isComplexType(type),
              "Unsupported input type encountered for isin(): ", type);
  return {{.dtype = c10::ScalarType::Bool}};
}
TPU_RULE({.op = "isin.Scalar_Tensor", .lower = &NumberIsIn, .shape = &NumberIsInShape});

}  // namespace
}  // namespace torch_tpu::lowering
