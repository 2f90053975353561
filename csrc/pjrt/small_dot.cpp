#include "pjrt/small_dot.h"

#include <cstring>
#include <memory>

// The same loops are compiled for processors with 256-bit fused multiply-add and for any other;
// lanes are the compiler's portable vectors.
#if defined(__x86_64__)
#define TORCH_TPU_WIDE __attribute__((target("avx2,fma")))
#endif
#define TORCH_TPU_INLINE inline __attribute__((always_inline))

namespace torch_tpu::pjrt {
namespace {

constexpr int64_t kLanes = 8;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

// Memory as lanes. References, for how vectors are passed by value depends on the processor.
TORCH_TPU_INLINE const Lanes& At(const float* p) { return *reinterpret_cast<const Lanes*>(p); }
TORCH_TPU_INLINE Lanes& At(float* p) { return *reinterpret_cast<Lanes*>(p); }

TORCH_TPU_INLINE float Sum(const Lanes& x) {
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

// lhs element (i, k) lies at i * row + k * column.
struct Strided {
  const float* data;
  int64_t row, column;
};

// --- rows of rhs are contiguous: sums stay in registers while k runs.

// `rows` by `vectors * kLanes` elements of out.
template <int rows, int vectors>
TORCH_TPU_INLINE void BroadcastTile(const Strided& lhs, const float* rhs, float* out, int64_t k,
                                    int64_t n) {
  Lanes sums[rows][vectors] = {};
  for (int64_t t = 0; t < k; ++t) {
    Lanes right[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) right[v] = At(rhs + t * n + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      const float left = lhs.data[i * lhs.row + t * lhs.column];
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sums[i][v] += left * right[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) At(out + i * n + v * kLanes) = sums[i][v];
  }
}

// `rows` by `width` < kLanes elements of out.
template <int rows>
TORCH_TPU_INLINE void NarrowTile(const Strided& lhs, const float* rhs, float* out, int64_t k,
                                 int64_t n, int64_t width) {
  for (int i = 0; i < rows; ++i) {
    float sums[kLanes] = {};
    for (int64_t t = 0; t < k; ++t) {
      const float left = lhs.data[i * lhs.row + t * lhs.column];
      for (int64_t j = 0; j < width; ++j) sums[j] += left * rhs[t * n + j];
    }
    std::memcpy(out + i * n, sums, width * sizeof(float));
  }
}

template <int rows, int vectors>
TORCH_TPU_INLINE void BroadcastRows(const Strided& lhs, const float* rhs, float* out, int64_t k,
                                    int64_t n) {
  int64_t j = 0;
  for (; j + vectors * kLanes <= n; j += vectors * kLanes) {
    BroadcastTile<rows, vectors>(lhs, rhs + j, out + j, k, n);
  }
  for (; j + kLanes <= n; j += kLanes) BroadcastTile<rows, 1>(lhs, rhs + j, out + j, k, n);
  if (j == n) return;
  if (n >= kLanes) {
    // The last vector again computes columns that are done: the same sums.
    BroadcastTile<rows, 1>(lhs, rhs + n - kLanes, out + n - kLanes, k, n);
  } else {
    NarrowTile<rows>(lhs, rhs, out, k, n, n);
  }
}

struct Operands {
  int64_t m, n, k;
  Strided lhs;  // of rows contiguous along k for the inner product
  const float* rhs;
  float* out;
};

TORCH_TPU_INLINE void BroadcastProduct(const Operands& o) {
  int64_t i = 0;
  const auto rows = [&] { return Strided{o.lhs.data + i * o.lhs.row, o.lhs.row, o.lhs.column}; };
  for (; i + 4 <= o.m; i += 4) BroadcastRows<4, 2>(rows(), o.rhs, o.out + i * o.n, o.k, o.n);
  for (; i < o.m; ++i) BroadcastRows<1, 8>(rows(), o.rhs, o.out + i * o.n, o.k, o.n);
}

// --- both contiguous along k: sums run over lanes of k, which are added up at the end.

template <int rows, int columns>
TORCH_TPU_INLINE void InnerTile(const float* lhs, const float* rhs, float* out, int64_t k,
                                int64_t n) {
  Lanes sums[rows][columns] = {};
  int64_t t = 0;
  for (; t + kLanes <= k; t += kLanes) {
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      const Lanes left = At(lhs + i * k + t);
#pragma GCC unroll 8
      for (int j = 0; j < columns; ++j) sums[i][j] += left * At(rhs + j * k + t);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < columns; ++j) {
      float rest = 0;
      for (int64_t u = t; u < k; ++u) rest += lhs[i * k + u] * rhs[j * k + u];
      out[i * n + j] = Sum(sums[i][j]) + rest;
    }
  }
}

template <int rows, int columns>
TORCH_TPU_INLINE void InnerRows(const float* lhs, const float* rhs, float* out, int64_t k,
                                int64_t n) {
  int64_t j = 0;
  for (; j + columns <= n; j += columns) InnerTile<rows, columns>(lhs, rhs + j * k, out + j, k, n);
  for (; j < n; ++j) InnerTile<rows, 1>(lhs, rhs + j * k, out + j, k, n);
}

TORCH_TPU_INLINE void InnerProduct(const Operands& o) {
  int64_t i = 0;
  for (; i + 2 <= o.m; i += 2) {
    InnerRows<2, 4>(o.lhs.data + i * o.k, o.rhs, o.out + i * o.n, o.k, o.n);
  }
  if (i < o.m) InnerRows<1, 8>(o.lhs.data + i * o.k, o.rhs, o.out + i * o.n, o.k, o.n);
}

// --- the two products for the processor at hand

struct Products {
  void (*broadcast)(const Operands&);
  void (*inner)(const Operands&);
};

void BroadcastAny(const Operands& o) { BroadcastProduct(o); }
void InnerAny(const Operands& o) { InnerProduct(o); }
#ifdef TORCH_TPU_WIDE
TORCH_TPU_WIDE void BroadcastWide(const Operands& o) { BroadcastProduct(o); }
TORCH_TPU_WIDE void InnerWide(const Operands& o) { InnerProduct(o); }
#endif

Products ProductsHere() {
#ifdef TORCH_TPU_WIDE
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {&BroadcastWide, &InnerWide};
  }
#endif
  return {&BroadcastAny, &InnerAny};
}

// rhs [n, k] as [k, n].
void Pack(int64_t n, int64_t k, const float* rhs, float* packed) {
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (int64_t t = 0; t < k; ++t) {
      for (int64_t l = 0; l < kLanes; ++l) packed[t * n + j + l] = rhs[(j + l) * k + t];
    }
  }
  for (; j < n; ++j) {
    for (int64_t t = 0; t < k; ++t) packed[t * n + j] = rhs[j * k + t];
  }
}

}  // namespace

void MultiplySmall(const SmallDot& dot, const float* lhs, const float* rhs, float* out) {
  static const Products products = ProductsHere();
  auto [m, n, k, transposed_lhs, transposed_rhs] = dot;
  if (n == 1 && m > 1) {
    // A column is a row in memory: multiply from the other side.
    return MultiplySmall({.m = 1, .n = m, .k = k, .transposed_rhs = !transposed_lhs}, rhs, lhs,
                         out);
  }
  // Vectors lie the same way in memory whether transposed or not.
  if (m == 1) transposed_lhs = false;
  if (n == 1) transposed_rhs = true;
  const Strided strided{lhs, transposed_lhs ? 1 : k, transposed_lhs ? m : 1};
  if (!transposed_rhs) return products.broadcast({m, n, k, strided, rhs, out});
  // Measured: what packing costs comes back when rows are many or the inner products short.
  if (!transposed_lhs && (m == 1 || (m < 16 && k >= 32))) {
    return products.inner({m, n, k, strided, rhs, out});
  }
  const auto packed = std::make_unique_for_overwrite<float[]>(k * n);
  Pack(n, k, rhs, packed.get());
  products.broadcast({m, n, k, strided, packed.get(), out});
}

}  // namespace torch_tpu::pjrt
