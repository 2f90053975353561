#include <ATen/core/ivalue.h>
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <cmath>
#include <string>

#include "lowering/elementwise.h"
#include "lowering/indices.h"
#include "lowering/reduction.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT
using c10::IntArrayRef;
using c10::ScalarType;

constexpr char kOutOfRangeInSelf[] = "index out of range in self";

std::string OutOfRange(int64_t dim, int64_t size) {
  const std::string n = std::to_string(size);
  return "index out of range: the index tensor of dimension " + std::to_string(dim) +
         " holds values outside [-" + n + ", " + n + ")";
}

std::string OutOfBounds(int64_t dim, int64_t size) {
  return "index is out of bounds for dimension " + std::to_string(dim) + " with size " +
         std::to_string(size);
}

// --- x[indices] and its writing counterpart

// Where self[..., indices, ...] puts the indices' own dimensions among those of self.
struct AdvancedIndex {
  std::vector<int64_t> dims;  // of self that have an index
  Values indices;             // checked
  Dims shape;                 // that the indices broadcast to
  Dims result;                // of self[...]
  std::vector<int64_t> kept;  // positions in the result of self's other dimensions
};

AdvancedIndex Prepare(Call& c, const Dims& self) {
  AdvancedIndex a;
  const auto arguments = c.optional_tensors("indices");
  for (size_t d = 0; d < arguments.size(); ++d) {
    if (!arguments[d]) continue;
    a.dims.push_back(static_cast<int64_t>(d));
    a.indices.push_back(CheckedIndices(c, *arguments[d], self[d], Negative::kWraps,
                                       OutOfRange(static_cast<int64_t>(d), self[d])));
    a.shape = BroadcastShapes(a.shape, a.indices.back().dims());
  }
  const int64_t rank = static_cast<int64_t>(self.size());
  const bool adjacent =
      a.dims.empty() || a.dims.back() - a.dims.front() + 1 == static_cast<int64_t>(a.dims.size());
  // Indices apart from each other come first in the result.
  const int64_t position = adjacent && !a.dims.empty() ? a.dims.front() : 0;
  size_t next = 0;
  for (int64_t d = 0; d < rank; ++d) {
    if (static_cast<int64_t>(a.result.size()) == position) {
      a.result.insert(a.result.end(), a.shape.begin(), a.shape.end());
    }
    if (next < a.dims.size() && a.dims[next] == d) {
      ++next;
      continue;
    }
    a.kept.push_back(static_cast<int64_t>(a.result.size()));
    a.result.push_back(self[d]);
  }
  return a;
}

// The indices' common dtype.
DType IndexType(const AdvancedIndex& a) {
  for (const Value& index : a.indices) {
    if (index.dtype() == DType::kS64) return DType::kS64;
  }
  return DType::kS32;
}

// The indices as vectors of coordinates.
Value StartIndices(const AdvancedIndex& a) {
  const DType dtype = IndexType(a);
  Dims column = a.shape;
  column.push_back(1);
  Values columns;
  for (const Value& index : a.indices) {
    Value full = BroadcastTo(Convert(index, dtype), a.shape);
    columns.push_back(Reshape(full, column));
  }
  return columns.size() == 1 ? columns.front()
                             : Concatenate(columns, static_cast<int>(a.shape.size()));
}

Values Index(Call& c) {
  Value self = c.tensor("self");
  AdvancedIndex a = Prepare(c, self.dims());
  if (c.result().numel() == 0) return {Zeros(c.builder(), c.result())};
  if (a.dims.empty()) return {self};
  GatherDims dims;
  dims.offset_dims = a.kept;
  dims.collapsed_slice_dims = a.dims;
  dims.start_index_map = a.dims;
  dims.index_vector_dim = static_cast<int64_t>(a.shape.size());
  std::vector<int64_t> sizes = self.dims();
  for (int64_t d : a.dims) sizes[d] = 1;
  return {Gather(self, StartIndices(a), dims, sizes)};
}
TPU_RULE({.op = "index.Tensor", .lower = &Index});

