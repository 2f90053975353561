#include "trace/view.h"

#include <algorithm>
#include <numeric>

namespace torch_tpu::trace {
namespace {

using namespace stablehlo;  // NOLINT

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One digit of the mixed-radix form of the base's element index: elements `stride` apart, of which
// the view takes `size` from `start`.
struct Axis {
  int64_t stride, size;
  int view_dim;  // -1 for an axis only added to keep the base's shape
  int64_t start = 0;
  int64_t radix = 0;
};

// How a view whose strides nest lies in the base.
struct Nesting {
  int64_t skip = 0;        // elements dropped from the front of the flat base first
  std::vector<Axis> axes;  // outermost first; the last has stride 1
  bool exact = true;       // every stride divides the one outside it: one reshape does it
};

int64_t Extent(const std::vector<Axis>& axes, size_t from) {
  int64_t extent = 0;
  for (size_t i = from; i < axes.size(); ++i) extent += (axes[i].size - 1) * axes[i].stride;
  return extent;
}

// Splits `offset` into the axes' digits; false if some axis would carry into the one outside it.
bool AssignDigits(Nesting& nesting, int64_t length, int64_t offset) {
  auto& axes = nesting.axes;
  nesting.exact = true;
  int64_t rest = offset, span = length;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (rest + Extent(axes, i) >= span) return false;
    Axis& axis = axes[i];
    axis.radix = CeilDivide(span, axis.stride);
    if (span % axis.stride != 0) nesting.exact = false;
    axis.start = rest / axis.stride;
    rest %= axis.stride;
    span = axis.stride;
  }
  return true;
}

std::optional<Nesting> FindNesting(const Dims& base, const ViewSpec& view) {
  std::vector<Axis> axes;
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    if (view.sizes[d] > 1 && view.strides[d] > 0) {
      axes.push_back({view.strides[d], view.sizes[d], static_cast<int>(d)});
    }
  }
  std::stable_sort(axes.begin(), axes.end(),
                   [](const Axis& a, const Axis& b) { return a.stride > b.stride; });
  for (size_t i = 0; i + 1 < axes.size(); ++i) {
    if (axes[i].stride <= Extent(axes, i + 1)) return std::nullopt;
  }
  if (axes.empty() || axes.back().stride != 1) axes.push_back({1, 1, -1});
  int64_t length = 1;
  for (int64_t d : base) length *= d;

  // The base's own strides, where they fit between the view's, keep its shape: slicing a dimension
  // then needs no reshape that would move data on hardware with tiled layouts.
  Nesting kept{0, axes};
  int64_t stride = 1;
  for (size_t d = base.size(); d-- > 0; stride *= base[d]) {
    if (stride <= 1 || base[d] <= 1) continue;
    auto inner = std::find_if(kept.axes.begin(), kept.axes.end(),
                              [&](const Axis& a) { return a.stride <= stride; });
    if (inner == kept.axes.end() || inner->stride == stride || stride % inner->stride != 0)
      continue;
    const size_t at = inner - kept.axes.begin();
    if (Extent(kept.axes, at) >= stride) continue;
    if (at > 0 ? kept.axes[at - 1].stride % stride != 0 : length % stride != 0) continue;
    kept.axes.insert(inner, {stride, 1, -1});
  }
  if (AssignDigits(kept, length, view.offset)) return kept;
  Nesting nesting{0, axes};
  if (AssignDigits(nesting, length, view.offset)) return nesting;
  nesting.skip = view.offset;
  if (AssignDigits(nesting, length - view.offset, 0)) return nesting;
  return std::nullopt;
}

Value Flatten(Value x) { return Reshape(x, {x.numel()}); }

