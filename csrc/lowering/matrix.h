#pragma once

#include <cstdint>
#include <vector>

#include "lowering/rule.h"

// What factorizations and solvers share. They work on batches of matrices, [batch, rows, columns],
// whatever the dimensions of PyTorch's tensors before the last two.
namespace torch_tpu::lowering {

// --- values

// [..., rows, columns] as [batch, rows, columns].
Value AsBatch(Value x);
// `x` broadcast to the leading dimensions of `like`, all but its last two, then as a batch.
Value BroadcastBatch(Value x, const Dims& like);
// The last two dimensions exchanged, and conjugated.
Value TransposeMatrices(Value x);
Value AdjointOf(Value x);
// [batch, rows, rows]: ones on the diagonal.
Value IdentityMatrices(Builder& builder, DType dtype, int64_t batch, int64_t rows);
// [batch, rows, columns] -> [batch, min(rows, columns)].
Value DiagonalOf(Value x);
// The lower or upper triangle with its diagonal; zeros elsewhere.
Value TriangleOf(Value x, bool lower);
// The lower triangle below a diagonal of ones.
Value UnitLowerTriangleOf(Value x);
// x[b, rows[b, i], :] for indices [batch, count].
Value TakeRows(Value x, Value rows);
// The matrix products of two batches, in full precision.
Value MultiplyMatrices(Value a, Value b);
// X of op(A) X = B, or of X op(A) = B on the right. Reads one triangle of A, without the diagonal
// if that is taken to be ones.
Value SolveTriangle(Value a, Value b, bool left, bool lower, bool unit,
                    stablehlo::TransposeA transpose = stablehlo::TransposeA::kNoTranspose);

// --- for shape functions

// Strides of contiguous matrices stored column by column.
std::vector<int64_t> ColumnMajorStrides(const std::vector<int64_t>& sizes);
// The dimensions of two batches of matrices before the last two, broadcast; `a` is the one
// PyTorch's message names first.
std::vector<int64_t> BroadcastBatchSizes(const ShapeTensor& a, const ShapeTensor& b);
// PyTorch's check that `a` is a batch of square matrices.
void CheckSquare(const ShapeTensor& a, const char* name);

// The dtypes linear algebra is done in.
inline constexpr unsigned kMatrixKinds = kFloat | kComplex;
// Throws NotImplementedError for low-precision floats, as CPU's kernels do.
void CheckFullPrecision(DType dtype, const char* kernel);

}  // namespace torch_tpu::lowering
