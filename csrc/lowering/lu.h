#pragma once

#include "lowering/matrix.h"

// LU factorization with partial pivoting, A = P L U, and what is made of it.
namespace torch_tpu::lowering {

struct LuFactors {
  Value lu;      // [batch, m, n]: U, and below its diagonal L without its diagonal of ones
  Value pivots;  // [batch, min(m, n)] int32: row exchanged with row i in step i, counted from 1
  Value order;   // [batch, m] int32: row i of L U is row order[i] of A
  Value info;    // [batch] int32: the first i, counted from 1, with U[i, i] zero; or 0
};

// LU factors of [batch, m, n]. Without `pivot` no rows are exchanged.
LuFactors FactorLu(Value a, bool pivot);

// The order of `rows` rows after the exchanges.
Value OrderOfPivots(Value pivots, int64_t rows);

// X of op(A) X = B, on the right of X op(A) = B, where op(A) is A or its adjoint.
Value SolveLu(Value lu, Value order, Value b, bool left, bool adjoint);

}  // namespace torch_tpu::lowering