// The same bytes as an array of another dtype; keeps the dimensions where the byte size allows.
Value Reinterpret(Value x, DType dtype) {
  if (x.dtype() == dtype) return x;
  if (IsComplex(x.dtype())) {
    Dims pairs = x.dims();
    pairs.push_back(1);
    Value parts = Concatenate({Reshape(Real(x), pairs), Reshape(Imag(x), pairs)},
                              static_cast<int>(pairs.size()) - 1);
    return Reinterpret(parts, dtype);
  }
  if (IsComplex(dtype)) {
    Value parts = Reinterpret(x, RealOf(dtype));
    Dims dims = parts.dims();
    if (dims.empty() || dims.back() % 2 != 0) {
      parts = SliceDim(Flatten(parts), 0, 0, parts.numel() / 2 * 2);
      dims = parts.dims();
    }
    Dims pairs = dims;
    pairs.back() /= 2;
    Dims halves = pairs;
    pairs.push_back(2);
    halves.push_back(1);
    parts = Reshape(parts, pairs);
    const int last = static_cast<int>(pairs.size()) - 1;
    halves.pop_back();
    return Complex(Reshape(SliceDim(parts, last, 0, 1), halves),
                   Reshape(SliceDim(parts, last, 1, 2), halves));
  }
  // A bool is one byte of value 0 or 1.
  if (x.dtype() == DType::kPred) return Reinterpret(Convert(x, DType::kU8), dtype);
  if (dtype == DType::kPred) {
    Value bytes = Reinterpret(x, DType::kU8);
    return Ne(bytes, ConstantLike(bytes, 0));
  }
  const int64_t from = static_cast<int64_t>(ByteSize(x.dtype()));
  const int64_t to = static_cast<int64_t>(ByteSize(dtype));
  if (from == to) return BitcastConvert(x, dtype);
  if (from > to) {  // a trailing dimension appears; join it with the last one
    Value split = BitcastConvert(x, dtype);
    Dims dims = x.dims();
    if (dims.empty()) return split;
    dims.back() *= from / to;
    return Reshape(split, dims);
  }
  const int64_t ratio = to / from;
  Dims dims = x.dims();
  if (dims.empty() || dims.back() % ratio != 0) {
    const int64_t whole = x.numel() / ratio * ratio;
    x = SliceDim(Flatten(x), 0, 0, whole);
    dims = {whole};
  }
  dims.back() /= ratio;
  dims.push_back(ratio);
  return BitcastConvert(Reshape(x, dims), dtype);
}

Dims ReinterpretDims(const Type& base, DType dtype) {
  Type type = base;
  if (type.dtype == dtype) return type.dims;
  Builder scratch;
  return Reinterpret(scratch.Parameter(base), dtype).dims();
}

// Flat element indices of the view in the base.
Value FlatIndices(Builder& b, const ViewSpec& view, int64_t length) {
  const DType index = length < (int64_t{1} << 31) ? DType::kS32 : DType::kS64;
  const Type type{index, view.sizes};
  Value flat = b.ConstantInt(type, view.offset);
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    if (view.sizes[d] <= 1 || view.strides[d] == 0) continue;
    Value step = Multiply(b.Iota(type, static_cast<int>(d)), b.ConstantInt(type, view.strides[d]));
    flat = Add(flat, step);
  }
  return flat;
}

Value PadLastTo(Value x, int64_t length) {
  if (x.dims().back() == length) return x;
  Dims low(x.rank(), 0), high(x.rank(), 0);
  high.back() = length - x.dims().back();
  return Pad(x, ZeroConstant(x.builder(), {x.dtype(), {}}), low, high);
}

// One axis of an inexact nesting: the last dimension, split `axis.stride` apart, becomes two.
Value Split(Value x, const Axis& axis) {
  x = PadLastTo(x, axis.radix * axis.stride);
  Dims dims = x.dims();
  dims.back() = axis.radix;
  dims.push_back(axis.stride);
  return Reshape(x, dims);
}

Dims Radices(const Nesting& nesting) {
  Dims dims;
  for (const Axis& axis : nesting.axes) dims.push_back(axis.radix);
  return dims;
}

Dims AxisSizes(const Nesting& nesting) {
  Dims dims;
  for (const Axis& axis : nesting.axes) dims.push_back(axis.size);
  return dims;
}

