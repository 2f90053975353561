#include "lowering/host_dot.h"

#include <algorithm>
#include <vector>

#include "lowering/dot.h"
#include "pjrt/host_dot.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT: rules read like the mathematics

// Above this many operations XLA:CPU's thread pool is faster than one thread without its latency.
constexpr int64_t kMostOperations = 1'000'000;

thread_local bool host_calls_allowed = true;

using Order = std::vector<int64_t>;

int64_t Size(Value x, const Order& dims) {
  int64_t size = 1;
  for (int64_t d : dims) size *= x.dims()[d];
  return size;
}

Order Joined(Order a, const Order& b, const Order& c) {
  a.insert(a.end(), b.begin(), b.end());
  a.insert(a.end(), c.begin(), c.end());
  return a;
}

// Whether the dimensions of `x` larger than one come in this order.
bool InOrder(Value x, Order order) {
  std::erase_if(order, [&](int64_t d) { return x.dims()[d] == 1; });
  return std::is_sorted(order.begin(), order.end());
}

// An operand in three dimensions: batch and two more, which are the wanted ones or swapped.
struct Matrices {
  Value value;
  bool swapped;
};

// `x` with dimensions (batch, first, second), without moving data if x or what x is a transposition
// of lies so in memory, or with the last two swapped.
Matrices AsMatrices(Value x, const Order& batch, const Order& first, const Order& second) {
  const int64_t b = Size(x, batch), rows = Size(x, first), columns = Size(x, second);
  const Order straight = Joined(batch, first, second), swapped = Joined(batch, second, first);
  if (const auto* transposition = x.builder().TranspositionOf(x)) {
    const auto of_source = [&](Order order) {
      for (int64_t& d : order) d = transposition->permutation[d];
      return order;
    };
    const Value source = transposition->source;
    if (InOrder(source, of_source(straight))) return {Reshape(source, {b, rows, columns}), false};
    if (InOrder(source, of_source(swapped))) return {Reshape(source, {b, columns, rows}), true};
  }
  if (InOrder(x, straight)) return {Reshape(x, {b, rows, columns}), false};
  if (InOrder(x, swapped)) return {Reshape(x, {b, columns, rows}), true};
  return {Reshape(Transpose(x, straight), {b, rows, columns}), false};
}

}  // namespace

NoHostCalls::NoHostCalls() : before_(host_calls_allowed) { host_calls_allowed = false; }
NoHostCalls::~NoHostCalls() { host_calls_allowed = before_; }

std::optional<Value> HostDot(const Call& c, Value a, Value b, const DotDims& dims) {
  if (!c.spec().host_dot || !host_calls_allowed || c.on_tpu()) return std::nullopt;
  if (a.dtype() != DType::kF32 || b.dtype() != DType::kF32) return std::nullopt;
  const Order a_free = FreeDims(a, dims.lhs_batch, dims.lhs_contract);
  const Order b_free = FreeDims(b, dims.rhs_batch, dims.rhs_contract);
  const int64_t batch = Size(a, dims.lhs_batch), m = Size(a, a_free), n = Size(b, b_free);
  const int64_t operations = 2 * a.numel() * n;
  if (operations == 0) return std::nullopt;
  const bool small = operations <= kMostOperations;
  const bool vector = batch == 1 && (m == 1) != (n == 1);
  if (!small && !vector) return std::nullopt;
  const Matrices lhs = AsMatrices(a, dims.lhs_batch, a_free, dims.lhs_contract);
  const Matrices rhs = AsMatrices(b, dims.rhs_batch, dims.rhs_contract, b_free);
  // Where a vector's sums run down a matrix's columns XLA:CPU takes five (768x768) to twenty
  // (2048x2048) times as long; wide matrices at worst as long.
  const bool down_columns = m == 1 ? !rhs.swapped : lhs.swapped;
  if (!small && !down_columns) return std::nullopt;
  Dims result;
  for (int64_t d : dims.lhs_batch) result.push_back(a.dims()[d]);
  for (int64_t d : a_free) result.push_back(a.dims()[d]);
  for (int64_t d : b_free) result.push_back(b.dims()[d]);
  // This version of the interface passes a call frame; everything is row-major.
  static constexpr std::string_view kAttributes =
      "api_version = 4 : i32, backend_config = {}, "
      "operand_layouts = [dense<[2, 1, 0]> : tensor<3xindex>, dense<[2, 1, 0]> : tensor<3xindex>], "
      "result_layouts = [dense<[2, 1, 0]> : tensor<3xindex>]";
  const Values products =
      CustomCall(pjrt::HostDotName(lhs.swapped, rhs.swapped), {lhs.value, rhs.value}, kAttributes,
                 {{DType::kF32, {batch, m, n}}});
  return Reshape(products[0], result);
}

}  // namespace torch_tpu::lowering
