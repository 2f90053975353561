"""Factorizations, solvers, determinants and matrix exponentials against CPU PyTorch."""

import warnings

import pytest
import torch
from agreement import agree, agree_on, moved
from rule_inputs import out_forms, values, with_gradients, words
from torch import linalg

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
INDEFINITE = torch.tensor([[4.0, 2.0, 0.0], [2.0, 1.0, 3.0], [0.0, 3.0, 1.0]])
SINGULAR = torch.tensor([[1.0, 2.0], [2.0, 4.0]])


def tolerance_of(dtype):
    return 1e-4 if dtype in (torch.float32, torch.complex64) else 1e-11


def square(*shape, dtype=torch.float32, seed=0):
    """Matrices that are far from singular but need their rows exchanged."""
    x = values(*shape, dtype=dtype, seed=seed)
    return x + 3 * torch.eye(shape[-1], dtype=dtype).flip(0).roll(1, 0)


def positive(*shape, dtype=torch.float32):
    x = values(*shape, dtype=dtype)
    return x @ x.mH + torch.eye(shape[-1], dtype=dtype)


def plain(function):
    """`function`, of whose complex results the layout may differ: that of the conjugated
    transposes that LAPACK is given on the CPU."""

    def run(*arguments):
        results = function(*arguments)
        return [resolved(r) for r in results]

    def resolved(x):
        if not isinstance(x, torch.Tensor):
            return [resolved(y) for y in x]
        return x.resolve_conj().contiguous() if x.is_complex() else x

    return run


def beside_identity(x):
    return torch.stack([torch.eye(x.shape[-1]), x])


# --- Cholesky


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(dtype, upper):
    tolerance = tolerance_of(dtype)
    x, b = positive(2, 4, 4, dtype=dtype), values(2, 4, 3, dtype=dtype, seed=1)
    # The other triangle is not read.
    one_sided = x.triu() + 7 * torch.ones_like(x).tril(-1)
    one_sided = one_sided if upper else one_sided.mH

    def run(x, one_sided, b):
        factor, info = linalg.cholesky_ex(x, upper=upper)
        return [
            factor,
            info,
            linalg.cholesky_ex(one_sided, upper=upper),
            linalg.cholesky(x[1].mT, upper=upper),
            torch.cholesky_inverse(factor, upper=upper),
            torch.cholesky_solve(b, factor, upper=upper),
            torch.cholesky_solve(b[:1], factor[0], upper=upper),
        ]

    agree_on(run, x, one_sided, b, tolerance=10 * tolerance)
    agree_on(with_gradients(lambda x: linalg.cholesky(x, upper=upper)), x, tolerance=10 * tolerance)
    agree_on(
        with_gradients(lambda b, x: torch.cholesky_solve(b, x, upper)),
        b,
        linalg.cholesky(x, upper=upper),
        tolerance=10 * tolerance,
    )


def test_position_of_the_failing_minor():
    zero_last = torch.ones(3, 3) + torch.tensor([3.0, 3.0, 0.0]).diag()
    zero_last[2, 2] = 0.25 - 0.05
    negative_first = -torch.eye(3)
    nan = torch.eye(3)
    nan[1, 1] = torch.nan
    x = torch.stack([INDEFINITE, torch.eye(3), negative_first, nan, torch.zeros(3, 3), zero_last])
    for dtype in DTYPES:
        agree_on(lambda x: linalg.cholesky_ex(x).info, x.to(dtype))
        agree_on(lambda x: linalg.cholesky_ex(x[:, :2, :2], upper=True).info, x.to(dtype))
    # Its neighbours are factorized, and it as far as it goes.
    agree_on(lambda x: linalg.cholesky_ex(x).L[1], x)
    agree_on(lambda x: linalg.cholesky_ex(x).L[0, :, 0], x)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        linalg.cholesky,
        torch.cholesky,
        lambda x: linalg.cholesky_ex(x, check_errors=True),
        lambda x: torch.cholesky(x, upper=True),
    ],
)
def test_indefinite_matrices_are_errors(function, batched):
    x = beside_identity(INDEFINITE) if batched else INDEFINITE
    expected = "leading minor of order 2 is not positive-definite"
    with pytest.raises(linalg.LinAlgError, match=expected) as raised:
        function(x.to("tpu"))
    with pytest.raises(linalg.LinAlgError) as on_cpu:
        function(x)
    assert str(raised.value) == str(on_cpu.value)
    agree_on(lambda x: linalg.cholesky(x), torch.eye(3))  # works afterwards