// Takes the nested elements; result has one dimension an axis.
Value ReadNested(Value x, const Nesting& nesting) {
  if (nesting.skip > 0) x = SliceDim(Flatten(x), 0, nesting.skip, x.numel());
  const size_t rank = nesting.axes.size();
  if (nesting.exact) {
    x = Reshape(x, Radices(nesting));
    Dims starts, limits;
    bool whole = true;
    for (const Axis& axis : nesting.axes) {
      starts.push_back(axis.start);
      limits.push_back(axis.start + axis.size);
      whole = whole && axis.size == axis.radix;
    }
    return whole ? x : Slice(x, starts, limits);
  }
  x = Flatten(x);
  for (size_t i = 0; i < rank; ++i) {
    const Axis& axis = nesting.axes[i];
    x = SliceDim(Split(x, axis), static_cast<int>(i), axis.start, axis.start + axis.size);
  }
  return Reshape(x, AxisSizes(nesting));
}

// Replaces the nested elements of `x` (flat from dimension `depth` on) by `update`.
Value WriteNested(Value x, Value update, const Nesting& nesting, size_t depth) {
  const Axis& axis = nesting.axes[depth];
  const Dims before = x.dims();
  Value blocks = Split(x, axis);
  const int at = static_cast<int>(depth);
  Value inner = SliceDim(blocks, at, axis.start, axis.start + axis.size);
  inner = depth + 1 == nesting.axes.size() ? Reshape(update, inner.dims())
                                           : WriteNested(inner, update, nesting, depth + 1);
  Dims starts(blocks.rank(), 0);
  starts[at] = axis.start;
  blocks = UpdateSlice(blocks, inner, starts);
  Dims joined = before;
  joined.back() = axis.radix * axis.stride;
  Value flat = Reshape(blocks, joined);
  return SliceDim(flat, flat.rank() - 1, 0, before.back());
}

// The order in which the axes of a nesting appear in the view, as a permutation for Transpose.
std::vector<int64_t> ViewOrder(const Nesting& nesting, const ViewSpec& view) {
  std::vector<int64_t> order;  // positions among the kept axes, by view dimension
  std::vector<int> kept;
  for (const Axis& axis : nesting.axes) {
    if (axis.view_dim >= 0) kept.push_back(axis.view_dim);
  }
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    auto it = std::find(kept.begin(), kept.end(), static_cast<int>(d));
    if (it != kept.end()) order.push_back(it - kept.begin());
  }
  return order;
}

Dims KeptSizes(const Nesting& nesting) {
  Dims sizes;
  for (const Axis& axis : nesting.axes) {
    if (axis.view_dim >= 0) sizes.push_back(axis.size);
  }
  return sizes;
}

Dims Contiguous(const Dims& sizes) {
  Dims strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

// Sizes in memory order of a view that covers its storage densely, or nullopt.
std::optional<Dims> DenseSizes(const ViewSpec& view) {
  std::vector<size_t> order(view.sizes.size());
  std::iota(order.begin(), order.end(), 0);
  bool sorted = true;
  for (size_t d = 0; d < order.size(); ++d) {
    if (view.sizes[d] != 1 && view.strides[d] != Contiguous(view.sizes)[d]) sorted = false;
  }
  if (sorted) return view.sizes;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return view.strides[a] > view.strides[b]; });
  Dims sizes;
  int64_t expected = view.numel();
  for (size_t d : order) {
    if (view.sizes[d] == 1) continue;
    if (expected % view.sizes[d] != 0) return std::nullopt;
    expected /= view.sizes[d];
    if (view.strides[d] != expected) return std::nullopt;
    sizes.push_back(view.sizes[d]);
  }
  return sizes;
}

// Bytes of a storage as the view's dtype; what is left over at the end belongs to no element.
int64_t Elements(int64_t bytes, DType dtype) {
  return bytes / static_cast<int64_t>(ByteSize(dtype));
}

// True if a write through the view has to be done on single bytes, as the base would lose some as
// an array of the view's dtype: those after its last whole element, or bytes other than 0 and 1 as
// bool.
bool WritesBytes(const Type* base, const ViewSpec& view, int64_t storage_bytes) {
  if (Elements(storage_bytes, view.dtype) * static_cast<int64_t>(ByteSize(view.dtype)) !=
      storage_bytes) {
    return true;
  }
  return view.dtype == DType::kPred && base != nullptr && base->dtype != DType::kPred;
}

