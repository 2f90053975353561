#include "lowering/elementwise.h"

#include <ATen/core/Tensor.h>
#include <ATen/native/TypeProperties.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "lowering/rounding.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;  // NOLINT: rules read like the mathematics

bool IsTensor(const ShapeCall& s, std::string_view name) {
  const std::vector<ShapeTensor>& tensors = s.tensors(name);
  return !tensors.empty() && tensors.front().defined;
}

std::vector<int64_t> ContiguousStrides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (int i = static_cast<int>(sizes.size()) - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

bool IsEmpty(const std::vector<int64_t>& sizes) {
  return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
}

bool IsContiguous(const ShapeTensor& t) {
  if (IsEmpty(t.sizes)) return true;
  int64_t expected = 1;
  for (int i = static_cast<int>(t.sizes.size()) - 1; i >= 0; --i) {
    if (t.sizes[i] == 1) continue;
    if (t.strides[i] != expected) return false;
    expected *= t.sizes[i];
  }
  return true;
}

// Whether the tensor's elements fill one stretch of memory, each once.
bool IsDense(const ShapeTensor& t) {
  const int rank = static_cast<int>(t.sizes.size());
  std::vector<int> order(rank);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    if (t.sizes[a] < 2) return false;
    if (t.sizes[b] < 2) return true;
    return t.strides[a] < t.strides[b];
  });
  int64_t expected = 1;
  for (int i : order) {
    if (t.sizes[i] < 2) return true;
    if (t.strides[i] != expected) return false;
    expected *= t.sizes[i];
  }
  return true;
}

void BroadcastInto(std::vector<int64_t>& sizes, const std::vector<int64_t>& other) {
  const size_t rank = std::max(sizes.size(), other.size());
  std::vector<int64_t> out(rank);
  for (size_t i = 0; i < rank; ++i) {  // from the last dimension
    const int64_t a = i < sizes.size() ? sizes[sizes.size() - 1 - i] : 1;
    const int64_t b = i < other.size() ? other[other.size() - 1 - i] : 1;
    TORCH_CHECK(a == b || a == 1 || b == 1, "The size of tensor a (", a,
                ") must match the size of tensor b (", b, ") at non-singleton dimension ",
                rank - 1 - i);
    out[rank - 1 - i] = a == 1 ? b : a;
  }
  sizes = std::move(out);
}

// Which of two dimensions varies faster in memory: -1 the first, 1 the second, 0 unknown.
int CompareDimensions(const std::vector<std::vector<int64_t>>& strides,
                      const std::vector<int64_t>& sizes, int dim0, int dim1) {
  for (const auto& of : strides) {
    const int64_t stride0 = of[dim0], stride1 = of[dim1];
    if (stride0 == 0 || stride1 == 0) continue;  // broadcast: the next operand decides
    if (stride0 != stride1) return stride0 < stride1 ? -1 : 1;
    if (sizes[dim0] > sizes[dim1]) return 1;
  }
  return 0;
}

// TensorIterator's layout of a result it allocates: dimensions sorted by the operands' strides,
// earlier operands deciding first. Its comparison is not transitive, so the order of the insertion
// sort is part of the specification.
// `numbers`: whether there are operands without dimensions besides.
std::vector<int64_t> ResultStrides(const std::vector<int64_t>& sizes,
                                   const std::vector<const ShapeTensor*>& operands, bool numbers) {
  const int rank = static_cast<int>(sizes.size());
  const bool same_shape =
      !numbers && std::all_of(operands.begin(), operands.end(),
                              [&](const ShapeTensor* t) { return t->sizes == sizes; });
  if (same_shape) {
    if (std::all_of(operands.begin(), operands.end(),
                    [](const ShapeTensor* t) { return IsContiguous(*t); })) {
      return ContiguousStrides(sizes);
    }
    const auto& strides = operands.front()->strides;
    if (std::all_of(operands.begin(), operands.end(),
                    [&](const ShapeTensor* t) { return IsDense(*t) && t->strides == strides; })) {
      return strides;
    }
  }
  std::vector<std::vector<int64_t>> strides;
  for (const ShapeTensor* t : operands) {
    std::vector<int64_t> aligned(rank, 0);
    const int offset = rank - static_cast<int>(t->sizes.size());
    for (size_t i = 0; i < t->sizes.size(); ++i) {
      const bool broadcast = t->sizes[i] == 1 && sizes[offset + i] != 1;
      aligned[offset + i] = broadcast ? 0 : t->strides[i];
    }
    strides.push_back(std::move(aligned));
  }
  std::vector<int> order(rank);  // fastest first
  std::iota(order.rbegin(), order.rend(), 0);
  for (int i = 1; i < rank; ++i) {
    int moving = i;
    for (int j = i - 1; j >= 0; --j) {
      const int comparison = CompareDimensions(strides, sizes, order[j], order[moving]);
      if (comparison > 0) {
        std::swap(order[j], order[moving]);
        moving = j;
      } else if (comparison < 0) {
        break;
      }
    }
  }
  bool row_major = true;
  for (int i = 0; i < rank; ++i) row_major &= order[i] == rank - 1 - i;
  if (row_major) return ContiguousStrides(sizes);
  std::vector<int64_t> out(rank);
  int64_t step = 1;
  for (int dim : order) {
    out[dim] = step;
    step *= sizes[dim];
  }
  return out;
}

}  // namespace

