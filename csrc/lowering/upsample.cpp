#include <algorithm>
#include <cmath>
#include <optional>

#include "lowering/rule.h"
#include "lowering/taps.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT: rules read like the mathematics

enum class Filter { kNearest, kNearestExact, kLinear, kCubic, kLinearAntialias, kCubicAntialias };

// One dimension of a resize. The arithmetic that chooses inputs and weights is done in the type CPU
// does it in (T): a rounding difference there reads another pixel.
struct Axis {
  int64_t in, out;
  bool align_corners;
  std::optional<double> scale;
};

template <typename T>
T InputStep(const Axis& a) {
  if (a.align_corners) {
    return a.out > 1 ? static_cast<T>(a.in - 1) / static_cast<T>(a.out - 1) : T(0);
  }
  if (a.scale && *a.scale > 0) return static_cast<T>(1.0 / *a.scale);
  return static_cast<T>(a.in) / static_cast<T>(a.out);
}

template <typename T>
T SourcePosition(const Axis& a, T step, int64_t i) {
  return a.align_corners ? step * static_cast<T>(i) : step * (static_cast<T>(i) + T(0.5)) - T(0.5);
}

std::vector<Tap> NearestTaps(const Axis& a, int64_t i) {
  int64_t source = i;
  if (a.out == 2 * a.in) {
    source = i >> 1;
  } else if (a.out != a.in) {
    source = static_cast<int64_t>(std::floor(static_cast<float>(i) * InputStep<float>(a)));
  }
  return {{std::min(source, a.in - 1)}};
}

std::vector<Tap> NearestExactTaps(const Axis& a, int64_t i) {
  const float position = (static_cast<float>(i) + 0.5f) * InputStep<float>(a);
  return {{std::min(static_cast<int64_t>(std::floor(position)), a.in - 1)}};
}

template <typename T>
std::vector<Tap> LinearTaps(const Axis& a, int64_t i) {
  if (a.in == a.out) return {{i}};
  const T position = std::max(SourcePosition<T>(a, InputStep<T>(a), i), T(0));
  const int64_t left = std::min(static_cast<int64_t>(position), a.in - 1);
  const int64_t right = std::min(left + 1, a.in - 1);
  const T lambda = std::clamp(position - static_cast<T>(left), T(0), T(1));
  return {{left, T(1) - lambda}, {right, lambda}};
}

// Keys' cubic convolution with parameter b, near (|x| <= 1) and far (1 < |x| < 2).
template <typename T>
T CubicNear(T x, T b) {
  return ((b + 2) * x - (b + 3)) * x * x + 1;
}
template <typename T>
T CubicFar(T x, T b) {
  return ((b * x - 5 * b) * x + 8 * b) * x - 4 * b;
}

template <typename T>
std::vector<Tap> CubicTaps(const Axis& a, int64_t i) {
  constexpr T kB = T(-0.75);
  const T position = SourcePosition<T>(a, InputStep<T>(a), i);
  const int64_t base = std::min(static_cast<int64_t>(std::floor(position)), a.in - 1);
  const T t = std::clamp(position - static_cast<T>(base), T(0), T(1));
  const T weights[] = {CubicFar(t + 1, kB), CubicNear(t, kB), CubicNear(1 - t, kB),
                       CubicFar(2 - t, kB)};
  std::vector<Tap> taps;
  for (int j = 0; j < 4; ++j) {
    taps.push_back({std::clamp<int64_t>(base - 1 + j, 0, a.in - 1), weights[j]});
  }
  return taps;
}

// When shrinking, the filter is stretched to cover every input between two outputs.
template <typename T>
std::vector<Tap> AntialiasTaps(const Axis& a, int64_t i, bool cubic) {
  const T step = InputStep<T>(a);
  const T reach = cubic ? T(2) : T(1);
  const T support = step >= 1 ? reach * step : reach;
  const T shrink = step >= 1 ? T(1) / step : T(1);
  const T center = step * (static_cast<T>(i) + T(0.5));
  const int64_t first = std::max<int64_t>(static_cast<int64_t>(center - support + T(0.5)), 0);
  const int64_t last = std::min(static_cast<int64_t>(center + support + T(0.5)), a.in);
  const auto filter = [cubic](T x) {
    x = std::abs(x);
    if (!cubic) return x < 1 ? 1 - x : T(0);
    if (x < 1) return CubicNear(x, T(-0.5));
    return x < 2 ? CubicFar(x, T(-0.5)) : T(0);
  };
  std::vector<Tap> taps;
  T total = 0;
  for (int64_t j = first; j < last; ++j) {
    const T weight = filter((static_cast<T>(j) - center + T(0.5)) * shrink);
    taps.push_back({j, weight});
    total += weight;
  }
  if (total != 0) {
    for (Tap& tap : taps) tap.weight = static_cast<T>(tap.weight) / total;
  }
  return taps;
}

template <typename T>
Taps MapOf(const Axis& a, Filter filter) {
  Taps map{.input_size = a.in};
  for (int64_t i = 0; i < a.out; ++i) {
    switch (filter) {
      case Filter::kNearest:
        map.taps.push_back(NearestTaps(a, i));
        break;
      case Filter::kNearestExact:
        map.taps.push_back(NearestExactTaps(a, i));
        break;
      case Filter::kLinear:
        map.taps.push_back(LinearTaps<T>(a, i));
        break;
      case Filter::kCubic:
        map.taps.push_back(CubicTaps<T>(a, i));
        break;
      case Filter::kLinearAntialias:
        map.taps.push_back(AntialiasTaps<T>(a, i, false));
        break;
      case Filter::kCubicAntialias:
        map.taps.push_back(AntialiasTaps<T>(a, i, true));
        break;
    }
  }
  return map;
}

