#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>

#include "lowering/elementwise.h"
#include "lowering/indices.h"
#include "lowering/placement.h"
#include "lowering/reduction.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT
using c10::IntArrayRef;

// --- scatter by an index tensor

struct ScatterTarget {
  Value self, index;
  int64_t dim = 0;
};

ScatterTarget Target(Call& c) {
  ScatterTarget t{c.tensor("self"), c.tensor("index"), 0};
  t.dim = WrapDim(c.integer("dim"), t.self.rank());
  if (t.index.numel() == 0) return t;
  const int64_t size = AtLeast1d(t.self).dim(static_cast<int>(t.dim));
  t.index = CheckedIndices(c, t.index, size, Negative::kIsError,
                           "index is out of bounds for dimension " + std::to_string(t.dim) +
                               " with size " + std::to_string(size),
                           Call::ErrorKind::kRuntime);
  return t;
}

Value ValueAsSource(Call& c, const ScatterTarget& t) {
  return BroadcastTo(c.scalar("value", t.self.dtype()), t.index.dims());
}

Values ScatterSource(Call& c) {
  ScatterTarget t = Target(c);
  return {ScatterElements(t.self, t.dim, t.index, c.tensor("src"), Combine::kSet)};
}
TPU_RULE({.op = "scatter.src", .lower = &ScatterSource});

Values ScatterValue(Call& c) {
  ScatterTarget t = Target(c);
  return {ScatterElements(t.self, t.dim, t.index, ValueAsSource(c, t), Combine::kSet)};
}
TPU_RULE({.op = "scatter.value", .lower = &ScatterValue, .scalars_as_self = true});

Values ScatterSourceReduce(Call& c) {
  ScatterTarget t = Target(c);
  return {
      ScatterElements(t.self, t.dim, t.index, c.tensor("src"), CombineNamed(c.string("reduce")))};
}
TPU_RULE({.op = "scatter.reduce", .lower = &ScatterSourceReduce});

Values ScatterValueReduce(Call& c) {
  ScatterTarget t = Target(c);
  return {ScatterElements(t.self, t.dim, t.index, ValueAsSource(c, t),
                          CombineNamed(c.string("reduce")))};
}
TPU_RULE({.op = "scatter.value_reduce", .lower = &ScatterValueReduce, .scalars_as_self = true});

Values ScatterAdd(Call& c) {
  ScatterTarget t = Target(c);
  return {ScatterElements(t.self, t.dim, t.index, c.tensor("src"), Combine::kAdd)};
}
TPU_RULE({.op = "scatter_add", .lower = &ScatterAdd});

Values ScatterReduceTwo(Call& c) {
  ScatterTarget t = Target(c);
  if (t.index.numel() == 0) return {t.self};
  // Only the part of src that the index covers takes part.
  Value src = c.tensor("src");
  if (src.dims() != t.index.dims()) {
    src = Slice(AtLeast1d(src), Dims(AtLeast1d(src).rank(), 0), AtLeast1d(t.index).dims());
  }
  return {ScatterReduce(t.self, src, c.string("reduce"), c.boolean("include_self"),
                        [&](Value base, Value updates, Combine combine) {
                          return ScatterElements(base, t.dim, t.index, updates, combine);
                        })};
}
TPU_RULE({.op = "scatter_reduce.two", .lower = &ScatterReduceTwo});

// --- the functional twins of writing through a view

std::vector<ResultSpec> CheckedSelfShape(const ShapeCall& s, const std::vector<int64_t>& place) {
  const auto& src = s.tensor("src").sizes;
  TORCH_CHECK(src == place, "expected src to have a size equal to the slice of self. src size = ",
              IntArrayRef(src), ", slice size = ", IntArrayRef(place));
  // A clone of the memory self lies in, with its gaps; of the elements if some share memory.
  const ShapeTensor& self = s.tensor("self");
  for (size_t d = 0; d < self.sizes.size(); ++d) {
    if (self.sizes[d] > 1 && self.strides[d] == 0) return {LikeSelf(s, self.dtype)};
  }
  return {{.dtype = self.dtype, .sizes = self.sizes, .strides = self.strides}};
}

