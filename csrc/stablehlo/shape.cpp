#include <algorithm>

#include "stablehlo/builder.h"
#include "stablehlo/internal.h"

namespace torch_tpu::stablehlo {
namespace {

// 0-d integer starts, all of one dtype, one a dimension.
void CheckStarts(std::string_view name, Value x, const Values& starts) {
  CheckDefined(name, starts);
  if (static_cast<int>(starts.size()) != x.rank()) {
    Fail(name, "one start index a dimension is needed", {x});
  }
  for (Value start : starts) {
    if (start.rank() != 0 || !IsInteger(start.dtype()) || start.dtype() != starts[0].dtype()) {
      Fail(name, "start indices are not 0-d integers of one dtype", starts);
    }
  }
}

}  // namespace

Value BroadcastInDim(Value x, const Dims& dims, const std::vector<int64_t>& broadcast_dimensions) {
  constexpr std::string_view kName = "stablehlo.broadcast_in_dim";
  CheckDefined(kName, {x});
  const Type result{x.dtype(), dims};
  if (static_cast<int>(broadcast_dimensions.size()) != x.rank()) {
    Fail(kName, "one target dimension for each of the operand's is needed", {x});
  }
  CheckDimensions(kName, broadcast_dimensions, result.rank(), x);
  for (int i = 0; i < x.rank(); ++i) {
    if (x.dim(i) != 1 && x.dim(i) != dims[broadcast_dimensions[i]]) {
      Fail(kName, "cannot broadcast to " + result.str(), {x});
    }
  }
  return EmitOne(kName, {x}, "broadcast_dimensions = " + Array(broadcast_dimensions), result);
}

Value BroadcastTo(Value x, const Dims& dims) {
  CheckDefined("stablehlo.broadcast_in_dim", {x});
  if (x.dims() == dims) return x;
  const int offset = static_cast<int>(dims.size()) - x.rank();
  if (offset < 0) {
    Fail("stablehlo.broadcast_in_dim", "cannot broadcast to " + Type{x.dtype(), dims}.str(), {x});
  }
  std::vector<int64_t> mapping(x.rank());
  for (int i = 0; i < x.rank(); ++i) mapping[i] = i + offset;
  return BroadcastInDim(x, dims, mapping);
}

Dims BroadcastShapes(const Dims& a, const Dims& b) {
  Dims result = a.size() >= b.size() ? a : b;
  const Dims& other = a.size() >= b.size() ? b : a;
  const size_t offset = result.size() - other.size();
  for (size_t i = 0; i < other.size(); ++i) {
    int64_t& dim = result[offset + i];
    if (dim == other[i] || other[i] == 1) continue;
    if (dim != 1) Fail("broadcast", "shapes " + List(a) + " and " + List(b) + " do not fit");
    dim = other[i];
  }
  return result;
}

Value Reshape(Value x, const Dims& dims) {
  CheckDefined("stablehlo.reshape", {x});
  if (x.dims() == dims) return x;
  const Type result{x.dtype(), dims};
  const bool negative = std::any_of(dims.begin(), dims.end(), [](int64_t d) { return d < 0; });
  if (negative || result.numel() != x.numel()) {
    Fail("stablehlo.reshape", "cannot reshape to " + result.str(), {x});
  }
  Value reshaped = EmitOne("stablehlo.reshape", {x}, "", result);
  x.builder().RecordReshape(reshaped, x);
  return reshaped;
}

Value Transpose(Value x, const std::vector<int64_t>& permutation) {
  constexpr std::string_view kName = "stablehlo.transpose";
  CheckDefined(kName, {x});
  if (static_cast<int>(permutation.size()) != x.rank()) {
    Fail(kName, "no permutation of the dimensions: " + List(permutation), {x});
  }
  CheckDimensions(kName, permutation, x.rank(), x);
  if (std::is_sorted(permutation.begin(), permutation.end())) return x;
  Type result{x.dtype(), Dims(permutation.size())};
  for (size_t i = 0; i < permutation.size(); ++i) result.dims[i] = x.dims()[permutation[i]];
  Value transposed = EmitOne(kName, {x}, "permutation = " + Array(permutation), result);
  x.builder().RecordTransposition(transposed, {x, permutation});
  return transposed;
}

Value Slice(Value x, const Dims& starts, const Dims& limits, const Dims& strides) {
  constexpr std::string_view kName = "stablehlo.slice";
  CheckDefined(kName, {x});
  const size_t rank = x.dims().size();
  if (starts.size() != rank || limits.size() != rank ||
      (!strides.empty() && strides.size() != rank)) {
    Fail(kName, "one start, limit and stride a dimension is needed", {x});
  }
  const Dims steps = strides.empty() ? Dims(rank, 1) : strides;
  Type result{x.dtype(), Dims(rank)};
  for (size_t i = 0; i < rank; ++i) {
    if (starts[i] < 0 || starts[i] > limits[i] || limits[i] > x.dims()[i] || steps[i] < 1) {
      Fail(kName,
           "slice [" + std::to_string(starts[i]) + ", " + std::to_string(limits[i]) + ") by " +
               std::to_string(steps[i]) + " of dimension " + std::to_string(i) + " is not valid",
           {x});
    }
    result.dims[i] = (limits[i] - starts[i] + steps[i] - 1) / steps[i];
  }
  if (result == x.type()) return x;
  return EmitOne(kName, {x},
                 "start_indices = " + Array(starts) + ", limit_indices = " + Array(limits) +
                     ", strides = " + Array(steps),
                 result);
}

Value SliceDim(Value x, int dim, int64_t start, int64_t limit, int64_t stride) {
  CheckDefined("stablehlo.slice", {x});
  CheckDimension("stablehlo.slice", dim, x.rank(), x);
  Dims starts(x.rank(), 0), limits = x.dims(), strides(x.rank(), 1);
  starts[dim] = start;
  limits[dim] = limit;
  strides[dim] = stride;
  return Slice(x, starts, limits, strides);
}

Value DynamicSlice(Value x, const Values& starts, const Dims& sizes) {
  constexpr std::string_view kName = "stablehlo.dynamic_slice";
  CheckDefined(kName, {x});
  CheckStarts(kName, x, starts);
  if (sizes.size() != x.dims().size()) Fail(kName, "one size a dimension is needed", {x});
  for (int i = 0; i < x.rank(); ++i) {
    if (sizes[i] < 0 || sizes[i] > x.dim(i)) {
      Fail(kName, "sizes " + List(sizes) + " exceed the operand", {x});
    }
  }
  if (x.rank() == 0) return x;
  Values operands = {x};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return EmitOne(kName, operands, "slice_sizes = " + Array(sizes), {x.dtype(), sizes});
}

Value DynamicUpdateSlice(Value x, Value update, const Values& starts) {
  constexpr std::string_view kName = "stablehlo.dynamic_update_slice";
  CheckDefined(kName, {x, update});
  CheckStarts(kName, x, starts);
  if (update.dtype() != x.dtype() || update.rank() != x.rank()) {
    Fail(kName, "dtype or rank of the update differs", {x, update});
  }
  for (int i = 0; i < x.rank(); ++i) {
    if (update.dim(i) > x.dim(i)) Fail(kName, "the update exceeds the operand", {x, update});
  }
  if (x.rank() == 0) return update;
  Values operands = {x, update};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return EmitOne(kName, operands, "", x.type());
}

Value UpdateSlice(Value x, Value update, const Dims& starts) {
  constexpr std::string_view kName = "stablehlo.dynamic_update_slice";
  CheckDefined(kName, {x, update});
  if (starts.size() != x.dims().size() || update.rank() != x.rank()) {
    Fail(kName, "one start a dimension is needed", {x, update});
  }
  for (int i = 0; i < x.rank(); ++i) {
    if (starts[i] < 0 || starts[i] + update.dim(i) > x.dim(i)) {
      Fail(kName, "an update at " + List(starts) + " exceeds the operand", {x, update});
    }
  }
  if (update.type() == x.type()) return update;
  Values indices;
  const bool narrow =
      std::all_of(starts.begin(), starts.end(), [](int64_t start) { return start <= INT32_MAX; });
  for (int64_t start : starts) {
    indices.push_back(ScalarInt(x.builder(), narrow ? DType::kS32 : DType::kS64, start));
  }
  return DynamicUpdateSlice(x, update, indices);
}

Value Pad(Value x, Value padding_value, const Dims& low, const Dims& high, const Dims& interior) {
  constexpr std::string_view kName = "stablehlo.pad";
  CheckDefined(kName, {x, padding_value});
  if (padding_value.type() != Type{x.dtype(), {}}) {
    Fail(kName, "the padding value is not 0-d of the operand's dtype", {x, padding_value});
  }
  const size_t rank = x.dims().size();
  const Dims between = interior.empty() ? Dims(rank, 0) : interior;
  if (low.size() != rank || high.size() != rank || between.size() != rank) {
    Fail(kName, "one amount a dimension is needed", {x, padding_value});
  }
  Type result{x.dtype(), Dims(rank)};
  for (size_t i = 0; i < rank; ++i) {
    const int64_t size = x.dims()[i];
    result.dims[i] = low[i] + size + high[i] + std::max<int64_t>(size - 1, 0) * between[i];
    if (between[i] < 0 || result.dims[i] < 0) {
      Fail(kName,
           "padding " + List(low) + ", " + List(high) + ", " + List(between) + " is not valid",
           {x, padding_value});
    }
  }
  return EmitOne(kName, {x, padding_value},
                 "edge_padding_low = " + Array(low) + ", edge_padding_high = " + Array(high) +
                     ", interior_padding = " + Array(between),
                 result);
}

Value Concatenate(const Values& xs, int dimension) {
  constexpr std::string_view kName = "stablehlo.concatenate";
  if (xs.empty()) Fail(kName, "no operands");
  CheckDefined(kName, xs);
  CheckDimension(kName, dimension, xs[0].rank(), xs[0]);
  Type result = xs[0].type();
  result.dims[dimension] = 0;
  for (Value x : xs) {
    Type expected = xs[0].type();
    if (x.rank() == expected.rank()) expected.dims[dimension] = x.dims()[dimension];
    if (x.type() != expected) Fail(kName, "operand types differ outside the dimension", xs);
    result.dims[dimension] += x.dims()[dimension];
  }
  if (xs.size() == 1) return xs[0];
  return EmitOne(kName, xs, "dimension = " + Int(dimension), result);
}

Value Reverse(Value x, const std::vector<int64_t>& dimensions) {
  constexpr std::string_view kName = "stablehlo.reverse";
  CheckDefined(kName, {x});
  CheckDimensions(kName, dimensions, x.rank(), x);
  if (dimensions.empty()) return x;
  return EmitOne(kName, {x}, "dimensions = " + Array(dimensions), x.type());
}

}  // namespace torch_tpu::stablehlo
