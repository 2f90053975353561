#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stablehlo/builder.h"

namespace torch_tpu::lowering {

// The names rules are written in.
using stablehlo::Builder;
using stablehlo::Dims;
using stablehlo::DType;
using stablehlo::Type;
using stablehlo::Value;
using stablehlo::Values;

DType ToDType(c10::ScalarType type);  // throws c10::NotImplementedError for what XLA lacks
c10::ScalarType ToScalarType(DType dtype);
bool IsSupported(c10::ScalarType type);
// The dtype arithmetic is done in: float16, bfloat16 and float8 compute in float32.
DType ComputeType(DType dtype);
// Throws c10::Error, PyTorch's, if `number` overflows `type`.
void CheckRange(const c10::Scalar& number, c10::ScalarType type);

// A tensor argument as far as a rule may know it.
struct TensorSpec {
  Type type;
  bool wrapped_number = false;  // a Python number that PyTorch turned into a 0-d tensor
  bool defined = false;
  bool contiguous = false;  // row-major in PyTorch's memory
};

// What the signature of one operator call says of one schema argument.
struct ArgumentSpec {
  enum class Kind {
    kNone,        // absent optional, or an argument without meaning here (device, layout, ...)
    kTensor,      // tensors[0]
    kTensorList,  // tensors (undefined entries for absent optionals)
    kScalar,      // number passed at run time: tensors[i] are the 0-d parameters
    kConstant,    // structural: `constant`
  };
  std::string name;
  Kind kind = Kind::kNone;
  std::vector<TensorSpec> tensors;
  c10::IValue constant;
  // kScalar only: the number is a Python float (kF64), int (kS64), bool (kPred) or complex (kC128).
  std::vector<DType> number_kinds;
};

// One operator call to be lowered: everything but the values. `results` are the types PyTorch's own
// shape functions gave, in the schema's order (one entry a tensor; tensor lists flattened; what a
// caller does not get has defined=false, and the rule may return an undefined value for it).
struct CallSpec {
  std::string name;                                                 // "add.Tensor"
  stablehlo::Precision precision = stablehlo::Precision::kHighest;  // of float32 dots
  bool deterministic = false;
  bool host_dot = false;  // the client runs the host's dot product of small matrices
  std::vector<ArgumentSpec> arguments;
  std::vector<TensorSpec> results;

  const ArgumentSpec& argument(std::string_view name) const;  // throws std::logic_error
  const ArgumentSpec* find(std::string_view name) const;
  // PyTorch's type promotion over all tensor and scalar arguments.
  c10::ScalarType PromotedType() const;
};

// A call while its rule runs: the spec with the builder's values.
class Call {
 public:
  // `inputs` holds, argument by argument, one value for each defined tensor and each run-time
  // scalar.
  Call(const CallSpec& spec, Builder& builder, const Values& inputs);

  const CallSpec& spec() const { return spec_; }
  Builder& builder() const { return builder_; }
  bool on_tpu() const { return builder_.platform() == stablehlo::Platform::kTpu; }

  // --- tensor arguments by schema name
  Value tensor(std::string_view name) const;  // must be present
  std::optional<Value> optional_tensor(std::string_view name) const;
  Values tensors(std::string_view name) const;
  std::vector<std::optional<Value>> optional_tensors(std::string_view name) const;
  bool has(std::string_view name) const;  // present and not None
  // Whether PyTorch holds a tensor row-major. Values come in their logical shapes either way; this
  // is for operators whose results PyTorch makes depend on it.
  bool contiguous(std::string_view name) const;

  // --- numbers that may be run-time arguments (Scalar, float)
  // 0-d value of `dtype`.
  Value scalar(std::string_view name, DType dtype) const;
  Values scalars(std::string_view name, DType dtype) const;  // Scalar[] / float[]
  // Its value if it is structural in this signature (declared structural, or one of the values the
  // rule specializes on), else nullopt.
  std::optional<double> known(std::string_view name) const;
  bool is(std::string_view name, double value) const { return known(name) == value; }

  // --- static arguments
  int64_t integer(std::string_view name) const;
  std::optional<int64_t> optional_integer(std::string_view name) const;
  std::vector<int64_t> integers(std::string_view name) const;  // empty for None
  std::optional<std::vector<int64_t>> optional_integers(std::string_view name) const;
  bool boolean(std::string_view name) const;  // false for None
  std::vector<bool> booleans(std::string_view name) const;
  double number(std::string_view name) const;  // must be structural
  std::optional<double> optional_number(std::string_view name) const;
  std::vector<double> numbers(std::string_view name) const;
  std::string string(std::string_view name) const;  // "" for None
  std::optional<DType> dtype(std::string_view name) const;

  // --- results as PyTorch's shape functions say
  const Type& result(int i = 0) const;
  bool wants(int i) const;  // result i is defined
  size_t num_results() const { return spec_.results.size(); }
  // Promoted dtype of the arguments.
  DType promoted() const;

  stablehlo::Precision precision() const { return spec_.precision; }

  // --- checks at run time. `ok` is an i1 value of any shape; if any element is false, the next
  // synchronisation raises IndexError (or RuntimeError) with `message` and the operator's name.
  enum class ErrorKind { kIndex, kRuntime };
  void Check(Value ok, std::string message, ErrorKind kind = ErrorKind::kIndex);

  // --- random numbers: 0-d ui64 parameters of a call to a rule marked random.
  Value seed() const;
  Value offset() const;

  // Filled by the rule machinery, not by rules.
  struct PendingCheck {
    Value ok;  // 0-d i1
    std::string message;
    ErrorKind kind;
  };
  const std::vector<PendingCheck>& checks() const { return checks_; }
  void SetRandomState(Value seed, Value offset) { seed_ = seed, offset_ = offset; }

 private:
  const ArgumentSpec& Find(std::string_view name) const;
  int IndexOf(std::string_view name) const;
  const CallSpec& spec_;
  Builder& builder_;
  std::vector<Values> values_;  // one list for each argument
  std::vector<PendingCheck> checks_;
  Value seed_, offset_;
};

// dim wrapped into [0, rank); a 0-d tensor counts as rank 1.
int64_t WrapDim(int64_t dim, int64_t rank);
std::vector<int64_t> WrapDims(const std::vector<int64_t>& dims, int64_t rank, bool empty_means_all);
// Integer indices as 32-bit where every dimension they may address fits.
Value NarrowIndices(Value indices, int64_t dimension_size);
// Negative indices count from the end of a dimension.
Value WrapIndices(Value indices, int64_t dimension_size);

}  // namespace torch_tpu::lowering