Values IndexPut(Call& c) {
  Value self = c.tensor("self");
  AdvancedIndex a = Prepare(c, self.dims());
  const Combine combine = c.boolean("accumulate") ? Combine::kAdd : Combine::kSet;
  const DType result = self.dtype(), compute = CombineType(combine, result);
  Value updates = BroadcastTo(Convert(c.tensor("values"), compute), a.result);
  if (updates.numel() == 0) return {self};
  Value base = Convert(self, compute);
  const Region body = CombineRegion(combine, compute);
  if (a.dims.empty()) {
    return {combine == Combine::kSet ? updates : Convert(body({base, updates}).front(), result)};
  }
  if (combine == Combine::kSet && Type{DType::kPred, a.shape}.numel() == 1) {
    // One place: XLA updates it in place.
    const DType dtype = IndexType(a);
    Values starts(base.rank(), ScalarInt(c.builder(), dtype, 0));
    Dims slice = base.dims();
    for (size_t i = 0; i < a.dims.size(); ++i) {
      starts[a.dims[i]] = Convert(Reshape(a.indices[i], {}), dtype);
      slice[a.dims[i]] = 1;
    }
    return {DynamicUpdateSlice(base, Reshape(updates, slice), starts)};
  }
  ScatterDims dims;
  dims.update_window_dims = a.kept;
  dims.inserted_window_dims = a.dims;
  dims.scatter_dims_to_operand_dims = a.dims;
  dims.index_vector_dim = static_cast<int64_t>(a.shape.size());
  return {Convert(Scatter(base, StartIndices(a), updates, dims, body), result)};
}

std::vector<int64_t> BroadcastIndexShapes(const std::vector<ShapeTensor>& indices) {
  std::vector<int64_t> shape;
  bool fits = true;
  for (const ShapeTensor& index : indices) {
    if (!index.defined) continue;
    const auto& sizes = index.sizes;
    if (sizes.size() > shape.size()) shape.insert(shape.begin(), sizes.size() - shape.size(), 1);
    for (size_t i = 0; i < sizes.size(); ++i) {
      int64_t& size = shape[shape.size() - sizes.size() + i];
      if (size == 1) size = sizes[i];
      fits &= sizes[i] == size || sizes[i] == 1;
    }
  }
  if (!fits) {
    std::string shapes;
    for (const ShapeTensor& index : indices) {
      if (!index.defined) continue;
      if (!shapes.empty()) shapes += ", ";
      shapes += c10::str(IntArrayRef(index.sizes));
    }
    TORCH_CHECK_INDEX(
        false, "shape mismatch: indexing tensors could not be broadcast together with shapes ",
        shapes);
  }
  return shape;
}

std::vector<ResultSpec> IndexPutShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const ShapeTensor& values = s.tensor("values");
  const auto& indices = s.tensors("indices");
  TORCH_CHECK_INDEX(indices.size() <= self.sizes.size(),
                    "too many indices for tensor of dimension ", self.sizes.size(), " (got ",
                    indices.size(), ")");
  TORCH_CHECK(self.dtype == values.dtype,
              "Index put requires the source and destination dtypes match, got ", self.dtype,
              " for the destination and ", values.dtype, " for the source.");
  const std::vector<int64_t> shape = BroadcastIndexShapes(indices);
  std::vector<int64_t> indexed;
  for (size_t d = 0; d < indices.size(); ++d) {
    if (!indices[d].defined) continue;
    TORCH_CHECK_INDEX(indices[d].dtype == ScalarType::Long || indices[d].dtype == ScalarType::Int,
                      "tensors used as indices must be long, int, byte or bool tensors");
    TORCH_CHECK_INDEX(self.sizes[d] != 0 || c10::multiply_integers(shape) == 0,
                      "index is out of bounds for dimension with size 0");
    indexed.push_back(static_cast<int64_t>(d));
  }
  const bool adjacent = !indexed.empty() && indexed.back() - indexed.front() + 1 ==
                                                static_cast<int64_t>(indexed.size());
  std::vector<int64_t> kept, target;
  size_t position = 0;
  for (size_t d = 0; d < self.sizes.size(); ++d) {
    if (d < indices.size() && indices[d].defined) {
      if (adjacent && static_cast<int64_t>(d) == indexed.front()) position = kept.size();
      continue;
    }
    kept.push_back(self.sizes[d]);
  }
  target = kept;
  target.insert(target.begin() + static_cast<int64_t>(position), shape.begin(), shape.end());
  bool fits = values.sizes.size() <= target.size();
  for (size_t i = 0; fits && i < values.sizes.size(); ++i) {
    const int64_t have = values.sizes[values.sizes.size() - 1 - i];
    fits = have == 1 || have == target[target.size() - 1 - i];
  }
  TORCH_CHECK(fits, "shape mismatch: value tensor of shape ", IntArrayRef(values.sizes),
              " cannot be broadcast to indexing result of shape ", IntArrayRef(target));
  return SelfShape(s);
}
TPU_RULE({.op = "index_put", .lower = &IndexPut, .shape = &IndexPutShape});
TPU_RULE({.op = "_index_put_impl", .lower = &IndexPut, .shape = &IndexPutShape});

