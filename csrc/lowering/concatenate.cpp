#include <ATen/TensorUtils.h>
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "lowering/elementwise.h"
#include "lowering/indices.h"
#include "lowering/memory_order.h"
#include "lowering/placement.h"
#include "lowering/rule.h"

// Joining, tiling and reordering whole tensors.
namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT
using c10::IntArrayRef;

Values Cat(Call& c) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  Values parts;
  for (const Value& x : c.tensors("tensors")) {
    // Among them the 1-d empty tensors that PyTorch lets pass whatever the rank of the others.
    if (x.numel() != 0) parts.push_back(Convert(x, out.dtype));
  }
  const int64_t dim = WrapDim(c.integer("dim"), out.rank());
  return {parts.size() == 1 ? parts.front() : Concatenate(parts, static_cast<int>(dim))};
}
TPU_RULE({.op = "cat", .lower = &Cat});

Values Stack(Call& c) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  const int64_t dim = WrapDim(c.integer("dim"), out.rank());
  Dims slice = out.dims;
  slice[dim] = 1;
  Values parts;
  for (const Value& x : c.tensors("tensors"))
    parts.push_back(Reshape(Convert(x, out.dtype), slice));
  return {parts.size() == 1 ? parts.front() : Concatenate(parts, static_cast<int>(dim))};
}

std::vector<ResultSpec> StackShape(const ShapeCall& s) {
  const auto& tensors = s.tensors("tensors");
  TORCH_CHECK(!tensors.empty(), "stack expects a non-empty TensorList");
  const std::vector<int64_t>& first = tensors.front().sizes;
  ResultSpec result{.dtype = tensors.front().dtype, .sizes = first};
  const int64_t dim =
      c10::maybe_wrap_dim(s.argument("dim").toInt(), static_cast<int64_t>(first.size()) + 1);
  for (size_t i = 1; i < tensors.size(); ++i) {
    TORCH_CHECK(tensors[i].sizes == first, "stack expects each tensor to be equal size, but got ",
                IntArrayRef(first), " at entry 0 and ", IntArrayRef(tensors[i].sizes), " at entry ",
                i);
    result.dtype = c10::promoteTypes(result.dtype, tensors[i].dtype);
  }
  const auto count = static_cast<int64_t>(tensors.size());
  const auto place = static_cast<size_t>(dim);
  if (place < first.size()) {
    // CPU joins along the next dimension and splits that, in whichever layout the joint one has.
    std::vector<int64_t> joint = first;
    joint[place] *= count;
    const std::vector<int64_t> strides = CommonStrides(tensors, joint);
    result.sizes.insert(result.sizes.begin() + dim, count);
    if (!strides.empty()) {
      result.strides =
          at::detail::computeStride(IntArrayRef(joint), strides, IntArrayRef(result.sizes)).value();
    }
  } else {
    std::vector<ShapeTensor> columns = tensors;
    for (ShapeTensor& column : columns) {
      column.sizes.push_back(1);
      column.strides.push_back(1);
    }
    std::vector<int64_t> joint = first;
    joint.push_back(count);
    result.strides = CommonStrides(columns, joint);
    result.sizes = joint;
  }
  return {result};
}
TPU_RULE({.op = "stack", .lower = &Stack, .shape = &StackShape});
TPU_RULE({.op = "_stack", .lower = &Stack, .shape = &StackShape});

Values Repeat(Call& c) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  Value self = c.tensor("self");
  const std::vector<int64_t> repeats = c.integers("repeats");
  const size_t added = repeats.size() - self.rank();
  Dims tiled;  // [repeats, size] for each dimension
  std::vector<int64_t> positions;
  for (size_t i = 0; i < repeats.size(); ++i) {
    if (repeats[i] != 1) tiled.push_back(repeats[i]);
    if (i < added) continue;
    positions.push_back(static_cast<int64_t>(tiled.size()));
    tiled.push_back(self.dims()[i - added]);
  }
  return {Reshape(BroadcastInDim(self, tiled, positions), out.dims)};
}

std::vector<ResultSpec> RepeatShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const std::vector<int64_t> repeats = s.argument("repeats").toIntVector();
  TORCH_CHECK(repeats.size() >= self.sizes.size(),
              "Number of dimensions of repeat dims can not be smaller than number of dimensions of "
              "tensor");
  const size_t added = repeats.size() - self.sizes.size();
  ResultSpec result{.dtype = self.dtype, .sizes = repeats};
  for (size_t i = added; i < repeats.size(); ++i) result.sizes[i] *= self.sizes[i - added];
  for (int64_t size : result.sizes) {
    TORCH_CHECK(size >= 0, "Trying to create tensor with negative dimension ", size, ": ",
                IntArrayRef(result.sizes));
  }
  return {result};
}
TPU_RULE({.op = "repeat", .lower = &Repeat, .shape = &RepeatShape});

Values Flip(Call& c) {
  Value self = c.tensor("self");
  const std::vector<int64_t> dims = WrapDims(c.integers("dims"), self.rank(), false);
  if (self.rank() == 0 || dims.empty()) return {self};
  return {Reverse(self, dims)};
}

