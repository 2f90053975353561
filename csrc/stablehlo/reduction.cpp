#include <algorithm>

#include "stablehlo/builder.h"
#include "stablehlo/internal.h"

namespace torch_tpu::stablehlo {
namespace {

Value Combine(Reduction kind, Value a, Value b) {
  switch (kind) {
    case Reduction::kSum:
      return Add(a, b);
    case Reduction::kProduct:
      return Multiply(a, b);
    case Reduction::kMax:
      return Maximum(a, b);
    case Reduction::kMin:
      return Minimum(a, b);
    case Reduction::kAnd:
      return And(a, b);
    case Reduction::kOr:
      return Or(a, b);
  }
  Fail("stablehlo.reduce", "unknown kind of reduction");
}

Value Identity(Builder& builder, Reduction kind, DType dtype) {
  switch (kind) {
    case Reduction::kSum:
    case Reduction::kOr:
      return Scalar(builder, dtype, 0);
    case Reduction::kProduct:
      return Scalar(builder, dtype, 1);
    case Reduction::kMax:
      return MinValue(builder, dtype);
    case Reduction::kMin:
      return MaxValue(builder, dtype);
    case Reduction::kAnd:
      return ScalarInt(builder, dtype, -1);
  }
  Fail("stablehlo.reduce", "unknown kind of reduction");
}

Region Reducer(Reduction kind) {
  return [kind](const Values& v) { return Values{Combine(kind, v[0], v[1])}; };
}

void CheckKind(std::string_view name, Reduction kind, Value x) {
  const bool ordered = kind == Reduction::kMax || kind == Reduction::kMin;
  const bool bits = kind == Reduction::kAnd || kind == Reduction::kOr;
  if (ordered && IsComplex(x.dtype())) FailDType(name, "complex numbers have no order", {x});
  if (bits && (IsFloat(x.dtype()) || IsComplex(x.dtype()))) {
    FailDType(name, "bits of numbers that are no integers", {x});
  }
}

// Operands of one shape, and for each a 0-d initial value of its dtype. Returns all of them and the
// element types the reducer sees.
std::pair<Values, std::vector<Type>> CheckOperands(std::string_view name, const Values& xs,
                                                   const Values& inits) {
  Values all = xs;
  all.insert(all.end(), inits.begin(), inits.end());
  if (xs.empty()) Fail(name, "no operands");
  CheckDefined(name, all);
  if (xs.size() != inits.size()) Fail(name, "one initial value an operand is needed", all);
  std::vector<Type> elements;
  for (size_t i = 0; i < xs.size(); ++i) {
    if (xs[i].dims() != xs[0].dims()) Fail(name, "operand shapes differ", all);
    if (inits[i].type() != Type{xs[i].dtype(), {}}) {
      Fail(name, "an initial value is not 0-d of its operand's dtype", all);
    }
    elements.push_back(inits[i].type());
  }
  for (size_t i = 0; i < xs.size(); ++i) elements.push_back(elements[i]);
  return {all, elements};
}

// The window with every list filled in.
Window Filled(std::string_view name, const Window& window, Value x) {
  const size_t rank = x.dims().size();
  Window full = window;
  if (full.dimensions.empty()) full.dimensions.assign(rank, 1);
  if (full.strides.empty()) full.strides.assign(rank, 1);
  if (full.base_dilations.empty()) full.base_dilations.assign(rank, 1);
  if (full.window_dilations.empty()) full.window_dilations.assign(rank, 1);
  if (full.padding.empty()) full.padding.assign(rank, {0, 0});
  for (const Dims* list :
       {&full.dimensions, &full.strides, &full.base_dilations, &full.window_dilations}) {
    const bool positive = std::all_of(list->begin(), list->end(), [](int64_t v) { return v > 0; });
    if (list->size() != rank || !positive) Fail(name, "the window does not fit", {x});
  }
  if (full.padding.size() != rank) Fail(name, "the window's padding does not fit", {x});
  return full;
}

Dims WindowedDims(const Dims& dims, const Window& window) {
  Dims result(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t dilated = dims[i] == 0 ? 0 : (dims[i] - 1) * window.base_dilations[i] + 1;
    const int64_t padded = dilated + window.padding[i].first + window.padding[i].second;
    const int64_t size = (window.dimensions[i] - 1) * window.window_dilations[i] + 1;
    result[i] = padded < size ? 0 : (padded - size) / window.strides[i] + 1;
  }
  return result;
}

}  // namespace

Value Reduce(Value x, Reduction kind, const std::vector<int64_t>& dimensions) {
  constexpr std::string_view kName = "stablehlo.reduce";
  CheckDefined(kName, {x});
  CheckKind(kName, kind, x);
  if (dimensions.empty()) return x;
  return ReduceGeneric({x}, {Identity(x.builder(), kind, x.dtype())}, dimensions, Reducer(kind))
      .front();
}

Values ReduceGeneric(const Values& xs, const Values& inits, const std::vector<int64_t>& dimensions,
                     const Region& body) {
  constexpr std::string_view kName = "stablehlo.reduce";
  auto [operands, elements] = CheckOperands(kName, xs, inits);
  CheckDimensions(kName, dimensions, xs[0].rank(), xs[0]);
  std::vector<int64_t> sorted = dimensions;
  std::sort(sorted.begin(), sorted.end());
  Dims kept;
  for (int64_t i = 0; i < xs[0].rank(); ++i) {
    if (!std::binary_search(sorted.begin(), sorted.end(), i)) kept.push_back(xs[0].dims()[i]);
  }
  std::vector<Type> results;
  for (Value x : xs) results.push_back({x.dtype(), kept});
  const std::vector<Type> yields(elements.begin(), elements.begin() + xs.size());
  return xs[0].builder().Emit(kName, operands, "dimensions = " + Array(sorted), results,
                              {{elements, Checked(kName, body, yields)}});
}

Value ReduceWindow(Value x, Reduction kind, const Window& window) {
  constexpr std::string_view kName = "stablehlo.reduce_window";
  CheckDefined(kName, {x});
  CheckKind(kName, kind, x);
  return ReduceWindowGeneric({x}, {Identity(x.builder(), kind, x.dtype())}, window, Reducer(kind))
      .front();
}

Values ReduceWindowGeneric(const Values& xs, const Values& inits, const Window& window,
                           const Region& body) {
  constexpr std::string_view kName = "stablehlo.reduce_window";
  auto [operands, elements] = CheckOperands(kName, xs, inits);
  const Window full = Filled(kName, window, xs[0]);
  const Dims dims = WindowedDims(xs[0].dims(), full);
  std::vector<Type> results;
  for (Value x : xs) results.push_back({x.dtype(), dims});
  const std::vector<Type> yields(elements.begin(), elements.begin() + xs.size());
  return xs[0].builder().Emit(kName, operands,
                              "window_dimensions = " + Array(full.dimensions) +
                                  ", window_strides = " + Array(full.strides) +
                                  ", base_dilations = " + Array(full.base_dilations) +
                                  ", window_dilations = " + Array(full.window_dilations) +
                                  ", padding = " + Pairs(full.padding),
                              results, {{elements, Checked(kName, body, yields)}});
}

Value SelectAndScatter(Value operand, Value source, Value init, const Window& window,
                       const Region& select, const Region& scatter) {
  constexpr std::string_view kName = "stablehlo.select_and_scatter";
  const Values operands = {operand, source, init};
  CheckDefined(kName, operands);
  const Type element{operand.dtype(), {}};
  if (source.dtype() != operand.dtype() || init.type() != element) {
    Fail(kName, "dtypes differ or the initial value is not 0-d", operands);
  }
  const Window full = Filled(kName, window, operand);
  const auto is_one = [](int64_t v) { return v == 1; };
  if (!std::all_of(full.base_dilations.begin(), full.base_dilations.end(), is_one) ||
      !std::all_of(full.window_dilations.begin(), full.window_dilations.end(), is_one)) {
    Fail(kName, "dilation is not possible", operands);
  }
  if (source.dims() != WindowedDims(operand.dims(), full)) {
    Fail(kName, "the source does not have one element a window", operands);
  }
  return operand.builder()
      .Emit(kName, operands,
            "window_dimensions = " + Array(full.dimensions) +
                ", window_strides = " + Array(full.strides) + ", padding = " + Pairs(full.padding),
            {operand.type()},
            {{{element, element}, Checked(kName, select, {{DType::kPred, {}}})},
             {{element, element}, Checked(kName, scatter, {element})}})
      .front();
}

Values Sort(const Values& xs, int dimension, bool stable, const Region& comparator) {
  constexpr std::string_view kName = "stablehlo.sort";
  if (xs.empty()) Fail(kName, "no operands");
  CheckDefined(kName, xs);
  CheckDimension(kName, dimension, xs[0].rank(), xs[0]);
  std::vector<Type> results, elements;
  for (Value x : xs) {
    if (x.dims() != xs[0].dims()) Fail(kName, "operand shapes differ", xs);
    results.push_back(x.type());
    elements.push_back({x.dtype(), {}});
    elements.push_back({x.dtype(), {}});
  }
  std::string attributes = "dimension = " + Int(dimension) + ", is_stable = ";
  attributes.append(Bool(stable));
  return xs[0].builder().Emit(kName, xs, attributes, results,
                              {{elements, Checked(kName, comparator, {{DType::kPred, {}}})}});
}

}  // namespace torch_tpu::stablehlo