Value RawOperand(const Call& c, std::string_view name, DType dtype) {
  if (c.spec().argument(name).kind == ArgumentSpec::Kind::kTensor) {
    const Value x = c.tensor(name), converted = Convert(x, dtype);
    // PyTorch converts operands to the result's dtype. Integers and numbers may have more digits.
    const DType narrow = c.result().dtype;
    const bool wider = x.dtype() != narrow && (IsInteger(x.dtype()) || x.rank() == 0);
    return wider && dtype == DType::kF32 ? RoundedTo(converted, narrow) : converted;
  }
  return c.scalar(name, dtype);
}

Value Operand(const Call& c, std::string_view name, DType dtype) {
  return BroadcastTo(RawOperand(c, name, dtype), c.result().dims);
}

DType ResultComputeType(const Call& c) { return ComputeType(c.result().dtype); }

Values Result(const Call& c, Value value) {
  return {BroadcastTo(Convert(value, c.result().dtype), c.result().dims)};
}

Value SignBit(const Call& c, Value x) {
  const Value zero = ConstantLike(x, 0);
  switch (x.dtype()) {
    case DType::kF16:
    case DType::kBF16: {
      const Value bits = BitcastConvert(x, DType::kS16);
      return Lt(bits, ConstantLike(bits, 0));
    }
    case DType::kF32: {
      const Value bits = BitcastConvert(x, DType::kS32);
      return Lt(bits, ConstantLike(bits, 0));
    }
    case DType::kF64: {
      if (c.on_tpu()) {  // float64 is emulated there and has no bits to look at
        const Value infinite = Divide(ConstantLike(x, 1), x);
        return Or(Lt(x, zero), And(Eq(x, zero), Lt(infinite, zero)));
      }
      const Value bits = BitcastConvert(x, DType::kS64);
      return Lt(bits, ConstantLike(bits, 0));
    }
    default:
      if (IsFloat(x.dtype())) return SignBit(c, Convert(x, DType::kF32));
      if (IsSigned(x.dtype())) return Lt(x, zero);
      return Ne(x, x);
  }
}

Value CopySign(const Call& c, Value magnitude, Value sign) {
  const Value positive = Abs(magnitude);
  return Select(SignBit(c, sign), Negate(positive), positive);
}

Value Trunc(Value x) {
  if (!IsFloat(x.dtype())) return x;
  return Select(Lt(x, ConstantLike(x, 0)), Ceil(x), Floor(x));
}

Value Square(Value x) { return x.dtype() == DType::kPred ? x : Multiply(x, x); }

Value Reciprocal(Value x) { return Divide(ConstantLike(x, 1), x); }

Value Sigmoid(Value x) {
  // The TPU's compiler sooner joins the parts to the matrix products around them.
  const bool whole = x.builder().platform() != stablehlo::Platform::kTpu;
  if (whole && !IsComplex(x.dtype())) return Logistic(x);
  return Reciprocal(Add(ConstantLike(x, 1), Exp(Negate(x))));
}