std::vector<ResultSpec> FlipShape(const ShapeCall& s) {
  const int64_t rank = static_cast<int64_t>(s.tensor("self").sizes.size());
  std::vector<bool> seen(std::max<int64_t>(rank, 1));
  for (int64_t dim : s.argument("dims").toIntVector()) {
    dim = c10::maybe_wrap_dim(dim, rank);
    TORCH_CHECK(!seen[dim], "dim ", dim, " appears multiple times in the list of dims");
    seen[dim] = true;
  }
  return {LikeSelf(s, s.tensor("self").dtype)};
}
TPU_RULE({.op = "flip", .lower = &Flip, .shape = &FlipShape});

Value RollDim(Value x, int64_t dim, int64_t shift) {
  const int64_t size = x.dims()[dim];
  const int64_t start = (size - shift % size) % size;  // first element of the result
  if (start == 0) return x;
  const int d = static_cast<int>(dim);
  return Concatenate({SliceDim(x, d, start, size), SliceDim(x, d, 0, start)}, d);
}

Values Roll(Call& c) {
  Value self = c.tensor("self");
  if (self.numel() == 0) return {self};
  const std::vector<int64_t> shifts = c.integers("shifts"), dims = c.integers("dims");
  if (dims.empty()) {
    return {Reshape(RollDim(Reshape(self, {self.numel()}), 0, shifts[0]), self.dims())};
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    self = RollDim(self, WrapDim(dims[i], self.rank()), shifts[i]);
  }
  return {self};
}

std::vector<ResultSpec> RollShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const std::vector<int64_t> shifts = s.argument("shifts").toIntVector();
  const std::vector<int64_t> dims = s.argument("dims").toIntVector();
  TORCH_CHECK(!shifts.empty(), "`shifts` required");
  TORCH_CHECK(shifts.size() == dims.size() || (dims.empty() && shifts.size() == 1),
              "shifts and dimensions must align. shifts: ", shifts.size(), ", dims:", dims.size());
  // Of no elements CPU returns a clone before it looks at the dimensions.
  if (std::ranges::find(self.sizes, 0) != self.sizes.end()) return SelfShape(s);
  // CPU joins the two parts of each dimension in turn; what they suggest is the layout.
  ShapeTensor rolled = self;
  for (size_t i = 0; i < dims.size(); ++i) {
    TORCH_CHECK_INDEX(!self.sizes.empty(), "Dimension specified as ", dims[i],
                      " but tensor has no dimensions");
    const int64_t dim = c10::maybe_wrap_dim(dims[i], static_cast<int64_t>(self.sizes.size()));
    const int64_t size = self.sizes[dim];
    std::vector<ShapeTensor> parts(2, rolled);
    parts[1].sizes[dim] = ((size - shifts[i]) % size + size) % size;
    parts[0].sizes[dim] = size - parts[1].sizes[dim];
    rolled.strides = CommonStrides(parts, self.sizes);
    if (rolled.strides.empty()) break;
  }
  if (dims.empty()) rolled.strides.clear();
  return {{.dtype = self.dtype, .sizes = self.sizes, .strides = rolled.strides}};
}
TPU_RULE({.op = "roll", .lower = &Roll, .shape = &RollShape});

// Channel i*groups + g of the result is channel g*(C/groups) + i.
Values ChannelShuffle(Call& c) {
  Value self = c.tensor("self");
  if (self.numel() == 0) return {self};
  const int64_t groups = c.integer("groups"), channels = self.dim(1);
  const int64_t rest = self.numel() / self.dim(0) / channels;
  Value x = Reshape(self, {self.dim(0), groups, channels / groups, rest});
  return {Reshape(Transpose(x, {0, 2, 1, 3}), self.dims())};
}

std::vector<ResultSpec> ChannelShuffleShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const int64_t groups = s.argument("groups").toInt();
  TORCH_CHECK(self.sizes.size() > 2,
              "channel_shuffle expects input with > 2 dims, but got input with sizes ",
              IntArrayRef(self.sizes));
  TORCH_CHECK(groups > 0, "Number of groups to divide channels in must be positive.",
              " Value of groups:", groups);
  TORCH_CHECK(self.sizes[1] % groups == 0, "Number of channels must be divisible by groups. Got ",
              self.sizes[1], " channels and ", groups, " groups.");
  ResultSpec result{.dtype = self.dtype, .sizes = self.sizes};
  if (self.sizes.size() == 4 &&
      c10::is_channels_last_strides_2d<int64_t>(self.sizes, self.strides)) {
    result.strides = c10::get_channels_last_strides_2d(self.sizes);
  }
  return {result};
}
TPU_RULE({.op = "channel_shuffle", .lower = &ChannelShuffle, .shape = &ChannelShuffleShape});

Values KeepTriangle(Call& c, bool lower) {
  Value self = c.tensor("self");
  if (self.numel() == 0) return {self};
  Value number = DiagonalNumber(c.builder(), self.dims(), self.rank() - 2, self.rank() - 1);
  Value diagonal = c.builder().ConstantInt(
      number.type(), std::clamp<int64_t>(c.integer("diagonal"), -self.dim(-2), self.dim(-1)));
  Value keep = lower ? Le(number, diagonal) : Ge(number, diagonal);
  return {Select(keep, self, ConstantLike(self, 0))};
}
Values Tril(Call& c) { return KeepTriangle(c, true); }
Values Triu(Call& c) { return KeepTriangle(c, false); }
TPU_RULE({.op = "tril", .lower = &Tril});
TPU_RULE({.op = "triu", .lower = &Triu});

}  // namespace
}  // namespace torch_tpu::lowering