// The same memory as bytes: one more dimension, where elements have more than one.
ViewSpec ByteView(const ViewSpec& view) {
  ViewSpec bytes{DType::kU8, view.sizes, view.strides, view.offset};
  const auto size = static_cast<int64_t>(ByteSize(view.dtype));
  if (size == 1) return bytes;
  for (int64_t& stride : bytes.strides) stride *= size;
  bytes.offset *= size;
  bytes.sizes.push_back(size);
  bytes.strides.push_back(1);
  return bytes;
}

// The view without repetitions (dimensions of stride 0): of elements that share memory the last
// counts.
ViewSpec WithoutRepetitions(const ViewSpec& view, Value& update) {
  ViewSpec distinct = view;
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    if (view.sizes[d] <= 1 || view.strides[d] != 0) continue;
    update = SliceDim(update, static_cast<int>(d), view.sizes[d] - 1, view.sizes[d]);
    distinct.sizes[d] = 1;
  }
  return distinct;
}

// The view is a run of elements, in their order.
bool IsRun(const ViewSpec& view) {
  const Dims strides = Contiguous(view.sizes);
  for (size_t d = 0; d < strides.size(); ++d) {
    if (view.sizes[d] != 1 && view.strides[d] != strides[d]) return false;
  }
  return true;
}

// The update of a dense view, its dimensions in the order that they have in memory.
Value InMemoryOrder(Value update, const ViewSpec& view) {
  // Dimensions of size one have arbitrary strides; drop them before sorting.
  Dims sizes;
  std::vector<int64_t> strides;
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    if (view.sizes[d] == 1) continue;
    sizes.push_back(view.sizes[d]);
    strides.push_back(view.strides[d]);
  }
  std::vector<int64_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t i, int64_t j) { return strides[i] > strides[j]; });
  return Transpose(Reshape(update, sizes), order);
}

}  // namespace

int64_t ViewSpec::numel() const {
  int64_t n = 1;
  for (int64_t d : sizes) n *= d;
  return n;
}

bool IsPlain(const Type& base, const ViewSpec& view) {
  if (view.dtype != base.dtype || view.offset != 0 || view.conjugate || view.negative ||
      view.sizes != base.dims) {
    return false;
  }
  return IsRun(view);
}

Value ReadView(Value base, const ViewSpec& view) {
  Builder& b = base.builder();
  if (view.numel() == 0) {
    return BroadcastTo(ZeroConstant(b, {view.dtype, {}}), view.sizes);
  }
  Value x = Reinterpret(base, view.dtype);
  if (!IsPlain(x.type(), {view.dtype, view.sizes, view.strides, view.offset})) {
    if (x.rank() == 1 && IsRun(view)) {
      // As it is written: what reads and writes a part of a flat base happens in place then.
      x = Reshape(SliceDim(x, 0, view.offset, view.offset + view.numel()), view.sizes);
    } else if (auto nesting = FindNesting(x.dims(), view)) {
      x = ReadNested(x, *nesting);
      x = Reshape(x, KeptSizes(*nesting));
      x = Transpose(x, ViewOrder(*nesting, view));
      std::vector<int64_t> into;
      for (size_t d = 0; d < view.sizes.size(); ++d) {
        if (view.sizes[d] > 1 && view.strides[d] > 0) into.push_back(static_cast<int64_t>(d));
      }
      Dims compact(view.sizes.size(), 1);
      for (int64_t d : into) compact[d] = view.sizes[d];
      x = compact == view.sizes ? Reshape(x, view.sizes) : BroadcastInDim(x, view.sizes, into);
    } else {
      x = Take(Flatten(x), FlatIndices(b, view, x.numel()), 0);
    }
  }
  if (view.conjugate) x = Conj(x);
  if (view.negative) x = Negate(x);
  return x;
}

