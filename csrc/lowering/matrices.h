#pragma once

#include <string_view>

#include "lowering/call.h"

// Matrices in the last two dimensions of values; the dimensions before are batch dimensions, the
// same in all operands of one operation.
namespace torch_tpu::lowering {

// a times b, in the dtype both have and as exactly as the device can.
Value MatrixMultiply(Value a, Value b);
// The conjugate transpose.
Value Adjoint(Value x);
// Ones on the diagonal and zeros elsewhere.
Value Identity(Builder& builder, const Type& type);
// x where the column is at least the row plus `diagonal`, else 0.
Value UpperTriangle(Value x, int64_t diagonal = 0);
Value LowerTriangle(Value x, int64_t diagonal = 0);  // column <= row + diagonal
// The columns of x, or its rows, times the elements of the vectors v ([..., columns] or rows).
Value ScaleColumns(Value x, Value v);
Value ScaleRows(Value x, Value v);
// The first `count` columns or rows.
Value FirstColumns(Value x, int64_t count);
Value FirstRows(Value x, int64_t count);
// x with zeros appended up to `rows` and `columns`.
Value PadTo(Value x, int64_t rows, int64_t columns);

// Matrices divided by `scale` ([..., 1, 1], real): the largest absolute value where squares and
// their sums could overflow or vanish, else 1.
struct ScaledMatrices {
  Value matrices, scale;
};
ScaledMatrices ScaledToSafeRange(Value x);
// x times a real scale of x's rank.
Value TimesScale(Value x, Value scale);

// Throws the NotImplementedError of a CPU kernel for dtypes other than the four LAPACK has.
void RequireLapackDType(DType dtype, std::string_view kernel);

}  // namespace torch_tpu::lowering