// --- one 1-d index into one dimension

Values IndexSelect(Call& c) {
  Value self = c.tensor("self");
  const int64_t dim = WrapDim(c.integer("dim"), self.rank());
  Value operand = AtLeast1d(self);
  const int64_t size = operand.dim(static_cast<int>(dim));
  Value index =
      AtLeast1d(CheckedIndices(c, c.tensor("index"), size, Negative::kIsError, kOutOfRangeInSelf));
  if (c.result().numel() == 0) return {Zeros(c.builder(), c.result())};
  return {Reshape(Take(operand, index, static_cast<int>(dim)), c.result().dims)};
}

std::vector<ResultSpec> IndexSelectShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const ShapeTensor& index = s.tensor("index");
  const int64_t rank = static_cast<int64_t>(self.sizes.size());
  const int64_t dim = c10::maybe_wrap_dim(s.argument("dim").toInt(), rank);
  TORCH_CHECK_INDEX(index.sizes.size() <= 1, "index_select(): Index is supposed to be a vector");
  const int64_t count = c10::multiply_integers(index.sizes);
  TORCH_CHECK(rank != 0 || count == 1,
              "index_select(): Index to scalar can have only 1 value, got ", count, " value(s)");
  TORCH_CHECK(index.dtype == ScalarType::Long || index.dtype == ScalarType::Int,
              "index_select(): Expected dtype int32 or int64 for index");
  ResultSpec result{.dtype = self.dtype, .sizes = self.sizes};
  if (rank > 0) result.sizes[dim] = count;
  return {result};
}
TPU_RULE({.op = "index_select", .lower = &IndexSelect, .shape = &IndexSelectShape});

Values IndexAdd(Call& c) {
  Value self = c.tensor("self");
  const int64_t dim = WrapDim(c.integer("dim"), self.rank());
  const int64_t size = AtLeast1d(self).dim(static_cast<int>(dim));
  // The CPU adds to vectors another way than to what has slices.
  const bool vector = self.rank() <= 1;
  Value index = CheckedIndices(c, c.tensor("index"), size, Negative::kIsError,
                               vector ? "index out of range in self" : OutOfBounds(dim, size),
                               vector ? Call::ErrorKind::kIndex : Call::ErrorKind::kRuntime);
  Value source = c.tensor("source");
  if (!c.is("alpha", 1)) {
    const DType compute = ComputeType(self.dtype());
    source = Convert(source, compute);
    source = Multiply(source, BroadcastTo(c.scalar("alpha", compute), source.dims()));
  }
  return {ScatterSlices(self, dim, index, source, Combine::kAdd)};
}
TPU_RULE({.op = "index_add", .lower = &IndexAdd, .specialize = {{"alpha", {1}}}});

Values IndexCopy(Call& c) {
  Value self = c.tensor("self");
  const int64_t dim = WrapDim(c.integer("dim"), self.rank());
  const int64_t size = AtLeast1d(self).dim(static_cast<int>(dim));
  Value index = CheckedIndices(c, c.tensor("index"), size, Negative::kIsError,
                               "index_copy_(): " + OutOfBounds(dim, size));
  Value source = c.tensor("source");
  if (source.rank() == 0 && self.rank() > 0) source = Reshape(source, {1});
  return {ScatterSlices(self, dim, index, source, Combine::kSet)};
}
TPU_RULE({.op = "index_copy", .lower = &IndexCopy});

