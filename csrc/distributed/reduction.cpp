#include "distributed/reduction.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e4m3fnuz.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Float8_e5m2fnuz.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <type_traits>

namespace torch_tpu::distributed {
namespace {

using Op = c10d::ReduceOp::RedOpType;
using c10::ScalarType;

// Elements accumulated at a time: they stay in the first-level cache.
constexpr size_t kBlock = 1024;

template <class T>
struct Accumulator {
  using type = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
};
template <>
struct Accumulator<double> {
  using type = double;
};
template <class T>
struct Accumulator<c10::complex<T>> {
  using type = c10::complex<T>;
};
#define TORCH_TPU_FLOAT(T) \
  template <>              \
  struct Accumulator<T> {  \
    using type = float;    \
  };
TORCH_TPU_FLOAT(float)
TORCH_TPU_FLOAT(c10::Half)
TORCH_TPU_FLOAT(c10::BFloat16)
TORCH_TPU_FLOAT(c10::Float8_e4m3fn)
TORCH_TPU_FLOAT(c10::Float8_e4m3fnuz)
TORCH_TPU_FLOAT(c10::Float8_e5m2)
TORCH_TPU_FLOAT(c10::Float8_e5m2fnuz)
#undef TORCH_TPU_FLOAT

template <class T, class Combine, class Finish>
void Run(std::span<const void* const> sources, void* out, size_t count, Combine combine,
         Finish finish) {
  using A = typename Accumulator<T>::type;
  A block[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    const T* first = static_cast<const T*>(sources[0]) + begin;
    for (size_t i = 0; i < n; ++i) block[i] = static_cast<A>(first[i]);
    for (const void* source : sources.subspan(1)) {
      const T* next = static_cast<const T*>(source) + begin;
      for (size_t i = 0; i < n; ++i) block[i] = combine(block[i], static_cast<A>(next[i]));
    }
    T* result = static_cast<T*>(out) + begin;
    for (size_t i = 0; i < n; ++i) result[i] = static_cast<T>(finish(block[i]));
  }
}

template <class T>
void ReduceTyped(Op op, std::span<const void* const> sources, void* out, size_t count) {
  using A = typename Accumulator<T>::type;
  const auto as_is = [](A x) { return x; };
  // Signed sums and products wrap, as unsigned ones do.
  const auto add = [](A x, A y) -> A {
    if constexpr (std::is_integral_v<A>) {
      return static_cast<A>(static_cast<uint64_t>(x) + static_cast<uint64_t>(y));
    } else {
      return x + y;
    }
  };
  const auto multiply = [](A x, A y) -> A {
    if constexpr (std::is_integral_v<A>) {
      return static_cast<A>(static_cast<uint64_t>(x) * static_cast<uint64_t>(y));
    } else {
      return x * y;
    }
  };
  const auto ranks = static_cast<int64_t>(sources.size());
  switch (op) {
    case Op::SUM:
    case Op::PREMUL_SUM:
      return Run<T>(sources, out, count, add, as_is);
    case Op::AVG:
      return Run<T>(sources, out, count, add, [ranks](A x) -> A {
        if constexpr (std::is_integral_v<A>) {
          return x / static_cast<A>(ranks);
        } else if constexpr (std::is_floating_point_v<A>) {
          return x / static_cast<A>(ranks);
        } else {
          return x / static_cast<typename A::value_type>(ranks);
        }
      });
    case Op::PRODUCT:
      return Run<T>(sources, out, count, multiply, as_is);
    default:
      break;
  }
  if constexpr (!c10::is_complex<A>::value) {
    // NaN wins, as in torch.minimum and torch.maximum.
    if (op == Op::MIN) {
      return Run<T>(
          sources, out, count, [](A x, A y) { return x < y || x != x ? x : y; }, as_is);
    }
    if (op == Op::MAX) {
      return Run<T>(
          sources, out, count, [](A x, A y) { return x > y || x != x ? x : y; }, as_is);
    }
  }
  if constexpr (std::is_integral_v<A>) {
    if (op == Op::BAND) {
      return Run<T>(
          sources, out, count, [](A x, A y) { return x & y; }, as_is);
    }
    if (op == Op::BOR) {
      return Run<T>(
          sources, out, count, [](A x, A y) { return x | y; }, as_is);
    }
    if (op == Op::BXOR) {
      return Run<T>(
          sources, out, count, [](A x, A y) { return x ^ y; }, as_is);
    }
  }
  TORCH_CHECK(false, "tpu_dist: ", NameOf(op), " is not defined for these elements");
}

// Of truth values a sum or a maximum is "any", a product or a minimum "all".
Op OfBool(Op op) {
  switch (op) {
    case Op::SUM:
    case Op::MAX:
    case Op::PREMUL_SUM:
      return Op::BOR;
    case Op::PRODUCT:
    case Op::MIN:
      return Op::BAND;
    default:
      return op;
  }
}

}  // namespace

const char* NameOf(Op op) {
  static constexpr const char* kNames[] = {"SUM",  "AVG", "PRODUCT", "MIN",        "MAX",
                                           "BAND", "BOR", "BXOR",    "PREMUL_SUM", "UNUSED"};
  return kNames[std::min<size_t>(static_cast<size_t>(op), 9)];
}

void CheckReducible(const c10d::ReduceOp& reduce, ScalarType dtype) {
  const Op op = reduce;
  TORCH_CHECK_VALUE(op < Op::UNUSED, "tpu_dist: unknown reduce operation");
  const bool integral = c10::isIntegralType(dtype, /*includeBool=*/true);
  const bool floating = c10::isFloatingType(dtype);
  const bool complex = c10::isComplexType(dtype);
  TORCH_CHECK_TYPE(integral || floating || complex, "tpu_dist: tensors of dtype ",
                   c10::toString(dtype), " cannot be reduced");
  if (op == Op::BAND || op == Op::BOR || op == Op::BXOR) {
    TORCH_CHECK_VALUE(integral, "tpu_dist: ReduceOp.", NameOf(op), " needs integers or bool, got ",
                      c10::toString(dtype));
  }
  if (op == Op::MIN || op == Op::MAX) {
    TORCH_CHECK_VALUE(!complex, "tpu_dist: complex numbers have no ReduceOp.", NameOf(op));
  }
  if (op == Op::AVG) {
    TORCH_CHECK_VALUE(dtype != ScalarType::Bool,
                      "tpu_dist: ReduceOp.AVG is not defined for bool; use SUM or MAX");
  }
}

void Reduce(Op op, ScalarType dtype, std::span<const void* const> sources, void* out,
            size_t count) {
  switch (dtype) {
    case ScalarType::Bool:  // a byte of 0 or 1
      return ReduceTyped<uint8_t>(OfBool(op), sources, out, count);
#define TORCH_TPU_CASE(name, T) \
  case ScalarType::name:        \
    return ReduceTyped<T>(op, sources, out, count);
      TORCH_TPU_CASE(Byte, uint8_t)
      TORCH_TPU_CASE(UInt16, uint16_t)
      TORCH_TPU_CASE(UInt32, uint32_t)
      TORCH_TPU_CASE(UInt64, uint64_t)
      TORCH_TPU_CASE(Char, int8_t)
      TORCH_TPU_CASE(Short, int16_t)
      TORCH_TPU_CASE(Int, int32_t)
      TORCH_TPU_CASE(Long, int64_t)
      TORCH_TPU_CASE(Half, c10::Half)
      TORCH_TPU_CASE(BFloat16, c10::BFloat16)
      TORCH_TPU_CASE(Float, float)
      TORCH_TPU_CASE(Double, double)
      TORCH_TPU_CASE(ComplexFloat, c10::complex<float>)
      TORCH_TPU_CASE(ComplexDouble, c10::complex<double>)
      TORCH_TPU_CASE(Float8_e4m3fn, c10::Float8_e4m3fn)
      TORCH_TPU_CASE(Float8_e4m3fnuz, c10::Float8_e4m3fnuz)
      TORCH_TPU_CASE(Float8_e5m2, c10::Float8_e5m2)
      TORCH_TPU_CASE(Float8_e5m2fnuz, c10::Float8_e5m2fnuz)
#undef TORCH_TPU_CASE
    default:
      TORCH_CHECK_TYPE(false, "tpu_dist: tensors of dtype ", c10::toString(dtype),
                       " cannot be reduced");
  }
}

}  // namespace torch_tpu::distributed
