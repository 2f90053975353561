#pragma once

#include "lowering/call.h"

// Jacobi's method from one side: rotations that make the rows of a matrix orthogonal.
namespace torch_tpu::lowering {

struct OrthogonalRows {
  Value rows;       // [..., n, l]: J x, rows of the smallest norms (see NegligibleNorm) as they are
  Value norms;      // [..., n], real
  Value rotations;  // [..., n, n]: the unitary J, where it is wanted
};

// x: [..., n, l], n and l at least 1, its largest element between 1e-4 and 1e12 (1e-100 and 1e100
// for the dtypes of 64-bit reals) or all zeros. Rows of zeros may come out anywhere.
OrthogonalRows OrthogonalizeRows(Value x, bool want_rotations);

// Rows with norms below are not told from zero, because their squares lose digits.
double NegligibleNorm(DType dtype);

// Rows (or elements, of vectors) in the order of descending keys [..., n].
Value DescendingOrder(Value keys);               // [..., n], integers
Value InOrder(Value x, Value order, bool rows);  // x: [..., n, l] if rows, else [..., n]

}  // namespace torch_tpu::lowering