bool CoversBase(const Type* base, const ViewSpec& view, int64_t storage_bytes) {
  if (view.offset != 0 || view.numel() == 0) return false;
  const int64_t bytes = view.numel() * static_cast<int64_t>(ByteSize(view.dtype));
  const int64_t all = base != nullptr ? static_cast<int64_t>(base->bytes()) : storage_bytes;
  return bytes == all && bytes == storage_bytes && DenseSizes(view).has_value();
}

Type BaseAfterWrite(const Type* base, const ViewSpec& view, int64_t storage_bytes) {
  if (CoversBase(base, view, storage_bytes)) {
    if (base != nullptr && base->dtype == view.dtype) return *base;
    return {view.dtype, *DenseSizes(view)};
  }
  if (base != nullptr && view.numel() == 0) return *base;
  const DType dtype = WritesBytes(base, view, storage_bytes) ? DType::kU8 : view.dtype;
  if (base == nullptr) return {dtype, {Elements(storage_bytes, dtype)}};
  return {dtype, ReinterpretDims(*base, dtype)};
}

Value WriteView(Value base, Value update, const ViewSpec& target, const Type& after) {
  Builder& b = update.builder();
  if (target.numel() == 0) return base.defined() ? base : ZeroConstant(b, after);
  if (target.negative) update = Negate(update);
  if (target.conjugate) update = Conj(update);
  ViewSpec view = WithoutRepetitions(target, update);
  if (after.dtype != view.dtype) {
    view = ByteView(view);
    update = Reshape(Reinterpret(update, DType::kU8), view.sizes);
  }
  if (view.numel() == after.numel() && view.offset == 0 && DenseSizes(view)) {
    // Every element is replaced.
    update = InMemoryOrder(update, view);
    return Reshape(update, after.dims);
  }
  Value x = base.defined() ? Reinterpret(base, view.dtype)
                           : BroadcastTo(ZeroConstant(b, {view.dtype, {}}), after.dims);
  if (x.rank() == 1 && DenseSizes(view)) {
    // Parameters and gradients in flat buffers. The base stays flat: XLA:CPU does not replace a
    // part of a reshaped one in place, but copies all of it.
    Value flat = UpdateSlice(x, Flatten(InMemoryOrder(update, view)), {view.offset});
    return Reshape(flat, after.dims);
  }
  if (auto nesting = FindNesting(x.dims(), view)) {
    const std::vector<int64_t> order = ViewOrder(*nesting, view);
    Dims compact;
    for (size_t d = 0; d < view.sizes.size(); ++d) {
      if (view.sizes[d] > 1) compact.push_back(view.sizes[d]);
    }
    std::vector<int64_t> inverse(order.size());
    for (size_t i = 0; i < order.size(); ++i) inverse[order[i]] = static_cast<int64_t>(i);
    Value nested = Transpose(Reshape(update, compact), inverse);
    nested = Reshape(nested, AxisSizes(*nesting));
    Value head, body = x;
    if (nesting->skip > 0) {
      Value flat = Flatten(x);
      head = SliceDim(flat, 0, 0, nesting->skip);
      body = SliceDim(flat, 0, nesting->skip, x.numel());
    }
    if (nesting->exact) {
      Dims starts;
      for (const Axis& axis : nesting->axes) starts.push_back(axis.start);
      body = UpdateSlice(Reshape(body, Radices(*nesting)), nested, starts);
    } else {
      body = WriteNested(Flatten(body), nested, *nesting, 0);
    }
    if (head.defined()) body = Concatenate({head, Flatten(body)}, 0);
    return Reshape(body, after.dims);
  }
  Value indices = FlatIndices(b, view, x.numel());
  ScatterDims dims;
  dims.inserted_window_dims = {0};
  dims.scatter_dims_to_operand_dims = {0};
  dims.index_vector_dim = 1;
  Value flat = Scatter(Flatten(x), Reshape(indices, {indices.numel(), 1}), Flatten(update), dims,
                       [](const Values& v) { return Values{v[1]}; });
  return Reshape(flat, after.dims);
}

}  // namespace torch_tpu::trace
