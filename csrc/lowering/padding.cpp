#include <c10/core/MemoryFormat.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "lowering/elementwise.h"
#include "lowering/indices.h"
#include "lowering/rule.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT
using c10::IntArrayRef;

// Contiguous, or channels-last if `like` is.
ResultSpec InFormatOf(const ShapeTensor& like, std::vector<int64_t> sizes) {
  ResultSpec result{.dtype = like.dtype, .sizes = std::move(sizes)};
  if (like.sizes.size() == 4 &&
      c10::is_channels_last_strides_2d<int64_t>(like.sizes, like.strides)) {
    result.strides = c10::get_channels_last_strides_2d(result.sizes);
  } else if (like.sizes.size() == 5 &&
             c10::is_channels_last_strides_3d<int64_t>(like.sizes, like.strides)) {
    result.strides = c10::get_channels_last_strides_3d(result.sizes);
  }
  return result;
}

// --- constant

Values ConstantPadNd(Call& c) {
  Value self = c.tensor("self");
  const std::vector<int64_t> pad = c.integers("pad");
  Dims low(self.rank(), 0), high(self.rank(), 0);
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    low[self.rank() - 1 - i] = pad[2 * i];
    high[self.rank() - 1 - i] = pad[2 * i + 1];
  }
  return {Pad(self, c.scalar("value", self.dtype()), low, high)};
}

std::vector<ResultSpec> ConstantPadNdShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const std::vector<int64_t> pad = s.argument("pad").toIntVector();
  const size_t rank = self.sizes.size();
  TORCH_CHECK(pad.size() % 2 == 0, "Length of pad must be even but instead it equals ", pad.size());
  TORCH_CHECK(rank * 2 >= pad.size(),
              "Length of pad should be no more than twice the number of dimensions of the input. "
              "Pad length is ",
              pad.size(), "while the input has ", rank, "dimensions.");
  std::vector<int64_t> sizes = self.sizes;
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    const size_t dim = rank - 1 - i;
    const int64_t low = pad[2 * i], high = pad[2 * i + 1];
    sizes[dim] += low + high;
    TORCH_CHECK(sizes[dim] >= 0, "The input size ", self.sizes[dim], ", plus negative padding ",
                low, " and ", high,
                " resulted in a negative output size, which is invalid. Check dimension ", dim,
                " of your input.");
  }
  // Negative padding is cut off first, one side after the other.
  for (size_t i = 0; i < pad.size(); ++i) {
    const int64_t cut_before = i % 2 == 1 ? std::min<int64_t>(pad[i - 1], 0) : 0;
    const int64_t left = self.sizes[rank - 1 - i / 2] + cut_before + std::min<int64_t>(pad[i], 0);
    TORCH_CHECK(left >= 0, "narrow(): length must be non-negative.");
  }
  return {InFormatOf(self, std::move(sizes))};
}
TPU_RULE({.op = "constant_pad_nd",
          .lower = &ConstantPadNd,
          .shape = &ConstantPadNdShape,
          .scalars_as_self = true});

// --- reflection and replication

enum class Mode { kReflect, kReplicate };

// Elements [first, first + count) of `dim`.
Value Part(Value x, int dim, int64_t first, int64_t count) {
  return SliceDim(x, dim, first, first + count);
}

Value PadDim(Value x, int dim, int64_t left, int64_t right, Mode mode) {
  const int64_t size = x.dim(dim);
  Dims dims = x.dims();
  Values parts;
  if (left > 0) {
    if (mode == Mode::kReflect) {
      parts.push_back(Reverse(Part(x, dim, 1, left), {dim}));
    } else {
      dims[dim] = left;
      parts.push_back(BroadcastTo(Part(x, dim, 0, 1), dims));
    }
  }
  parts.push_back(x);
  if (right > 0) {
    if (mode == Mode::kReflect) {
      parts.push_back(Reverse(Part(x, dim, size - 1 - right, right), {dim}));
    } else {
      dims[dim] = right;
      parts.push_back(BroadcastTo(Part(x, dim, size - 1, 1), dims));
    }
  }
  Value padded = parts.size() == 1 ? parts.front() : Concatenate(parts, dim);
  // Negative padding crops.
  const int64_t start = std::max<int64_t>(-left, 0);
  const int64_t limit = padded.dim(dim) - std::max<int64_t>(-right, 0);
  return limit - start == padded.dim(dim) ? padded : SliceDim(padded, dim, start, limit);
}

// `part` at [first, ...) of `dim`, in zeros of `size` elements.
Value At(Value part, int dim, int64_t first, int64_t size) {
  Dims low(part.rank(), 0), high(part.rank(), 0);
  low[dim] = first;
  high[dim] = size - first - part.dim(dim);
  return Pad(part, Zeros(part.builder(), {part.dtype(), {}}), low, high);
}

// The transpose of PadDim: what was copied into the margins is added back to where it came from.
Value PadDimBackward(Value grad, int dim, int64_t size, int64_t left, int64_t right, Mode mode) {
  // What was cropped has no gradient.
  Dims low(grad.rank(), 0), high(grad.rank(), 0);
  low[dim] = std::max<int64_t>(-left, 0);
  high[dim] = std::max<int64_t>(-right, 0);
  grad = Pad(grad, Zeros(grad.builder(), {grad.dtype(), {}}), low, high);
  left = std::max<int64_t>(left, 0);
  right = std::max<int64_t>(right, 0);

  const auto fold = [&](Value margin) {
    if (mode == Mode::kReflect) return Reverse(margin, {dim});
    Dims dims = margin.dims();
    dims[dim] = 1;
    return Reshape(Reduce(margin, Reduction::kSum, {dim}), dims);
  };
  Value out = Part(grad, dim, left, size);
  if (left > 0) {
    const int64_t first = mode == Mode::kReflect ? 1 : 0;
    out = Add(out, At(fold(Part(grad, dim, 0, left)), dim, first, size));
  }
  if (right > 0) {
    const int64_t first = mode == Mode::kReflect ? size - 1 - right : size - 1;
    out = Add(out, At(fold(Part(grad, dim, left + size, right)), dim, first, size));
  }
  return out;
}