# --- triangular matrices


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangular(dtype, upper, unit):
    tolerance = 10 * tolerance_of(dtype)
    a = values(2, 4, 4, dtype=dtype, low=0.5, high=1) + torch.eye(4, dtype=dtype)
    b = values(2, 4, 3, dtype=dtype, seed=1)
    solve = linalg.solve_triangular

    def run(a, b):
        return [
            solve(a, b, upper=upper, unitriangular=unit),
            solve(a, b.mT, upper=upper, unitriangular=unit, left=False),
            solve(a[0].mT, b, upper=upper, unitriangular=unit),
            solve(a.unsqueeze(1), b, upper=upper, unitriangular=unit),
            solve(a.mH[:, :2, :2], b[:, ::3], upper=upper, unitriangular=unit),
            solve(a, b[..., :0], upper=upper, unitriangular=unit),
        ]

    agree_on(plain(run), a, b, tolerance=tolerance)
    for left in (True, False):
        # The gradient of a triangle has a zero triangle.
        function = with_gradients(
            lambda a, b, left=left: solve(a, b, upper=upper, unitriangular=unit, left=left)
        )
        agree_on(plain(function), a, b if left else b.mT, tolerance=tolerance)
    for transpose in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            agree_on(
                lambda b, a, t=transpose: torch.triangular_solve(b, a, upper, t, unit),
                b[:, None],
                a,
                tolerance=tolerance,
            )


# --- LU


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [[4, 4], [5, 3], [3, 5], [2, 3, 4, 4], [1, 1], [2, 5, 2]])
def test_lu(dtype, shape):
    tolerance = tolerance_of(dtype)
    x = values(*shape, dtype=dtype)

    def run(x):
        lu, pivots, _ = linalg.lu_factor_ex(x)
        return [
            linalg.lu_factor_ex(x),
            linalg.lu_factor(x.mT),
            linalg.lu(x),
            torch.lu_unpack(lu, pivots),
            torch.lu_unpack(lu, pivots, unpack_data=False),
            torch.lu_unpack(lu, pivots, unpack_pivots=False),
        ]

    agree_on(run, x, tolerance=tolerance)


def test_lu_gradients():
    for shape in ([2, 4, 4], [5, 3], [3, 5]):
        x = square(*shape) if shape[-1] == shape[-2] else values(*shape)
        agree_on(with_gradients(lambda x: linalg.lu(x)[1:]), x, tolerance=1e-3)
        agree_on(with_gradients(lambda x: linalg.lu_factor(x)[0]), x, tolerance=1e-3)


@pytest.mark.parametrize("shape", [[150, 150], [140, 300], [300, 140], [2, 257, 200]])
def test_lu_by_panels(shape):
    x = values(*shape, dtype=torch.float64)
    agree_on(linalg.lu_factor_ex, x, tolerance=1e-10)
    agree_on(linalg.lu, x, tolerance=1e-10)
    if shape[-2] >= shape[-1]:
        x[..., :, 135] = 0  # beyond the first panel
        agree_on(lambda x: linalg.lu_factor_ex(x).info, x)


def test_lu_of_singular_matrices():
    x = torch.stack([torch.zeros(3, 3), torch.ones(3, 3), torch.eye(3), torch.eye(3).flip(0)])
    agree_on(linalg.lu_factor_ex, x)
    agree_on(lambda x: linalg.lu_factor_ex(x.to(torch.complex64)), x)
    nan = x.clone()
    nan[:, 1] = torch.nan
    agree_on(lambda x: linalg.lu_factor_ex(x).info, nan)