Values SelectScatter(Call& c) {
  Value self = c.tensor("self");
  const int64_t dim = WrapDim(c.integer("dim"), self.rank());
  int64_t index = c.integer("index");
  if (index < 0) index += self.dims()[dim];
  Dims place = self.dims();
  place[dim] = 1;
  Value src = Reshape(Convert(c.tensor("src"), self.dtype()), place);
  return {PlaceSlice(self, src, dim, index, 1)};
}

std::vector<ResultSpec> SelectScatterShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const int64_t rank = static_cast<int64_t>(self.sizes.size());
  TORCH_CHECK_INDEX(rank > 0, "select() cannot be applied to a 0-dim tensor.");
  const int64_t dim = c10::maybe_wrap_dim(s.argument("dim").toInt(), rank);
  const int64_t index = s.argument("index").toInt(), size = self.sizes[dim];
  TORCH_CHECK_INDEX(-size <= index && index < size, "select(): index ", index,
                    " out of range for tensor of size ", IntArrayRef(self.sizes), " at dimension ",
                    dim);
  std::vector<int64_t> place = self.sizes;
  place.erase(place.begin() + dim);
  return CheckedSelfShape(s, place);
}
TPU_RULE({.op = "select_scatter", .lower = &SelectScatter, .shape = &SelectScatterShape});

Values SliceScatter(Call& c) {
  Value self = c.tensor("self");
  const int64_t dim = WrapDim(c.integer("dim"), self.rank());
  const int64_t step = c.integer("step");
  const SliceBounds bounds = NormalizeSlice(c.optional_integer("start"), c.optional_integer("end"),
                                            step, self.dims()[dim]);
  return {PlaceSlice(self, Convert(c.tensor("src"), self.dtype()), dim, bounds.start, step)};
}

std::optional<int64_t> OptionalInt(const ShapeCall& s, std::string_view name) {
  const c10::IValue& value = s.argument(name);
  return value.isNone() ? std::nullopt : std::optional<int64_t>(value.toInt());
}

std::vector<ResultSpec> SliceScatterShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const int64_t rank = static_cast<int64_t>(self.sizes.size());
  TORCH_CHECK_INDEX(rank > 0, "slice() cannot be applied to a 0-dim tensor.");
  const int64_t dim = c10::maybe_wrap_dim(s.argument("dim").toInt(), rank);
  const int64_t step = s.argument("step").toInt();
  TORCH_CHECK(step > 0, "slice step must be positive");
  std::vector<int64_t> place = self.sizes;
  place[dim] =
      NormalizeSlice(OptionalInt(s, "start"), OptionalInt(s, "end"), step, self.sizes[dim]).length;
  return CheckedSelfShape(s, place);
}
TPU_RULE({.op = "slice_scatter", .lower = &SliceScatter, .shape = &SliceScatterShape});

Values DiagonalScatter(Call& c) {
  Value self = c.tensor("self");
  return {PlaceDiagonal(self, Convert(c.tensor("src"), self.dtype()), c.integer("offset"),
                        WrapDim(c.integer("dim1"), self.rank()),
                        WrapDim(c.integer("dim2"), self.rank()))};
}

std::vector<ResultSpec> DiagonalScatterShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const int64_t rank = static_cast<int64_t>(self.sizes.size());
  const int64_t given1 = s.argument("dim1").toInt(), given2 = s.argument("dim2").toInt();
  const int64_t dim1 = c10::maybe_wrap_dim(given1, rank), dim2 = c10::maybe_wrap_dim(given2, rank);
  TORCH_CHECK(dim1 != dim2, "diagonal dimensions cannot be identical ", given1, ", ", given2);
  const int64_t offset = s.argument("offset").toInt();
  const int64_t length = offset >= 0 ? std::min(self.sizes[dim1], self.sizes[dim2] - offset)
                                     : std::min(self.sizes[dim1] + offset, self.sizes[dim2]);
  std::vector<int64_t> place;
  for (int64_t d = 0; d < rank; ++d) {
    if (d != dim1 && d != dim2) place.push_back(self.sizes[d]);
  }
  place.push_back(std::max<int64_t>(length, 0));
  return CheckedSelfShape(s, place);
}
TPU_RULE({.op = "diagonal_scatter", .lower = &DiagonalScatter, .shape = &DiagonalScatterShape});

}  // namespace
}  // namespace torch_tpu::lowering