Values IndexFill(Call& c, Value value) {
  Builder& b = c.builder();
  Value self = c.tensor("self");
  const int64_t dim = WrapDim(c.integer("dim"), self.rank());
  const int64_t size = AtLeast1d(self).dim(static_cast<int>(dim));
  Value index = AtLeast1d(
      CheckedIndices(c, c.tensor("index"), size, Negative::kWraps, OutOfBounds(dim, size)));
  if (self.numel() == 0 || index.numel() == 0) return {self};
  // Only a mask over `dim` is scattered; the fill itself is elementwise.
  Value mask = ScatterSlices(b.ConstantInt({DType::kPred, {size}}, 0), 0, index,
                             b.ConstantInt({DType::kPred, index.dims()}, 1), Combine::kSet);
  mask = self.rank() == 0 ? Reshape(mask, {}) : BroadcastInDim(mask, self.dims(), {dim});
  return {Select(mask, BroadcastTo(value, self.dims()), self)};
}

Values IndexFillScalar(Call& c) {
  return IndexFill(c, c.scalar("value", c.tensor("self").dtype()));
}
Values IndexFillTensor(Call& c) {
  return IndexFill(c, Convert(c.tensor("value"), c.tensor("self").dtype()));
}

std::vector<ResultSpec> IndexFillShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const ShapeTensor& index = s.tensor("index");
  const ShapeTensor* value = nullptr;
  const c10::IValue& number = s.argument("value");
  if (!number.isScalar()) value = &s.tensor("value");
  if (value != nullptr && value->defined) {
    TORCH_CHECK(value->sizes.empty(),
                "index_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
                value->sizes.size(), " dimension(s).");
  }
  TORCH_CHECK_INDEX(index.dtype == ScalarType::Long,
                    "index_fill_(): Expected dtype int64 for index.");
  TORCH_CHECK(index.sizes.size() <= 1, "Index has to be a vector/scalar");
  TORCH_CHECK(!number.isComplexDouble() || c10::isComplexType(self.dtype),
              "index_fill_(): Converting complex Scalar to non-complex type is not supported");
  c10::maybe_wrap_dim(s.argument("dim").toInt(), static_cast<int64_t>(self.sizes.size()));
  return SelfShape(s);
}
TPU_RULE({.op = "index_fill.int_Scalar",
          .lower = &IndexFillScalar,
          .shape = &IndexFillShape,
          .scalars_as_self = true});
TPU_RULE({.op = "index_fill.int_Tensor", .lower = &IndexFillTensor, .shape = &IndexFillShape});

Values IndexReduce(Call& c) {
  Value self = c.tensor("self");
  const int64_t dim = WrapDim(c.integer("dim"), self.rank());
  const int64_t size = AtLeast1d(self).dim(static_cast<int>(dim));
  Value index = CheckedIndices(c, c.tensor("index"), size, Negative::kIsError, kOutOfRangeInSelf);
  return {ScatterReduce(self, c.tensor("source"), c.string("reduce"), c.boolean("include_self"),
                        [&](Value base, Value updates, Combine combine) {
                          return ScatterSlices(base, dim, index, updates, combine);
                        })};
}
TPU_RULE({.op = "index_reduce", .lower = &IndexReduce});

// --- one index of self's rank, or into self flattened

Values GatherRule(Call& c) {
  Value self = c.tensor("self");
  const int64_t dim = WrapDim(c.integer("dim"), self.rank());
  const int64_t size = AtLeast1d(self).dim(static_cast<int>(dim));
  if (c.result().numel() == 0) return {Zeros(c.builder(), c.result())};
  Value index = CheckedIndices(c, c.tensor("index"), size, Negative::kIsError,
                               OutOfBounds(dim, size), Call::ErrorKind::kRuntime);
  return {GatherElements(self, dim, index)};
}
TPU_RULE({.op = "gather", .lower = &GatherRule});

std::string OutOfElements(int64_t count) {
  return "out of range: tried to access an index outside a tensor of " + std::to_string(count) +
         " elements.";
}

Values TakeRule(Call& c) {
  Value self = c.tensor("self");
  if (c.result().numel() == 0) return {Zeros(c.builder(), c.result())};
  Value index = CheckedIndices(c, c.tensor("index"), self.numel(), Negative::kWraps,
                               OutOfElements(self.numel()));
  return {Take(Reshape(self, {self.numel()}), index, 0)};
}