def test_lu_without_pivoting():
    """Documented for accelerators; CPU PyTorch refuses it."""
    x = square(2, 4, 4) + 10 * torch.eye(4)
    lu, pivots, info = linalg.lu_factor_ex(x.to("tpu"), pivot=False)
    assert pivots.cpu().tolist() == [[1, 2, 3, 4]] * 2
    assert info.cpu().tolist() == [0, 0]
    lower, upper = lu.cpu().tril(-1) + torch.eye(4), lu.cpu().triu()
    torch.testing.assert_close(lower @ upper, x, rtol=1e-5, atol=1e-5)
    permutation, lower, upper = linalg.lu(x.to("tpu"), pivot=False)
    assert permutation.shape == (0,)
    torch.testing.assert_close((lower @ upper).cpu(), x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("adjoint", [False, True])
def test_lu_solve(dtype, adjoint):
    tolerance = 10 * tolerance_of(dtype)
    a, b = square(2, 4, 4, dtype=dtype), values(2, 4, 3, dtype=dtype, seed=1)

    def run(a, b):
        lu, pivots = linalg.lu_factor(a)
        return [
            linalg.lu_solve(lu, pivots, b, adjoint=adjoint),
            linalg.lu_solve(lu, pivots, b.mT, left=False, adjoint=adjoint),
            linalg.lu_solve(lu[0], pivots[0], b, adjoint=adjoint),
            linalg.lu_solve(lu, pivots, b[:1, :, :1].mT.contiguous().mT, adjoint=adjoint),
        ]

    agree_on(plain(run), a, b, tolerance=tolerance)
    function = with_gradients(
        lambda a, b: linalg.lu_solve(*linalg.lu_factor(a), b, adjoint=adjoint)
    )
    agree_on(plain(function), a, b, tolerance=tolerance)


def test_lu_solve_of_several_right_sides():
    """CPU PyTorch mixes up the pivots here."""
    a, b = square(2, 4, 4), values(3, 1, 4, 3, seed=1)
    lu, pivots = linalg.lu_factor(a.to("tpu"))
    x = linalg.lu_solve(lu, pivots, b.to("tpu"))
    torch.testing.assert_close(a @ x.cpu(), b.expand(3, 2, 4, 3), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pivots", [[0, 2], [1, 3]])
@pytest.mark.parametrize(
    "function",
    [lambda lu, p: torch.lu_unpack(lu, p)[0].cpu(), lambda lu, p: linalg.lu_solve(lu, p, lu).cpu()],
)
def test_pivots_out_of_range(function, pivots):
    lu, pivots = torch.eye(2), torch.tensor(pivots, dtype=torch.int32)
    agree(lambda device: function(lu.to(device), pivots.to(device)))


# --- determinants


@pytest.mark.parametrize("name", words("det slogdet"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_determinants(name, dtype):
    function, tolerance = getattr(linalg, name), 10 * tolerance_of(dtype)
    x = square(2, 4, 4, dtype=dtype)

    def run(x):
        return [function(x), function(x.mT), function(x[0, :1, :1]), function(x[:, :0, :0])]

    agree_on(run, x, tolerance=tolerance)
    # Which matrix is factorized depends on the layout, and the gradients on that.
    for layout in (lambda x: x, lambda x: x.mT, lambda x: x[:, ::2, 1:3]):
        agree_on(with_gradients(lambda x, f=layout: function(f(x))), x, tolerance=tolerance)
        operator = getattr(torch.ops.aten, f"_linalg_{name}")
        agree_on(lambda x, f=layout, o=operator: o(f(x)), x, tolerance=tolerance)


def test_determinants_of_singular_matrices():
    x = torch.stack([SINGULAR, torch.zeros(2, 2), torch.eye(2).flip(0)])
    agree_on(linalg.det, x)
    agree_on(linalg.slogdet, x)
    agree_on(torch.logdet, x)
    agree_on(with_gradients(linalg.det), x[:1], tolerance=1e-4)


# --- solutions and inverses

RIGHT_SIDES = {
    "vector": lambda b: b[0, :, 0],
    "vectors": lambda b: b[:, :, 0],
    "matrix": lambda b: b[0],
    "matrices": lambda b: b,
    "strided": lambda b: b[:, :, ::2],
    "more": lambda b: b.unsqueeze(1),
    "empty": lambda b: b[:, :, :0],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("side", RIGHT_SIDES)
def test_solve(dtype, side):
    tolerance = 10 * tolerance_of(dtype)
    a, b = square(2, 4, 4, dtype=dtype), values(2, 4, 3, dtype=dtype, seed=1)

    def run(a, b):
        right = RIGHT_SIDES[side](b)
        results = [linalg.solve(a, right), linalg.solve(a.mT, right), linalg.solve_ex(a, right)]
        if side in ("matrix", "matrices"):
            results.append(linalg.solve(a, right.mT, left=False))
            results.append(linalg.solve(a[0].mH, right.mT, left=False))
            results.append(torch.ops.aten._linalg_solve_ex(a, right))
        return results

    agree_on(plain(run), a, b, tolerance=tolerance)
    for left in (True, False) if side == "matrices" else (True,):

        def solve(a, b, left=left):
            right = RIGHT_SIDES[side](b)
            return linalg.solve(a, right if left else right.mT, left=left)

        agree_on(plain(with_gradients(solve)), a, b, tolerance=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_inverse(dtype):
    tolerance = 10 * tolerance_of(dtype)
    x = square(2, 4, 4, dtype=dtype)

    def run(x):
        return [linalg.inv(x), linalg.inv_ex(x[0].mT), x.inverse(), linalg.inv(x[:, ::2, 1:3])]

    agree_on(run, x, tolerance=tolerance)
    agree_on(with_gradients(linalg.inv), x, tolerance=tolerance)
    agree_on(lambda x: linalg.matrix_power(x, -2), x, tolerance=tolerance)
    agree_on(lambda x: linalg.tensorinv(x[0].reshape(2, 2, 4)), x, tolerance=tolerance)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        linalg.inv,
        lambda x: linalg.inv_ex(x, check_errors=True),
        lambda x: linalg.solve(x, x),
        lambda x: linalg.solve_ex(x, x, check_errors=True),
        linalg.lu_factor,
        lambda x: linalg.lu_factor_ex(x, check_errors=True),
        lambda x: torch.cholesky_inverse(x - SINGULAR.to(x.device)),
    ],
)
def test_singular_matrices_are_errors(function, batched):
    x = beside_identity(SINGULAR) if batched else SINGULAR
    with pytest.raises(RuntimeError) as on_cpu:
        function(x)
    with pytest.raises(type(on_cpu.value)) as raised:
        function(x.to("tpu"))
    assert str(raised.value) == str(on_cpu.value)


# --- matrix exponentials


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_exp(dtype):
    tolerance = tolerance_of(dtype)
    x = values(6, 4, 4, dtype=dtype, low=-1, high=1)
    scales = torch.tensor([0, 1e-6, 0.01, 0.3, 1, 3]).reshape(6, 1, 1).to(dtype)
    agree_on(lambda x, s: linalg.matrix_exp(x * s), x, scales, tolerance=tolerance)
    agree_on(lambda x: torch.matrix_exp(x[0].mT), x, tolerance=tolerance)
    agree_on(lambda x: x[:, ::2, ::2].matrix_exp(), x, tolerance=tolerance)
    agree_on(lambda x: [linalg.matrix_exp(x[:0]), linalg.matrix_exp(x[:, :0, :0])], x)
    agree_on(lambda x: linalg.matrix_exp(x[:, :1, :1]), x, tolerance=tolerance)
    agree_on(with_gradients(linalg.matrix_exp), x, tolerance=10 * tolerance)


def test_matrix_exp_of_large_and_nonfinite_matrices():
    rotation = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64) * 50
    agree_on(linalg.matrix_exp, rotation, tolerance=1e-11)
    x = torch.stack([torch.full((2, 2), torch.inf), torch.full((2, 2), torch.nan), torch.eye(2)])
    agree_on(linalg.matrix_exp, x, tolerance=1e-6)


# --- everything


def test_out_forms():
    tolerance = 1e-4
    a, b = square(4, 4), values(4, 3, seed=1)
    agree_on(out_forms(linalg.inv, wider=False), a, tolerance=tolerance)
    agree_on(out_forms(linalg.solve, wider=False), a, b, tolerance=tolerance)
    agree_on(out_forms(linalg.cholesky, wider=False), positive(4, 4), tolerance=tolerance)
    agree_on(out_forms(torch.cholesky, wider=False), positive(4, 4), tolerance=tolerance)
    agree_on(
        out_forms(torch.cholesky_inverse, wider=False),
        linalg.cholesky(positive(4, 4)),
        tolerance=0.01,
    )
    agree_on(out_forms(linalg.det, wider=False), a, tolerance=tolerance)

    def triangular(a, b):
        outs = [torch.zeros_like(b), torch.zeros_like(b.mT.contiguous()).mT]
        for out in outs:
            linalg.solve_triangular(a, b, upper=True, out=out)
        return outs

    agree_on(triangular, a + 3 * torch.eye(4), b, tolerance=tolerance)

    def several(a):
        outs = [torch.empty(0, device=a.device) for _ in range(3)]
        linalg.lu(a, out=outs)
        ints = [torch.empty(0, dtype=torch.int32, device=a.device) for _ in range(2)]
        factors = torch.empty(0, device=a.device)
        linalg.lu_factor_ex(a, check_errors=True, out=(factors, *ints))
        return outs, ints, factors

    agree_on(several, a, tolerance=tolerance)
    with pytest.raises(linalg.LinAlgError, match="inv_ex"):
        singular, info = SINGULAR.to("tpu"), torch.empty(0, dtype=torch.int32, device="tpu")
        linalg.inv_ex(singular, check_errors=True, out=(torch.empty_like(singular), info))


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize(
    "function",
    [
        linalg.cholesky_ex,
        torch.cholesky,
        torch.cholesky_inverse,
        linalg.lu,
        linalg.lu_factor_ex,
        linalg.det,
        linalg.slogdet,
        linalg.inv_ex,
        lambda x: linalg.solve_ex(x, x),
        lambda x: linalg.solve_triangular(x, x, upper=True),
        lambda x: linalg.lu(x[..., :2]),
        lambda x: linalg.lu_factor_ex(x[..., :0]),
    ],
)
def test_empty(function, rows):
    x = torch.ones(5, 3, 3)[: 5 if rows == 0 else 0, :rows, :rows]
    agree_on(function, x.clone())
    agree_on(function, x[0] if rows == 0 else x)


BAD_ARGUMENTS = {
    "dtype": lambda f, x: f(x.long()),
    "half": lambda f, x: f(x.half()),
    "vector": lambda f, x: f(x[0]),
    "rectangle": lambda f, x: f(x[:1]),
}


@pytest.mark.parametrize("argument", BAD_ARGUMENTS)
@pytest.mark.parametrize(
    "function",
    [
        linalg.cholesky,
        torch.cholesky,
        torch.cholesky_inverse,
        lambda x: torch.cholesky_solve(x, x),
        lambda x: linalg.solve_triangular(x, x, upper=True),
        lambda x: linalg.solve_triangular(x, torch.ones_like(x, dtype=torch.float64), upper=False),
        linalg.det,
        linalg.inv,
        lambda x: linalg.solve(x, x),
        lambda x: linalg.lu_solve(x, torch.ones_like(x[0], dtype=torch.int32), x),
    ],
)
def test_bad_arguments(function, argument):
    x = torch.eye(2)
    agree(lambda device: BAD_ARGUMENTS[argument](function, moved(x, device)))


def test_more_bad_arguments():
    x = torch.eye(2)
    for function in (
        lambda x: linalg.solve_triangular(x, torch.ones_like(x)[0], upper=True),
        lambda x: linalg.solve_triangular(x, x.new_ones(3, 3), upper=True),
        lambda x: linalg.solve_triangular(x, x.new_ones(3, 3), upper=True, left=False),
        lambda x: linalg.solve_triangular(x.expand(2, 2, 2), x.expand(3, 2, 2), upper=True),
        lambda x: linalg.matrix_exp(x.long()),
        lambda x: linalg.matrix_exp(x[0]),
        lambda x: linalg.matrix_exp(x[:1]),
        lambda x: torch.lu_unpack(x, x[0].long()),
        lambda x: linalg.lu(x.half()),
        lambda x: linalg.lu(x[0]),
        lambda x: torch.cholesky(x, out=x.long()),
    ):
        agree(lambda device, f=function: f(moved(x, device)))
