#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stablehlo/type.h"

namespace torch_tpu::stablehlo {

class Builder;

// What a module is for. Both understand all of StableHLO's types and operations that this library
// writes, but not in every combination.
enum class Platform { kCpu, kTpu };

// One SSA value of a module under construction. Cheap to copy; valid while its builder lives.
class Value {
 public:
  Value() = default;
  bool defined() const { return builder_ != nullptr; }
  explicit operator bool() const { return defined(); }
  const Type& type() const;
  DType dtype() const { return type().dtype; }
  const Dims& dims() const { return type().dims; }
  int64_t dim(int i) const;  // negative counts from the end
  int rank() const { return type().rank(); }
  int64_t numel() const { return type().numel(); }
  Builder& builder() const { return *builder_; }
  int id() const { return id_; }

 private:
  friend class Builder;
  Value(Builder* builder, int id) : builder_(builder), id_(id) {}
  Builder* builder_ = nullptr;
  int id_ = -1;
};

using Values = std::vector<Value>;
// Builds the body of a region from its block arguments and returns what it yields.
using Region = std::function<Values(const Values&)>;

// Builds one module with one function `main` as StableHLO text (generic form, nothing newer than
// StableHLO 1.13). Every operation checks its operands' shapes and dtypes and throws TypeError.
class Builder {
 public:
  explicit Builder(std::string module_name = "main", Platform platform = Platform::kCpu);
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  Platform platform() const { return platform_; }
  Value Parameter(const Type& type);
  // Result `result` may be written into the buffer of parameter `parameter`.
  void Alias(int parameter, int result);
  // Any result, or a temporary, may be written into the buffer of parameter `parameter`.
  void Donate(int parameter);
  // The program runs on so many devices at once, each with parameters and results of its own
  // (stablehlo/collectives.h).
  void SetPartitions(int partitions) { partitions_ = partitions; }
  int partitions() const { return partitions_; }
  // A number that no other exchange between partitions has.
  int NextChannel() { return ++channels_; }
  // The text of the finished module; the builder is not to be used afterwards.
  std::string Finish(const Values& results);

  // Location attached to the operations built from now on, for example "aten.add.Tensor" or
  // "aten.add.Tensor at train.py:12". Empty for none.
  void SetLocation(std::string location);
  // A line of source code that those locations lie in; an empty file for none.
  void SetSource(std::string file, int line);

  // --- constants
  // A splat of `value` converted to the type's dtype. Non-finite values are allowed for floats.
  Value Constant(const Type& type, double value);
  Value ConstantInt(const Type& type, int64_t value);
  Value ConstantComplex(const Type& type, double real, double imag);
  // A dense constant; `values` has numel elements, row-major.
  Value ConstantInts(const Type& type, const std::vector<int64_t>& values);
  Value ConstantFloats(const Type& type, const std::vector<double>& values);
  Value Iota(const Type& type, int dimension);

  // --- for the operations declared below (and for operations not wrapped yet)
  // Emits `"name"(operands) {attributes} : (...) -> results`. `attributes` is the text between the
  // braces. Regions are built in order from their block argument types.
  struct RegionSpec {
    std::vector<Type> arguments;
    Region body;
  };
  Values Emit(std::string_view name, const Values& operands, std::string_view attributes,
              const std::vector<Type>& results, const std::vector<RegionSpec>& regions = {});
  const Type& TypeOf(int id) const { return types_[id]; }
  // What a Transpose transposed. An operation that reads any memory order can take the source.
  struct Transposition {
    Value source;
    std::vector<int64_t> permutation;
  };
  // nullptr if another operation than Transpose made `x`.
  const Transposition* TranspositionOf(Value x) const;
  void RecordTransposition(Value result, Transposition transposition);
  // What a Reshape reshaped; undefined if another operation made `x`.
  Value ReshapeSource(Value x) const;
  void RecordReshape(Value result, Value source) { reshape_sources_.emplace(result.id(), source); }
  // For each parameter, whether any of `roots` depends on it.
  std::vector<bool> LiveParameters(const Values& roots) const;
  // Number of operations emitted so far (regions included).
  int size() const { return operations_; }