std::vector<ResultSpec> TakeShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const ShapeTensor& index = s.tensor("index");
  TORCH_CHECK(index.dtype == ScalarType::Long, "take(): Expected a long tensor for index, but got ",
              index.dtype);
  TORCH_CHECK_INDEX(
      c10::multiply_integers(self.sizes) != 0 || c10::multiply_integers(index.sizes) == 0,
      "take(): tried to take from an empty tensor");
  return {{.dtype = self.dtype, .sizes = index.sizes}};
}
TPU_RULE({.op = "take", .lower = &TakeRule, .shape = &TakeShape});

Values Put(Call& c) {
  Value self = c.tensor("self");
  Value index = c.tensor("index");
  if (index.numel() == 0) return {self};
  index = CheckedIndices(c, Reshape(index, {index.numel()}), self.numel(), Negative::kWraps,
                         OutOfElements(self.numel()));
  Value out = ScatterSlices(Reshape(self, {self.numel()}), 0, index,
                            Reshape(c.tensor("source"), {index.numel()}),
                            c.boolean("accumulate") ? Combine::kAdd : Combine::kSet);
  return {Reshape(out, self.dims())};
}

std::vector<ResultSpec> PutShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const ShapeTensor& index = s.tensor("index");
  const ShapeTensor& source = s.tensor("source");
  TORCH_CHECK(index.dtype == ScalarType::Long, "put_(): Expected a long tensor for index, but got ",
              index.dtype);
  TORCH_CHECK(self.dtype == source.dtype,
              "put_(): self and source expected to have the same dtype, but got self.dtype = ",
              self.dtype, " and source.dtype = ", source.dtype);
  const int64_t indices = c10::multiply_integers(index.sizes);
  const int64_t sources = c10::multiply_integers(source.sizes);
  TORCH_CHECK_INDEX(indices == sources,
                    "put_(): Expected source and index to have the same number of elements, but "
                    "got source.numel() = ",
                    sources, ", index.numel() = ", indices);
  TORCH_CHECK_INDEX(c10::multiply_integers(self.sizes) != 0 || indices == 0,
                    "put_(): Tried to put elements into an empty tensor");
  return SelfShape(s);
}
TPU_RULE({.op = "put", .lower = &Put, .shape = &PutShape});

// --- masks

Values MaskedScatter(Call& c) {
  const Type& out = c.result();
  Value self = BroadcastTo(c.tensor("self"), out.dims);
  Value mask = BroadcastTo(c.tensor("mask"), out.dims);
  Value source = c.tensor("source");
  if (out.numel() == 0) return {self};
  const int64_t available = source.numel();
  Value rank = RankAmongTrue(c, Reshape(mask, {out.numel()}));
  // The last rank is the number of true elements less one.
  Value last = SliceDim(rank, 0, out.numel() - 1, out.numel());
  c.Check(Lt(last, c.builder().ConstantInt(last.type(), available)),
          "Number of elements of source < number of ones in mask", Call::ErrorKind::kRuntime);
  if (available == 0) return {self};
  Value zero = ConstantLike(rank, 0);
  Value taken = Take(Reshape(source, {available}), Maximum(rank, zero), 0);
  return {Select(mask, Reshape(taken, out.dims), self)};
}

std::vector<ResultSpec> MaskedScatterShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const ShapeTensor& mask = s.tensor("mask");
  const ShapeTensor& source = s.tensor("source");
  TORCH_CHECK(self.dtype == source.dtype,
              "masked_scatter: expected self and source to have same dtypes but got", self.dtype,
              " and ", source.dtype);
  TORCH_CHECK(mask.dtype == ScalarType::Bool,
              "masked_scatter_ only supports boolean masks, but got mask with dtype ", mask.dtype);
  ResultSpec result = ElementwiseResult(s, {"self", "mask"}, self.dtype);
  result.strides.clear();
  return {result};
}
TPU_RULE({.op = "masked_scatter", .lower = &MaskedScatter, .shape = &MaskedScatterShape});

