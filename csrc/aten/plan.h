#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "aten/operator_entry.h"
#include "aten/storage.h"
#include "trace/operation.h"

namespace torch_tpu::aten {

// A tensor argument of the call at hand.
struct GatheredTensor {
  const at::Tensor* tensor = nullptr;
  StorageState* state = nullptr;
  trace::ValuePtr value;  // null if nothing was written yet
  bool written = false;
  int input = -1;  // position among the operation's inputs
};

// A number of the call at hand: a Python scalar or a 0-d CPU tensor.
struct GatheredNumber {
  c10::Scalar number;
  c10::ScalarType dtype;  // kDouble, kLong, kBool, kComplexDouble, or a CPU tensor's own
  bool tensor = false;    // came in a tensor argument
  bool wrapped = false;
  bool schema_float = false;  // a `float` argument: an epsilon, a rate
};

// Arguments in the order in which the operation takes them.
struct Gathered {
  struct Input {
    int tensor = -1;  // index into tensors, or
    int number = -1;  // into numbers
  };
  c10::SmallVector<GatheredTensor, 6> tensors;
  c10::SmallVector<GatheredNumber, 4> numbers;
  c10::SmallVector<Input, 8> inputs;
  c10::DeviceIndex device = -1;
};

struct Output {
  bool fresh = true;
  int tensor = -1;  // written tensor, if not fresh
  caffe2::TypeMeta dtype;
  c10::SmallVector<int64_t, 5> sizes, strides;
  size_t bytes = 0;
};

struct Return {
  enum class Kind { kTensor, kTensorList, kArgument, kConstant } kind = Kind::kTensor;
  int first = 0, count = 1;  // outputs
  int argument = -1;
  c10::IValue constant;
};

// Everything known of one signature.
struct Plan {
  std::shared_ptr<trace::Operation> operation;
  // Dtype each number is passed in, in the order of Gathered::numbers.
  c10::SmallVector<trace::DType, 4> number_dtypes;
  // Numbers beyond this dtype's range are errors; Undefined: any will do.
  c10::ScalarType number_range = c10::ScalarType::Undefined;
  std::vector<Output> outputs;
  std::vector<Return> returns;
  bool random = false;
  uint64_t draws = 0;
  // out= tensors to be resized before the call is looked up again; no strides: row-major.
  struct Resize {
    int tensor;
    std::vector<int64_t> sizes, strides;
  };
  std::vector<Resize> resize;
  bool nothing_to_do = false;  // all results are empty
  // Written tensors of a list overlap: the call is made for one after the other.
  bool one_by_one = false;
};

// True for a number that is part of the signature, because its rule has a cheaper program for it.
inline bool IsSpecial(const std::vector<double>* specialize, const c10::Scalar& number) {
  if (specialize == nullptr || number.isComplex()) return false;
  const double value = number.toDouble();
  return std::find(specialize->begin(), specialize->end(), value) != specialize->end();
}

// Works out the plan of a call that was not seen before. May run Python; hold no lock.
std::unique_ptr<Plan> MakePlan(const OperatorEntry& entry, const torch::jit::Stack& stack,
                               const Gathered& gathered);

// "aten::add.Tensor(self: f32[3], other: f32[4])"
std::string Describe(const OperatorEntry& entry, c10::ArrayRef<c10::IValue> arguments);

}  // namespace torch_tpu::aten
