#include <cmath>
#include <numeric>

#include "lowering/rule.h"

// Discrete Fourier transforms, one dimension after the other.
namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT: rules read like the mathematics

// Along one dimension; `length` is that of the signal. Inverse kinds divide by it.
Value Along(Value x, int64_t dim, FftKind kind, int64_t length) {
  std::vector<int64_t> swap(x.rank());
  std::iota(swap.begin(), swap.end(), 0);
  std::swap(swap[dim], swap.back());
  return Transpose(Fft(Transpose(x, swap), kind, {length}), swap);
}

Value AlongAll(Value x, const std::vector<int64_t>& dims, FftKind kind) {
  for (int64_t dim : dims) x = Along(x, dim, kind, x.dims()[dim]);
  return x;
}

std::vector<int64_t> DimsOf(const Call& c) {
  return WrapDims(c.integers("dim"), c.tensor("self").rank(), /*empty_means_all=*/false);
}

// `x` times what the normalization asks for, where `count` values were transformed and `done` is
// the factor they have by now.
Value Normalized(const Call& c, Value x, double count, double done) {
  constexpr int64_t kByRoot = 1, kByCount = 2;
  const int64_t mode = c.integer("normalization");
  const double wanted = mode == kByRoot ? 1 / std::sqrt(count) : mode == kByCount ? 1 / count : 1;
  return wanted == done ? x : Multiply(x, ConstantLike(x, wanted / done));
}

double Count(const Dims& sizes, const std::vector<int64_t>& dims) {
  double count = 1;
  for (int64_t dim : dims) count *= static_cast<double>(sizes[dim]);
  return count;
}

Values ComplexToComplex(Call& c) {
  const std::vector<int64_t> dims = DimsOf(c);
  Value x = c.tensor("self");
  if (dims.empty()) return {x};
  const double count = Count(x.dims(), dims);
  const bool forward = c.boolean("forward");
  Value y = AlongAll(x, dims, forward ? FftKind::kFft : FftKind::kIfft);
  return {Normalized(c, y, count, forward ? 1 : 1 / count)};
}

Values RealToComplex(Call& c) {
  std::vector<int64_t> dims = DimsOf(c);
  Value x = c.tensor("self");
  const double count = Count(x.dims(), dims);
  Value y;
  if (c.boolean("onesided")) {
    const int64_t last = dims.back();
    dims.pop_back();
    y = AlongAll(Along(x, last, FftKind::kRfft, x.dims()[last]), dims, FftKind::kFft);
  } else {
    y = AlongAll(Convert(x, c.result().dtype), dims, FftKind::kFft);
  }
  return {Normalized(c, y, count, 1)};
}

Values ComplexToReal(Call& c) {
  std::vector<int64_t> dims = DimsOf(c);
  Value x = c.tensor("self");
  const int64_t last = dims.back(), length = c.integer("last_dim_size");
  const double count = Count(c.result().dims, dims);
  dims.pop_back();
  x = AlongAll(x, dims, FftKind::kIfft);
  // Half of the spectrum says it all.
  x = SliceDim(x, static_cast<int>(last), 0, length / 2 + 1);
  return {Normalized(c, Along(x, last, FftKind::kIrfft, length), count, 1 / count)};
}

TPU_RULE({.op = "_fft_c2c", .lower = &ComplexToComplex});
TPU_RULE({.op = "_fft_r2c", .lower = &RealToComplex});
TPU_RULE({.op = "_fft_c2r", .lower = &ComplexToReal});

}  // namespace
}  // namespace torch_tpu::lowering