Value PythonRemainder(Value a, Value b) {
  const Value remainder = Remainder(a, b);
  if (IsUnsigned(a.dtype())) return remainder;
  const Value zero = ConstantLike(a, 0);
  const Value adjust = And(Ne(remainder, zero), Xor(Lt(remainder, zero), Lt(b, zero)));
  return Select(adjust, Add(remainder, b), remainder);
}

c10::ScalarType PromoteArguments(const ShapeCall& s,
                                 std::initializer_list<std::string_view> names) {
  at::native::ResultTypeState state;
  const auto promote = [](c10::ScalarType current, c10::ScalarType type) {
    return current == c10::ScalarType::Undefined ? type : c10::promoteTypes(current, type);
  };
  for (std::string_view name : names) {
    if (IsTensor(s, name)) {
      const ShapeTensor& t = s.tensor(name);
      if (!t.sizes.empty()) {
        state.dimResult = promote(state.dimResult, t.dtype);
      } else if (!t.wrapped_number) {
        state.zeroResult = promote(state.zeroResult, t.dtype);
      } else {
        c10::ScalarType type = t.dtype;
        if (c10::isComplexType(type)) {
          type = c10::typeMetaToScalarType(c10::get_default_complex_dtype());
        } else if (c10::isFloatingType(type)) {
          type = c10::get_default_dtype_as_scalartype();
        }
        state.wrappedResult = promote(state.wrappedResult, type);
      }
    } else if (s.has(name)) {
      const c10::IValue& number = s.argument(name);
      c10::ScalarType type = c10::get_default_dtype_as_scalartype();
      if (number.isBool()) type = c10::ScalarType::Bool;
      if (number.isInt()) type = c10::ScalarType::Long;
      if (number.isComplexDouble()) {
        type = c10::typeMetaToScalarType(c10::get_default_complex_dtype());
      }
      state.wrappedResult = promote(state.wrappedResult, type);
    }
  }
  return at::native::result_type(state);
}

c10::ScalarType FloatingType(c10::ScalarType type) {
  return c10::isIntegralType(type, /*includeBool=*/true) ? c10::get_default_dtype_as_scalartype()
                                                         : type;
}

ResultSpec ElementwiseResult(const ShapeCall& s, std::initializer_list<std::string_view> tensors,
                             c10::ScalarType dtype) {
  ResultSpec result;
  result.dtype = dtype;
  std::vector<const ShapeTensor*> operands;
  bool numbers = false;
  for (std::string_view name : tensors) {
    if (!IsTensor(s, name)) {
      numbers |= s.argument(name).isScalar();
      continue;
    }
    const ShapeTensor& t = s.tensor(name);
    if (operands.empty()) {
      result.sizes = t.sizes;
    } else {
      BroadcastInto(result.sizes, t.sizes);
    }
    operands.push_back(&t);
  }
  result.strides = ResultStrides(result.sizes, operands, numbers);
  return result;
}

ResultSpec LikeSelf(const ShapeCall& s, c10::ScalarType dtype) {
  const ShapeTensor& self = s.tensor("self");
  return {.dtype = dtype,
          .sizes = self.sizes,
          .strides = IsDense(self) ? self.strides : ResultStrides(self.sizes, {&self}, true)};
}

std::vector<ResultSpec> SelfShape(const ShapeCall& s) {
  return {ElementwiseResult(s, {"self"}, s.tensor("self").dtype)};
}

std::vector<ResultSpec> SelfFloatShape(const ShapeCall& s) {
  return {ElementwiseResult(s, {"self"}, FloatingType(s.tensor("self").dtype))};
}

std::vector<ResultSpec> SelfBoolShape(const ShapeCall& s) {
  return {ElementwiseResult(s, {"self"}, c10::ScalarType::Bool)};
}

std::vector<ResultSpec> BinaryShape(const ShapeCall& s) {
  return {ElementwiseResult(s, {"self", "other"}, PromoteArguments(s, {"self", "other"}))};
}

std::vector<ResultSpec> BinaryFloatShape(const ShapeCall& s) {
  return {ElementwiseResult(s, {"self", "other"},
                            FloatingType(PromoteArguments(s, {"self", "other"})))};
}

std::vector<ResultSpec> BinaryBoolShape(const ShapeCall& s) {
  return {ElementwiseResult(s, {"self", "other"}, c10::ScalarType::Bool)};
}

}  // namespace torch_tpu::lowering