 private:
  std::string module_name_;
  const Platform platform_;
  std::string body_;
  std::string location_;
  std::string source_file_;
  int source_line_ = 0;
  std::deque<Type> types_;            // references to its elements stay valid as it grows
  std::vector<int> parameter_index_;  // of each value; -1 if it is not a parameter
  std::vector<int> parameters_;
  std::vector<int> uses_;  // operands of every operation, those inside its regions included
  std::vector<std::pair<size_t, size_t>> use_range_;       // of the operation that made each value
  std::unordered_map<int, Transposition> transpositions_;  // by the value they gave
  std::unordered_map<int, Value> reshape_sources_;         // by the value they gave
  std::vector<std::pair<int, int>> aliases_;
  std::vector<int> donated_;
  int indent_ = 2;
  int operations_ = 0;
  int partitions_ = 1;
  int channels_ = 0;
  Value NewValue(const Type& type);
  void AppendName(int id);
  void AppendLocation();
  void AppendRegion(std::string_view operation, const RegionSpec& region);
  Value EmitConstant(const Type& type, std::string_view elements);
};

// Constants shaped like another value.
Value ConstantLike(Value like, double value);
// Zeros (false) of any dtype.
Value ZeroConstant(Builder& builder, const Type& type);
// 0-d constant of a dtype.
Value Scalar(Builder& builder, DType dtype, double value);
Value ScalarInt(Builder& builder, DType dtype, int64_t value);
// The largest/smallest finite number or integer of a dtype, and -inf/+inf where the dtype has them
// (used as initial values of min/max reductions).
Value MaxValue(Builder& builder, DType dtype);  // 0-d; +inf for floats, true for i1
Value MinValue(Builder& builder, DType dtype);  // 0-d; -inf for floats, false for i1

// --- elementwise, one operand (operand and result types equal unless said otherwise)
Value Abs(Value x);  // complex -> real
Value Cbrt(Value x);
Value Ceil(Value x);
Value Cosine(Value x);
Value CountLeadingZeros(Value x);
Value Exp(Value x);
Value Expm1(Value x);
Value Floor(Value x);
Value Imag(Value x);      // complex -> real
Value IsFinite(Value x);  // -> i1
Value Log(Value x);
Value Log1p(Value x);
Value Logistic(Value x);
Value Negate(Value x);
Value Not(Value x);
Value PopulationCount(Value x);
Value Real(Value x);  // complex -> real
Value RoundNearestAfz(Value x);
Value RoundNearestEven(Value x);
Value Rsqrt(Value x);
Value Sign(Value x);
Value Sine(Value x);
Value Sqrt(Value x);
Value Tanh(Value x);
Value Conj(Value x);  // built from real, imag, complex; identity for real dtypes
// From the CHLO dialect (all plugins expand them).
Value Acos(Value x);
Value Acosh(Value x);
Value Asin(Value x);
Value Asinh(Value x);
Value Atan(Value x);
Value Atanh(Value x);
Value BesselI1e(Value x);
Value Cosh(Value x);
Value Digamma(Value x);
Value Erf(Value x);
Value Erfc(Value x);
Value ErfInv(Value x);
Value Lgamma(Value x);
Value Sinh(Value x);
Value Tan(Value x);

// --- elementwise, two operands of equal type
Value Add(Value a, Value b);
Value And(Value a, Value b);
Value Atan2(Value a, Value b);
Value Complex(Value real, Value imag);  // real, real -> complex
Value Divide(Value a, Value b);
Value Maximum(Value a, Value b);  // NaN if either is NaN
Value Minimum(Value a, Value b);
Value Multiply(Value a, Value b);
Value Or(Value a, Value b);
Value Power(Value a, Value b);
Value Remainder(Value a, Value b);  // sign of the dividend (C fmod)
Value ShiftLeft(Value a, Value b);
Value ShiftRightArithmetic(Value a, Value b);
Value ShiftRightLogical(Value a, Value b);
Value Subtract(Value a, Value b);
Value Xor(Value a, Value b);
Value NextAfter(Value a, Value b);  // CHLO
Value Polygamma(Value n, Value x);  // CHLO
Value Zeta(Value x, Value q);       // CHLO

enum class Direction { kEq, kNe, kGe, kGt, kLe, kLt };
// -> i1. Floats compare with IEEE semantics (NaN is unordered), or in total order if asked.
Value Compare(Value a, Value b, Direction direction, bool total_order = false);
Value Eq(Value a, Value b);
Value Ne(Value a, Value b);
Value Ge(Value a, Value b);
Value Gt(Value a, Value b);
Value Le(Value a, Value b);
Value Lt(Value a, Value b);
Value IsNan(Value x);  // -> i1; false for dtypes without NaN
Value IsInf(Value x);  // -> i1
// predicate has the operands' shape or is 0-d.
Value Select(Value predicate, Value on_true, Value on_false);
Value Clamp(Value low, Value x, Value high);  // low/high of x's shape, or 0-d

// --- types and shapes
// To another dtype with PyTorch's rules: float -> int truncates towards zero, anything -> i1 is
// `!= 0`, complex -> real takes the real part. Identity if the dtype is the same.
Value Convert(Value x, DType dtype);
// Same bits. Byte sizes may differ: a trailing dimension appears or disappears as StableHLO says.
Value BitcastConvert(Value x, DType dtype);
Value BroadcastInDim(Value x, const Dims& dims, const std::vector<int64_t>& broadcast_dimensions);
// NumPy broadcasting (right-aligned) to `dims`; identity if equal.
Value BroadcastTo(Value x, const Dims& dims);
// NumPy broadcasting of shapes; throws TypeError if they do not fit.
Dims BroadcastShapes(const Dims& a, const Dims& b);
Value Reshape(Value x, const Dims& dims);                           // identity if equal
Value Transpose(Value x, const std::vector<int64_t>& permutation);  // identity if sorted
Value Slice(Value x, const Dims& starts, const Dims& limits, const Dims& strides = {});
// One dimension only: [start, limit) with a stride.
Value SliceDim(Value x, int dim, int64_t start, int64_t limit, int64_t stride = 1);
// starts: one 0-d integer value a dimension.
Value DynamicSlice(Value x, const Values& starts, const Dims& sizes);
Value DynamicUpdateSlice(Value x, Value update, const Values& starts);
// As above with known starts.
Value UpdateSlice(Value x, Value update, const Dims& starts);
Value Pad(Value x, Value padding_value, const Dims& low, const Dims& high,
          const Dims& interior = {});  // negative low/high crop
Value Concatenate(const Values& xs, int dimension);
Value Reverse(Value x, const std::vector<int64_t>& dimensions);

// --- indexing
struct GatherDims {
  std::vector<int64_t> offset_dims, collapsed_slice_dims, operand_batching_dims,
      start_indices_batching_dims, start_index_map;
  int64_t index_vector_dim = 0;
  bool indices_are_sorted = false;
};
Value Gather(Value operand, Value start_indices, const GatherDims& dims,
             const std::vector<int64_t>& slice_sizes);
struct ScatterDims {
  std::vector<int64_t> update_window_dims, inserted_window_dims, input_batching_dims,
      scatter_indices_batching_dims, scatter_dims_to_operand_dims;
  int64_t index_vector_dim = 0;
  bool indices_are_sorted = false, unique_indices = false;
};
// body: (old, update) -> new, 0-d each.
Value Scatter(Value operand, Value scatter_indices, Value updates, const ScatterDims& dims,
              const Region& body);
// operand[..., indices[i], ...] along `dim` for 1-d indices (NumPy take); indices of any rank
// replace the dimension. Indices must be within bounds (XLA clamps them).
Value Take(Value operand, Value indices, int dim);

// --- reductions
enum class Reduction { kSum, kProduct, kMax, kMin, kAnd, kOr };
// Drops the reduced dimensions. Max and min propagate NaN.
Value Reduce(Value x, Reduction kind, const std::vector<int64_t>& dimensions);
// body: (acc..., element...) -> acc...; inits are 0-d.
Values ReduceGeneric(const Values& xs, const Values& inits, const std::vector<int64_t>& dimensions,
                     const Region& body);
struct Window {
  Dims dimensions, strides, base_dilations, window_dilations;  // empty: all ones
  std::vector<std::pair<int64_t, int64_t>> padding;            // empty: none
};
Value ReduceWindow(Value x, Reduction kind, const Window& window);
Values ReduceWindowGeneric(const Values& xs, const Values& inits, const Window& window,
                           const Region& body);
// select: (a, b) -> i1; scatter: (acc, x) -> acc.
Value SelectAndScatter(Value operand, Value source, Value init, const Window& window,
                       const Region& select, const Region& scatter);
// comparator: (a0, b0, a1, b1, ...) -> i1, 0-d each.
Values Sort(const Values& xs, int dimension, bool stable, const Region& comparator);

// --- linear algebra
struct DotDims {
  std::vector<int64_t> lhs_batch, rhs_batch, lhs_contract, rhs_contract;
};
enum class Precision { kDefault, kHigh, kHighest };
// Result: batch, lhs free, rhs free dimensions. `result` defaults to the operands' dtype.
Value DotGeneral(Value lhs, Value rhs, const DotDims& dims, Precision precision,
                 std::optional<DType> result = std::nullopt);
struct ConvolutionDims {
  // Positions: input [batch, feature, spatial...] in the operand's dimensions, and so on.
  int64_t input_batch = 0, input_feature = 1;
  std::vector<int64_t> input_spatial;
  int64_t kernel_output_feature = 0, kernel_input_feature = 1;
  std::vector<int64_t> kernel_spatial;
  int64_t output_batch = 0, output_feature = 1;
  std::vector<int64_t> output_spatial;
};
struct ConvolutionWindow {
  Dims strides, lhs_dilation, rhs_dilation;          // empty: all ones
  std::vector<std::pair<int64_t, int64_t>> padding;  // empty: none
  std::vector<bool> reversal;                        // empty: none
  int64_t feature_groups = 1, batch_groups = 1;
};
Value Convolution(Value lhs, Value rhs, const ConvolutionDims& dims,
                  const ConvolutionWindow& window, Precision precision);
Value Cholesky(Value x, bool lower);
enum class TransposeA { kNoTranspose, kTranspose, kAdjoint };
Value TriangularSolve(Value a, Value b, bool left_side, bool lower, bool unit_diagonal,
                      TransposeA transpose);
enum class FftKind { kFft, kIfft, kRfft, kIrfft };
Value Fft(Value x, FftKind kind, const std::vector<int64_t>& lengths);

// --- control flow and others
// condition: values -> i1; body: values -> values of the same types.
Values While(const Values& inits, const Region& condition, const Region& body);
Values If(Value predicate, const std::vector<Type>& results, const Region& on_true,
          const Region& on_false);  // regions take no arguments
Values OptimizationBarrier(const Values& xs);
Values CustomCall(std::string_view target, const Values& operands, std::string_view attributes,
                  const std::vector<Type>& results);

}  // namespace torch_tpu::stablehlo
