#include <c10/util/Exception.h>

#include "lowering/indices.h"
#include "lowering/memory_order.h"
#include "lowering/rule.h"

// Channels become squares of pixels, and squares of pixels channels.
namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT

// [..., c * f * f, h, w] to [..., c, h * f, w * f].
Values PixelShuffle(Call& c) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  const Value self = c.tensor("self");
  const int64_t factor = c.integer("upscale_factor");
  const size_t batch = self.rank() - 3;
  const Dims& dims = self.dims();
  Dims parts(dims.begin(), dims.begin() + batch);
  parts.insert(parts.end(),
               {dims[batch] / (factor * factor), factor, factor, dims[batch + 1], dims[batch + 2]});
  std::vector<int64_t> order;
  for (size_t i = 0; i < batch; ++i) order.push_back(static_cast<int64_t>(i));
  for (int64_t i : {0, 3, 1, 4, 2}) order.push_back(static_cast<int64_t>(batch) + i);
  return {Reshape(Transpose(Reshape(self, parts), order), out.dims)};
}

// [..., c, h * f, w * f] to [..., c * f * f, h, w].
Values PixelUnshuffle(Call& c) {
  const Type& out = c.result();
  if (out.numel() == 0) return {Zeros(c.builder(), out)};
  const Value self = c.tensor("self");
  const int64_t factor = c.integer("downscale_factor");
  const size_t batch = self.rank() - 3;
  const Dims& dims = self.dims();
  Dims parts(dims.begin(), dims.begin() + batch);
  parts.insert(parts.end(),
               {dims[batch], dims[batch + 1] / factor, factor, dims[batch + 2] / factor, factor});
  std::vector<int64_t> order;
  for (size_t i = 0; i < batch; ++i) order.push_back(static_cast<int64_t>(i));
  for (int64_t i : {0, 2, 4, 1, 3}) order.push_back(static_cast<int64_t>(batch) + i);
  return {Reshape(Transpose(Reshape(self, parts), order), out.dims)};
}

void CheckImage(const ShapeTensor& self, const char* op, const char* name, int64_t factor) {
  TORCH_CHECK(self.sizes.size() >= 3, op,
              " expects input to have at least 3 dimensions, but got input with ",
              self.sizes.size(), " dimension(s)");
  TORCH_CHECK(factor > 0, op, " expects a positive ", name, ", but got ", factor);
}

ResultSpec InFormat(const ShapeTensor& self, std::vector<int64_t> sizes) {
  const c10::MemoryFormat format = SuggestedFormat(self);
  TORCH_CHECK(format != c10::MemoryFormat::ChannelsLast3d,
              "Unsupported memory format. Supports only ChannelsLast, Contiguous");
  std::vector<int64_t> strides = StridesIn(format, sizes);
  return {.dtype = self.dtype, .sizes = std::move(sizes), .strides = std::move(strides)};
}

std::vector<ResultSpec> PixelShuffleShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const int64_t factor = s.argument("upscale_factor").toInt();
  CheckImage(self, "pixel_shuffle", "upscale_factor", factor);
  std::vector<int64_t> sizes = self.sizes;
  int64_t* const image = &sizes[sizes.size() - 3];
  TORCH_CHECK(image[0] % (factor * factor) == 0,
              "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square "
              "of upscale_factor, but input.size(-3)=",
              image[0], " is not divisible by ", factor * factor);
  image[0] /= factor * factor;
  image[1] *= factor;
  image[2] *= factor;
  return {InFormat(self, std::move(sizes))};
}

std::vector<ResultSpec> PixelUnshuffleShape(const ShapeCall& s) {
  const ShapeTensor& self = s.tensor("self");
  const int64_t factor = s.argument("downscale_factor").toInt();
  CheckImage(self, "pixel_unshuffle", "downscale_factor", factor);
  std::vector<int64_t> sizes = self.sizes;
  int64_t* const image = &sizes[sizes.size() - 3];
  TORCH_CHECK(image[1] % factor == 0,
              "pixel_unshuffle expects height to be divisible by downscale_factor, but "
              "input.size(-2)=",
              image[1], " is not divisible by ", factor);
  TORCH_CHECK(image[2] % factor == 0,
              "pixel_unshuffle expects width to be divisible by downscale_factor, but "
              "input.size(-1)=",
              image[2], " is not divisible by ", factor);
  image[0] *= factor * factor;
  image[1] /= factor;
  image[2] /= factor;
  return {InFormat(self, std::move(sizes))};
}

TPU_RULE({.op = "pixel_shuffle", .lower = &PixelShuffle, .shape = &PixelShuffleShape});
TPU_RULE({.op = "pixel_unshuffle", .lower = &PixelUnshuffle, .shape = &PixelUnshuffleShape});

}  // namespace
}  // namespace torch_tpu::lowering