// The masked elements of the gradient in order, then zeros.
Values MaskedScatterBackward(Call& c) {
  Value grad = c.tensor("grad_output");
  Value mask = BroadcastTo(c.tensor("mask"), grad.dims());
  const Type& out = c.result();
  if (grad.numel() == 0 || out.numel() == 0) return {Zeros(c.builder(), out)};
  Value flat_mask = Reshape(mask, {grad.numel()});
  Value packed = PackTrue(Reshape(grad, {grad.numel()}), flat_mask, RankAmongTrue(c, flat_mask),
                          out.numel(), Zeros(c.builder(), {out.dtype, {}}));
  return {Reshape(packed, out.dims)};
}

std::vector<ResultSpec> MaskedScatterBackwardShape(const ShapeCall& s) {
  return {{.dtype = s.tensor("grad_output").dtype, .sizes = s.argument("sizes").toIntVector()}};
}
TPU_RULE({.op = "masked_scatter_backward",
          .lower = &MaskedScatterBackward,
          .shape = &MaskedScatterBackwardShape});

Values NonzeroStatic(Call& c) {
  Builder& b = c.builder();
  Value self = c.tensor("self");
  const Type& out = c.result();  // [size, rank]
  if (out.numel() == 0) return {Zeros(b, out)};
  const int64_t size = out.dims[0], count = self.numel();
  Value fill = b.ConstantInt({out.dtype, {size}}, c.integer("fill_value"));
  Values columns;
  if (count == 0) {
    columns.assign(self.rank(), Reshape(fill, {size, 1}));
  } else {
    Value mask = Reshape(Convert(self, DType::kPred), {count});
    Value positions = Positions(b, {count}, 0);
    // -1 where there are fewer nonzero elements than rows.
    Value flat = PackTrue(positions, mask, RankAmongTrue(c, mask), size,
                          ScalarInt(b, positions.dtype(), -1));
    Value found = Ge(flat, ConstantLike(flat, 0));
    for (int d = 0; d < self.rank(); ++d) {
      Value coordinate = Convert(CoordinateOf(flat, self.dims(), d), out.dtype);
      columns.push_back(Reshape(Select(found, coordinate, fill), {size, 1}));
    }
  }
  return {columns.size() == 1 ? columns.front() : Concatenate(columns, 1)};
}

std::vector<ResultSpec> NonzeroStaticShape(const ShapeCall& s) {
  const int64_t size = s.argument("size").toInt();
  TORCH_CHECK(size >= 0, "nonzero_static: 'size' must be an non-negative integer");
  return {{.dtype = ScalarType::Long,
           .sizes = {size, static_cast<int64_t>(s.tensor("self").sizes.size())}}};
}
TPU_RULE({.op = "nonzero_static", .lower = &NonzeroStatic, .shape = &NonzeroStaticShape});

// --- embedding

void CheckEmbeddingIndices(const ShapeTensor& indices, int position, const char* function) {
  TORCH_CHECK(indices.dtype == ScalarType::Long || indices.dtype == ScalarType::Int,
              "Expected tensor for argument #", position,
              " 'indices' to have one of the following scalar types: Long, Int; but got torch.",
              indices.dtype, "Tensor instead (while checking arguments for ", function, ")");
}

Values Embedding(Call& c) {
  Value weight = c.tensor("weight");
  Value indices =
      CheckedIndices(c, c.tensor("indices"), weight.dim(0), Negative::kIsError, kOutOfRangeInSelf);
  if (c.result().numel() == 0) return {Zeros(c.builder(), c.result())};
  return {Take(weight, indices, 0)};
}

std::vector<ResultSpec> EmbeddingShape(const ShapeCall& s) {
  const ShapeTensor& weight = s.tensor("weight");
  const ShapeTensor& indices = s.tensor("indices");
  TORCH_CHECK(weight.sizes.size() == 2, "'weight' must be 2-D");
  CheckEmbeddingIndices(indices, 1, "embedding");
  TORCH_CHECK_INDEX(weight.sizes[0] != 0 || c10::multiply_integers(indices.sizes) == 0,
                    kOutOfRangeInSelf);
  ResultSpec result{.dtype = weight.dtype, .sizes = indices.sizes};
  result.sizes.push_back(weight.sizes[1]);
  return {result};
}
TPU_RULE({.op = "embedding", .lower = &Embedding, .shape = &EmbeddingShape});