Values PadAll(Call& c, Mode mode) {
  Value x = c.tensor("self");
  if (c.result().numel() == 0) return {Zeros(c.builder(), c.result())};
  const std::vector<int64_t> padding = c.integers("padding");
  for (size_t i = 0; i < padding.size() / 2; ++i) {
    x = PadDim(x, x.rank() - 1 - static_cast<int>(i), padding[2 * i], padding[2 * i + 1], mode);
  }
  return {x};
}

Values PadAllBackward(Call& c, Mode mode) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  Value grad = Convert(c.tensor("grad_output"), ComputeType(out.dtype));
  const std::vector<int64_t> padding = c.integers("padding");
  for (size_t i = 0; i < padding.size() / 2; ++i) {
    const int dim = out.rank() - 1 - static_cast<int>(i);
    grad = PadDimBackward(grad, dim, out.dims[dim], padding[2 * i], padding[2 * i + 1], mode);
  }
  return {Convert(grad, out.dtype)};
}

Values Reflect(Call& c) { return PadAll(c, Mode::kReflect); }
Values Replicate(Call& c) { return PadAll(c, Mode::kReplicate); }
Values ReflectBackward(Call& c) { return PadAllBackward(c, Mode::kReflect); }
Values ReplicateBackward(Call& c) { return PadAllBackward(c, Mode::kReplicate); }

std::vector<ResultSpec> Reflect2dShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const std::vector<int64_t> padding = s.argument("padding").toIntVector();
  TORCH_CHECK(padding.size() == 4, "padding size is expected to be 4, but got: ", padding.size());
  const size_t rank = self.sizes.size();
  bool valid = rank == 3 || rank == 4;
  for (size_t d = rank == 4 ? 1 : 0; valid && d < rank; ++d) valid = self.sizes[d] != 0;
  TORCH_CHECK(valid,
              "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero "
              "dimensions for input, but got: ",
              IntArrayRef(self.sizes));
  const size_t w = rank - 1, h = rank - 2;
  TORCH_CHECK(padding[0] < self.sizes[w] && padding[1] < self.sizes[w],
              "Argument #4: Padding size should be less than the corresponding input dimension, "
              "but got: padding (",
              padding[0], ", ", padding[1], ") at dimension ", w, " of input ",
              IntArrayRef(self.sizes));
  TORCH_CHECK(padding[2] < self.sizes[h] && padding[3] < self.sizes[h],
              "Argument #6: Padding size should be less than the corresponding input dimension, "
              "but got: padding (",
              padding[2], ", ", padding[3], ") at dimension ", h, " of input ",
              IntArrayRef(self.sizes));
  std::vector<int64_t> sizes = self.sizes;
  sizes[w] += padding[0] + padding[1];
  sizes[h] += padding[2] + padding[3];
  TORCH_CHECK(sizes[w] >= 1 || sizes[h] >= 1, "input (H: ", self.sizes[h], " W: ", self.sizes[w],
              ") is too small. Calculated output H: ", sizes[h], " W: ", sizes[w]);
  return {InFormatOf(self, std::move(sizes))};
}

std::vector<ResultSpec> PadBackwardShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const ShapeTensor& grad = s.tensor("grad_output");
  const std::vector<int64_t> padding = s.argument("padding").toIntVector();
  static constexpr const char* kNames[] = {"width", "height", "depth"};
  for (size_t i = 0; i < padding.size() / 2; ++i) {
    TORCH_CHECK_INDEX(self.sizes.size() > i && grad.sizes.size() == self.sizes.size(),
                      "Dimension out of range");
    const int64_t expected =
        self.sizes[self.sizes.size() - 1 - i] + padding[2 * i] + padding[2 * i + 1];
    const int64_t got = grad.sizes[grad.sizes.size() - 1 - i];
    TORCH_CHECK(expected == got, "gradOutput ", kNames[i], " unexpected. Expected: ", expected,
                ", Got: ", got);
  }
  ResultSpec result = InFormatOf(self, self.sizes);
  result.dtype = grad.dtype;
  return {result};
}

TPU_RULE({.op = "reflection_pad1d", .lower = &Reflect});
TPU_RULE({.op = "reflection_pad2d", .lower = &Reflect, .shape = &Reflect2dShape});
TPU_RULE({.op = "reflection_pad3d", .lower = &Reflect});
TPU_RULE({.op = "replication_pad1d", .lower = &Replicate});
TPU_RULE({.op = "replication_pad2d", .lower = &Replicate});
TPU_RULE({.op = "replication_pad3d", .lower = &Replicate});
TPU_RULE({.op = "reflection_pad1d_backward", .lower = &ReflectBackward});
TPU_RULE({.op = "reflection_pad2d_backward",
          .lower = &ReflectBackward,
          .shape = &PadBackwardShape});
TPU_RULE({.op = "reflection_pad3d_backward", .lower = &ReflectBackward});
TPU_RULE({.op = "replication_pad1d_backward", .lower = &ReplicateBackward});
TPU_RULE({.op = "replication_pad2d_backward",
          .lower = &ReplicateBackward,
          .shape = &PadBackwardShape});
TPU_RULE({.op = "replication_pad3d_backward",
          .lower = &ReplicateBackward,
          .shape = &PadBackwardShape});

}  // namespace
}  // namespace torch_tpu::lowering
