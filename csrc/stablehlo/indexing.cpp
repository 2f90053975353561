#include <algorithm>

#include "stablehlo/builder.h"
#include "stablehlo/internal.h"

namespace torch_tpu::stablehlo {
namespace {

bool Contains(const std::vector<int64_t>& values, int64_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

void AppendField(std::string& text, std::string_view name, const std::vector<int64_t>& values) {
  if (values.empty()) return;
  text.append(name).append(" = ").append(List(values)).append(", ");
}

// The indices' dimensions without the one that holds index vectors.
Dims BatchDims(Value indices, int64_t index_vector_dim) {
  Dims dims = indices.dims();
  if (index_vector_dim < indices.rank()) dims.erase(dims.begin() + index_vector_dim);
  return dims;
}

void CheckIndices(std::string_view name, Value operand, Value indices, int64_t index_vector_dim,
                  size_t map_size) {
  if (!IsInteger(indices.dtype())) Fail(name, "indices are not integers", {operand, indices});
  if (index_vector_dim < 0 || index_vector_dim > indices.rank()) {
    Fail(name, "index_vector_dim is out of range", {operand, indices});
  }
  const int64_t length = index_vector_dim < indices.rank() ? indices.dims()[index_vector_dim] : 1;
  if (length != static_cast<int64_t>(map_size)) {
    Fail(name, "index vectors are as long as the map of their dimensions", {operand, indices});
  }
}

}  // namespace

Value Gather(Value operand, Value start_indices, const GatherDims& dims,
             const std::vector<int64_t>& slice_sizes) {
  constexpr std::string_view kName = "stablehlo.gather";
  const Values operands = {operand, start_indices};
  CheckDefined(kName, operands);
  CheckIndices(kName, operand, start_indices, dims.index_vector_dim, dims.start_index_map.size());
  CheckDimensions(kName, dims.start_index_map, operand.rank(), operand);
  CheckDimensions(kName, dims.collapsed_slice_dims, operand.rank(), operand);
  CheckDimensions(kName, dims.operand_batching_dims, operand.rank(), operand);
  CheckDimensions(kName, dims.start_indices_batching_dims, start_indices.rank(), start_indices);
  if (static_cast<int>(slice_sizes.size()) != operand.rank()) {
    Fail(kName, "one slice size a dimension is needed", operands);
  }
  Dims window;
  for (int i = 0; i < operand.rank(); ++i) {
    if (slice_sizes[i] < 0 || slice_sizes[i] > operand.dim(i)) {
      Fail(kName, "slice sizes " + List(slice_sizes) + " exceed the operand", operands);
    }
    if (Contains(dims.collapsed_slice_dims, i) || Contains(dims.operand_batching_dims, i)) {
      if (slice_sizes[i] > 1) Fail(kName, "a dropped dimension has a slice size > 1", operands);
    } else {
      window.push_back(slice_sizes[i]);
    }
  }
  const Dims batch = BatchDims(start_indices, dims.index_vector_dim);
  if (window.size() != dims.offset_dims.size()) {
    Fail(kName, "offset_dims do not fit the slice", operands);
  }
  Type result{operand.dtype(), Dims(window.size() + batch.size())};
  CheckDimensions(kName, dims.offset_dims, result.rank(), operand);
  size_t next_window = 0, next_batch = 0;
  for (int i = 0; i < result.rank(); ++i) {
    result.dims[i] = Contains(dims.offset_dims, i) ? window[next_window++] : batch[next_batch++];
  }

  std::string attributes = "dimension_numbers = #stablehlo.gather<";
  AppendField(attributes, "offset_dims", dims.offset_dims);
  AppendField(attributes, "collapsed_slice_dims", dims.collapsed_slice_dims);
  AppendField(attributes, "operand_batching_dims", dims.operand_batching_dims);
  AppendField(attributes, "start_indices_batching_dims", dims.start_indices_batching_dims);
  AppendField(attributes, "start_index_map", dims.start_index_map);
  attributes.append("index_vector_dim = ").append(std::to_string(dims.index_vector_dim));
  attributes.append(">, slice_sizes = ").append(Array(slice_sizes));
  attributes.append(", indices_are_sorted = ").append(Bool(dims.indices_are_sorted));
  return EmitOne(kName, operands, attributes, result);
}

Value Scatter(Value operand, Value scatter_indices, Value updates, const ScatterDims& dims,
              const Region& body) {
  constexpr std::string_view kName = "stablehlo.scatter";
  const Values operands = {operand, scatter_indices, updates};
  CheckDefined(kName, operands);
  CheckIndices(kName, operand, scatter_indices, dims.index_vector_dim,
               dims.scatter_dims_to_operand_dims.size());
  CheckDimensions(kName, dims.scatter_dims_to_operand_dims, operand.rank(), operand);
  CheckDimensions(kName, dims.inserted_window_dims, operand.rank(), operand);
  CheckDimensions(kName, dims.input_batching_dims, operand.rank(), operand);
  CheckDimensions(kName, dims.scatter_indices_batching_dims, scatter_indices.rank(),
                  scatter_indices);
  CheckDimensions(kName, dims.update_window_dims, updates.rank(), updates);
  if (updates.dtype() != operand.dtype()) Fail(kName, "dtype of the updates differs", operands);
  const Dims batch = BatchDims(scatter_indices, dims.index_vector_dim);
  Dims window;
  for (int i = 0; i < operand.rank(); ++i) {
    if (!Contains(dims.inserted_window_dims, i) && !Contains(dims.input_batching_dims, i)) {
      window.push_back(operand.dim(i));
    }
  }
  if (window.size() != dims.update_window_dims.size() ||
      updates.dims().size() != window.size() + batch.size()) {
    Fail(kName, "rank of the updates does not fit", operands);
  }
  size_t next_window = 0, next_batch = 0;
  for (int i = 0; i < updates.rank(); ++i) {
    const bool fits = Contains(dims.update_window_dims, i) ? updates.dim(i) <= window[next_window++]
                                                           : updates.dim(i) == batch[next_batch++];
    if (!fits) Fail(kName, "shape of the updates does not fit", operands);
  }

  std::string attributes = "scatter_dimension_numbers = #stablehlo.scatter<";
  AppendField(attributes, "update_window_dims", dims.update_window_dims);
  AppendField(attributes, "inserted_window_dims", dims.inserted_window_dims);
  AppendField(attributes, "input_batching_dims", dims.input_batching_dims);
  AppendField(attributes, "scatter_indices_batching_dims", dims.scatter_indices_batching_dims);
  AppendField(attributes, "scatter_dims_to_operand_dims", dims.scatter_dims_to_operand_dims);
  attributes.append("index_vector_dim = ").append(std::to_string(dims.index_vector_dim));
  attributes.append(">, indices_are_sorted = ").append(Bool(dims.indices_are_sorted));
  attributes.append(", unique_indices = ").append(Bool(dims.unique_indices));
  const Type element{operand.dtype(), {}};
  return operand.builder()
      .Emit(kName, operands, attributes, {operand.type()},
            {{{element, element}, Checked(kName, body, {element})}})
      .front();
}

Value Take(Value operand, Value indices, int dim) {
  constexpr std::string_view kName = "stablehlo.gather";
  CheckDefined(kName, {operand, indices});
  CheckDimension(kName, dim, operand.rank(), operand);
  Dims result(operand.dims().begin(), operand.dims().begin() + dim);
  result.insert(result.end(), indices.dims().begin(), indices.dims().end());
  result.insert(result.end(), operand.dims().begin() + dim + 1, operand.dims().end());
  const Type type{operand.dtype(), result};
  // A slice of one element does not fit an empty dimension.
  if (type.numel() == 0 || operand.numel() == 0) return operand.builder().Constant(type, 0);

  GatherDims dims;
  std::vector<int64_t> slice_sizes = operand.dims();
  slice_sizes[dim] = 1;
  for (int i = 0; i < dim; ++i) dims.offset_dims.push_back(i);
  for (int i = dim + 1; i < operand.rank(); ++i) {
    dims.offset_dims.push_back(i - 1 + indices.rank());
  }
  dims.collapsed_slice_dims = {dim};
  dims.start_index_map = {dim};
  dims.index_vector_dim = indices.rank();
  return Gather(operand, indices, dims, slice_sizes);
}

}  // namespace torch_tpu::stablehlo