Values EmbeddingDenseBackward(Call& c) {
  Builder& b = c.builder();
  const Type& out = c.result();
  const int64_t rows = out.dims[0], padding = c.integer("padding_idx");
  const DType compute = ComputeType(out.dtype);
  Value indices = c.tensor("indices");
  const int64_t count = indices.numel();
  Value zeros = Zeros(b, {compute, out.dims});
  if (count == 0 || out.numel() == 0) return {Convert(zeros, out.dtype)};
  indices = NarrowIndices(Reshape(indices, {count}), rows + 1);
  // The padding row is sent out of bounds, where scatter drops it.
  Value places = indices;
  if (padding >= 0) {
    places = Select(Eq(indices, b.ConstantInt(indices.type(), padding)),
                    b.ConstantInt(indices.type(), rows), indices);
  }
  places = Reshape(places, {count, 1});
  Value grad = Reshape(Convert(c.tensor("grad_output"), compute), {count, out.dims[1]});
  ScatterDims dims;
  dims.inserted_window_dims = {0};
  dims.scatter_dims_to_operand_dims = {0};
  dims.index_vector_dim = 1;
  if (c.boolean("scale_grad_by_freq")) {
    Value uses = Scatter(Zeros(b, {compute, {rows}}), places, b.Constant({compute, {count}}, 1),
                         dims, CombineRegion(Combine::kAdd, compute));
    Value frequency = Take(uses, indices, 0);
    grad = Divide(grad, BroadcastInDim(frequency, grad.dims(), {0}));
  }
  dims.update_window_dims = {1};
  Value sum = Scatter(zeros, places, grad, dims, CombineRegion(Combine::kAdd, compute));
  return {Convert(sum, out.dtype)};
}

std::vector<ResultSpec> EmbeddingDenseBackwardShape(const ShapeCall& s) {
  const ShapeTensor& grad = s.tensor("grad_output");
  CheckEmbeddingIndices(s.tensor("indices"), 2, "embedding_backward");
  return {{.dtype = grad.dtype, .sizes = {s.argument("num_weights").toInt(), grad.sizes.back()}}};
}
TPU_RULE({.op = "embedding_dense_backward",
          .lower = &EmbeddingDenseBackward,
          .shape = &EmbeddingDenseBackwardShape});

// The rows that are named get at most the norm max_norm.
Values EmbeddingRenorm(Call& c) {
  Value self = c.tensor("self");
  Value indices = c.tensor("indices");
  const int64_t count = indices.numel();
  if (count == 0 || self.numel() == 0) return {self};
  const DType compute = ComputeType(self.dtype());
  indices = CheckedIndices(c, Reshape(indices, {count}), self.dim(0), Negative::kIsError,
                           kOutOfRangeInSelf);
  Value rows = Convert(Take(self, indices, 0), compute);
  const double p = c.number("norm_type");
  Value norm = Abs(rows);
  if (std::isinf(p)) {
    norm = Reduce(norm, Reduction::kMax, {1});
  } else if (p == 2) {
    norm = Sqrt(Reduce(Multiply(rows, rows), Reduction::kSum, {1}));
  } else if (p == 1) {
    norm = Reduce(norm, Reduction::kSum, {1});
  } else if (p == 0) {
    norm = Reduce(Convert(Ne(rows, ConstantLike(rows, 0)), compute), Reduction::kSum, {1});
  } else {
    norm = Reduce(Power(norm, ConstantLike(norm, p)), Reduction::kSum, {1});
    norm = Power(norm, ConstantLike(norm, 1 / p));
  }
  Value limit = BroadcastTo(c.scalar("max_norm", compute), norm.dims());
  Value scale = Divide(limit, Add(norm, ConstantLike(norm, 1e-7)));
  scale = Select(Gt(norm, limit), scale, ConstantLike(scale, 1));
  rows = Multiply(rows, BroadcastInDim(scale, rows.dims(), {0}));
  return {ScatterSlices(self, 0, indices, Convert(rows, self.dtype()), Combine::kSet)};
}
TPU_RULE({.op = "embedding_renorm",
          .lower = &EmbeddingRenorm,
          .shape = &SelfShape,
          .structural = {"norm_type"}});

}  // namespace
}  // namespace torch_tpu::lowering