const std::vector<std::string> kScales1d = {"scales"};
const std::vector<std::string> kScales2d = {"scales_h", "scales_w"};
const std::vector<std::string> kScales3d = {"scales_d", "scales_h", "scales_w"};

const std::vector<std::string>& ScaleNames(int64_t spatial_rank) {
  return spatial_rank == 1 ? kScales1d : spatial_rank == 2 ? kScales2d : kScales3d;
}

// Spatial dimension by spatial dimension, from sizes `in` to sizes `out` (dimensions 2 and on).
Value Resize(Call& c, Value x, Filter filter, const Dims& in, const Dims& out, bool backward) {
  const bool nearest = filter == Filter::kNearest || filter == Filter::kNearestExact;
  const auto& scales = ScaleNames(static_cast<int64_t>(in.size()) - 2);
  for (int d = 2; d < static_cast<int>(in.size()); ++d) {
    const Axis axis{in[d], out[d], !nearest && c.boolean("align_corners"),
                    c.optional_number(scales[d - 2])};
    const Taps map =
        x.dtype() == DType::kF64 ? MapOf<double>(axis, filter) : MapOf<float>(axis, filter);
    x = Apply(c, x, d, backward ? Transposed(map) : map);
  }
  return x;
}

// Weights as CPU has them for images of bytes: 16-bit fixed point.
Taps FixedPoint(Taps map) {
  double most = 0;
  for (const auto& taps : map.taps) {
    for (const Tap& tap : taps) most = std::max(most, tap.weight);
  }
  int bits = 0;
  while (bits < 22 && std::floor(0.5 + std::ldexp(most, bits + 1)) < 0x1p15) ++bits;
  for (auto& taps : map.taps) {
    for (Tap& tap : taps) tap.weight = std::ldexp(std::round(std::ldexp(tap.weight, bits)), -bits);
  }
  return map;
}

// Images of bytes are rounded to bytes after each dimension, from the last one on.
Value ResizeBytes(Call& c, Value x, Filter filter, const Dims& out) {
  const auto& scales = ScaleNames(static_cast<int64_t>(out.size()) - 2);
  for (int d = static_cast<int>(out.size()) - 1; d >= 2; --d) {
    if (x.dim(d) == out[d]) continue;
    const Axis axis{x.dim(d), out[d], c.boolean("align_corners"), c.optional_number(scales[d - 2])};
    x = Apply(c, x, d, FixedPoint(MapOf<double>(axis, filter)));
    x = Floor(Add(x, ConstantLike(x, 0.5)));
    x = Clamp(Scalar(c.builder(), x.dtype(), 0), x, Scalar(c.builder(), x.dtype(), 255));
  }
  return x;
}

template <Filter filter>
Values Upsample(Call& c) {
  Value x = c.tensor("self");
  const Type& out = c.result();
  // Copies need no arithmetic.
  const bool copies = filter == Filter::kNearest || filter == Filter::kNearestExact;
  if (out.dtype == DType::kU8 && !copies) {
    return {Convert(ResizeBytes(c, Convert(x, DType::kF32), filter, out.dims), out.dtype)};
  }
  const DType compute = IsFloat(out.dtype) ? ComputeType(out.dtype) : DType::kF32;
  Value y = Resize(c, Convert(x, compute), filter, x.dims(), out.dims, /*backward=*/false);
  return {Convert(y, out.dtype)};
}

template <Filter filter>
Values UpsampleBackward(Call& c) {
  Value grad = c.tensor("grad_output");
  const Type& out = c.result();
  Value x = Convert(grad, ComputeType(out.dtype));
  return {Convert(Resize(c, x, filter, out.dims, grad.dims(), /*backward=*/true), out.dtype)};
}

#define TPU_UPSAMPLE(name, filter, scales)                                  \
  TPU_RULE({.op = name, .lower = &Upsample<filter>, .structural = scales}); \
  TPU_RULE({.op = name "_backward", .lower = &UpsampleBackward<filter>, .structural = scales})

TPU_UPSAMPLE("upsample_nearest1d", Filter::kNearest, kScales1d);
TPU_UPSAMPLE("upsample_nearest2d", Filter::kNearest, kScales2d);
TPU_UPSAMPLE("upsample_nearest3d", Filter::kNearest, kScales3d);
TPU_UPSAMPLE("_upsample_nearest_exact1d", Filter::kNearestExact, kScales1d);
TPU_UPSAMPLE("_upsample_nearest_exact2d", Filter::kNearestExact, kScales2d);
TPU_UPSAMPLE("_upsample_nearest_exact3d", Filter::kNearestExact, kScales3d);
TPU_UPSAMPLE("upsample_linear1d", Filter::kLinear, kScales1d);
TPU_UPSAMPLE("upsample_bilinear2d", Filter::kLinear, kScales2d);
TPU_UPSAMPLE("upsample_trilinear3d", Filter::kLinear, kScales3d);
TPU_UPSAMPLE("upsample_bicubic2d", Filter::kCubic, kScales2d);
TPU_UPSAMPLE("_upsample_bilinear2d_aa", Filter::kLinearAntialias, kScales2d);
TPU_UPSAMPLE("_upsample_bicubic2d_aa", Filter::kCubicAntialias, kScales2d);

#undef TPU_UPSAMPLE

}  // namespace
}  // namespace torch_tpu::lowering
