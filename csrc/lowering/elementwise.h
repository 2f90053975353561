#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "lowering/rule.h"

// What elementwise rules share: operands brought to the result's shape in the type the arithmetic
// is done in, and shape functions that give what TensorIterator gives on CPU.
namespace torch_tpu::lowering {

// --- values

// Argument `name`, a tensor or a number, in `dtype` and in its own shape.
Value RawOperand(const Call& c, std::string_view name, DType dtype);
// The same broadcast to the shape of result 0.
Value Operand(const Call& c, std::string_view name, DType dtype);
// The dtype the arithmetic of result 0 is done in.
DType ResultComputeType(const Call& c);
// `value` as result 0.
Values Result(const Call& c, Value value);

// i1: the sign bit, that of -0.0 and of NaN included.
Value SignBit(const Call& c, Value x);
// |magnitude| with the sign bit of `sign`.
Value CopySign(const Call& c, Value magnitude, Value sign);
Value Trunc(Value x);  // towards zero; identity for integers
Value Square(Value x);
Value Reciprocal(Value x);
Value Sigmoid(Value x);  // complex too
// Remainder with the divisor's sign, as Python's %.
Value PythonRemainder(Value a, Value b);

// --- shapes

// Result type of tensors and numbers by PyTorch's promotion rules.
c10::ScalarType PromoteArguments(const ShapeCall& s, std::initializer_list<std::string_view> names);
// Integers and bool compute in the default float dtype.
c10::ScalarType FloatingType(c10::ScalarType type);
// The result of a TensorIterator over these tensors: broadcast sizes, strides in the order of the
// operands' memory layout.
ResultSpec ElementwiseResult(const ShapeCall& s, std::initializer_list<std::string_view> tensors,
                             c10::ScalarType dtype);

// What `empty_like(self)` is: in self's order of dimensions.
ResultSpec LikeSelf(const ShapeCall& s, c10::ScalarType dtype);

// Shape functions of operators over `self`.
std::vector<ResultSpec> SelfShape(const ShapeCall& s);       // self's dtype
std::vector<ResultSpec> SelfFloatShape(const ShapeCall& s);  // integers become floats
std::vector<ResultSpec> SelfBoolShape(const ShapeCall& s);   // bool
// Of operators over `self` and `other`, tensors or numbers.
std::vector<ResultSpec> BinaryShape(const ShapeCall& s);
std::vector<ResultSpec> BinaryFloatShape(const ShapeCall& s);
std::vector<ResultSpec> BinaryBoolShape(const ShapeCall& s);

}  // namespace torch_tpu::lowering
