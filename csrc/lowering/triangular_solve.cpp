#include <c10/util/Exception.h>

#include "lowering/matrix.h"

namespace torch_tpu::lowering {
namespace {
using namespace stablehlo;  // NOLINT: rules read like the mathematics

Values LinalgSolveTriangular(Call& c) {
  const Type& out = c.result();
  CheckFullPrecision(out.dtype, "triangular_solve_cpu");
  Value a = BroadcastBatch(c.tensor("self"), out.dims);
  Value b = BroadcastBatch(Convert(c.tensor("B"), out.dtype), out.dims);
  Value x = SolveTriangle(a, b, c.boolean("left"), !c.boolean("upper"), c.boolean("unitriangular"));
  return {Reshape(x, out.dims)};
}

std::vector<ResultSpec> LinalgSolveTriangularShape(const ShapeCall& s) {
  constexpr char kName[] = "linalg.solve_triangular";
  const ShapeTensor &a = s.tensor("self"), &b = s.tensor("B");
  const bool left = s.argument("left").toBool();
  CheckSquare(a, kName);
  TORCH_CHECK(b.sizes.size() >= 2, kName, ": The input tensor B must have at least 2 dimensions.");
  const int64_t n = a.sizes.back(), rows = b.sizes[b.sizes.size() - 2], columns = b.sizes.back();
  TORCH_CHECK((left ? rows : columns) == n, kName,
              ": Incompatible shapes of A and B for the equation ", left ? "AX = B" : "XA = B",
              " (", n, "x", n, " and ", rows, "x", columns, ")");
  std::vector<int64_t> sizes = BroadcastBatchSizes(b, a);
  sizes.insert(sizes.end(), {rows, columns});
  return {{.dtype = a.dtype, .sizes = sizes, .strides = ColumnMajorStrides(sizes)}};
}
TPU_RULE({.op = "linalg_solve_triangular",
          .lower = &LinalgSolveTriangular,
          .shape = &LinalgSolveTriangularShape});

// Returns the broadcast coefficients besides.
Values TriangularSolveRule(Call& c) {
  const Type &solution = c.result(0), &coefficients = c.result(1);
  CheckFullPrecision(solution.dtype, "triangular_solve_cpu");
  Value a = BroadcastBatch(c.tensor("A"), coefficients.dims);
  Value b = BroadcastBatch(c.tensor("self"), solution.dims);
  Value x =
      SolveTriangle(a, b, true, !c.boolean("upper"), c.boolean("unitriangular"),
                    c.boolean("transpose") ? TransposeA::kTranspose : TransposeA::kNoTranspose);
  return {Reshape(x, solution.dims), Reshape(a, coefficients.dims)};
}
TPU_RULE({.op = "triangular_solve", .lower = &TriangularSolveRule});

}  // namespace
}  // namespace torch_tpu::lowering
