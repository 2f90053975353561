"""QR, symmetric eigenproblems, SVD and least squares against CPU PyTorch."""

import pytest
import torch
from agreement import agree_on
from rule_inputs import out_forms, values, with_gradients

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
SHAPES = [(5, 3), (3, 4), (2, 3, 4, 4), (1, 1), (4, 1), (1, 4)]
EMPTY = [(0, 3), (3, 0), (0, 0), (2, 0, 3), (0, 4, 3), (0, 3, 4)]
LA = torch.linalg


def tolerance(dtype):
    return 1e-11 if dtype in (torch.float64, torch.complex128) else 1e-4


def near(actual, expected, dtype):
    slack = tolerance(dtype)
    torch.testing.assert_close(actual, expected, rtol=slack, atol=slack)


def layouts_agree(function, *arguments):
    """Shapes, dtypes and strides of all results, whose signs are free."""

    def described(*arguments):
        return [(list(r.shape), r.stride(), r.dtype) for r in function(*arguments)]

    agree_on(described, *arguments)


def hermitian(*shape, dtype, seed=0):
    x = values(*shape, dtype=dtype, seed=seed)
    return x + x.mH


# --- QR


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_qr(dtype):
    for shape in SHAPES:
        a = values(*shape, dtype=dtype)
        for mode in ("reduced", "complete", "r"):
            agree_on(lambda a, mode=mode: LA.qr(a, mode), a, tolerance=tolerance(dtype))
        agree_on(torch.geqrf, a, tolerance=tolerance(dtype))


def test_qr_of_nothing_and_of_views():
    for shape in EMPTY:
        for mode in ("reduced", "complete", "r"):
            agree_on(lambda a, mode=mode: LA.qr(a, mode), torch.empty(shape))
        agree_on(torch.geqrf, torch.empty(shape))
    x = values(6, 8)
    agree_on(lambda x: LA.qr(x.mT), x, tolerance=1e-5)
    agree_on(lambda x: LA.qr(x[::2, 1:4]), x, tolerance=1e-5)


def test_qr_beyond_the_range_of_squares():
    for scale in (1e-30, 1e30):
        a = values(4, 3)
        agree_on(lambda a, s=scale: LA.qr(a * s, "reduced").R / s, a, tolerance=1e-5)


@pytest.mark.parametrize("dtype", DTYPES[1:3], ids=str)
def test_qr_gradients(dtype):
    for mode, shape in [("reduced", (5, 3)), ("complete", (4, 4)), ("reduced", (2, 3, 3))]:
        a = values(*shape, dtype=dtype)
        agree_on(with_gradients(lambda a, m=mode: LA.qr(a, m)), a, tolerance=tolerance(dtype))


def test_rank_deficient_qr():
    a = torch.ones(4, 3, device="tpu")
    q, r = LA.qr(a, "complete")
    near((q @ r).cpu(), torch.ones(4, 3), torch.float32)
    near((q.mT @ q).cpu(), torch.eye(4), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_of_reflections(dtype):
    slack = tolerance(dtype)
    for shape, count in [((5, 3), 3), ((5, 3), 2), ((4, 4), 4), ((2, 5, 3), 3), ((4, 0), 0)]:
        packed = values(*shape, dtype=dtype)
        taus = values(*shape[:-2], count, dtype=dtype, seed=1)
        agree_on(LA.householder_product, packed, taus, tolerance=slack)
        if count < shape[-1]:
            continue
        batch = shape[:-2]
        for left in (True, False):
            size = (shape[-2], 2) if left else (2, shape[-2])
            other = values(*batch, *size, dtype=dtype, seed=2)
            for transpose in (True, False):
                agree_on(
                    lambda p, t, o, s=(left, transpose): torch.ormqr(p, t, o, *s),
                    packed,
                    taus,
                    other,
                    tolerance=slack,
                )


def test_reflection_errors():
    shapes = [((4,), (2,)), ((3, 4), (3,)), ((4, 3), (4,)), ((2, 4, 3), (3, 3))]
    shapes += [((2, 4, 3), (3,)), ((4, 3), (2, 3))]
    for shape, taus in shapes:
        agree_on(LA.householder_product, torch.ones(shape), torch.ones(taus))
    agree_on(LA.householder_product, torch.ones(4, 3), torch.ones(3).double())
    a, t = torch.ones(4, 3), torch.ones(3)
    agree_on(torch.ormqr, a, t, torch.ones(4))
    agree_on(torch.ormqr, a, t, torch.ones(3, 2))
    agree_on(torch.ormqr, a, t[:2], torch.ones(4, 2))
    agree_on(torch.ormqr, a, t, torch.ones(1, 4, 2))
    agree_on(torch.ormqr, a, t, torch.ones(4, 2).double())
    agree_on(torch.geqrf, t)
    for function in (torch.geqrf, LA.qr, LA.svd, LA.eigh):
        agree_on(function, torch.ones(3, 3, dtype=torch.long))
        agree_on(function, torch.ones(3, 3, dtype=torch.half))


def test_out_forms():
    a = values(4, 3)
    agree_on(out_forms(LA.svdvals, wider=False), a, tolerance=1e-5)
    agree_on(out_forms(LA.eigvalsh, wider=False), hermitian(4, 4, dtype=a.dtype), tolerance=1e-5)

    def qr(a):
        q, r = torch.empty(0, device=a.device), torch.empty(3, 3, device=a.device)
        return LA.qr(a, out=(q, r))

    agree_on(lambda a: [x.contiguous() for x in qr(a)], a, tolerance=1e-5)


# --- eigh


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_eigh(dtype):
    for shape in [(1, 1), (2, 2), (5, 5), (2, 3, 4, 4), (9, 9)]:
        a = hermitian(*shape, dtype=dtype)
        agree_on(LA.eigvalsh, a, tolerance=tolerance(dtype))
        layouts_agree(LA.eigh, a)
        w, v = (x.cpu() for x in LA.eigh(a.to("tpu")))
        near(a @ v, v * w.unsqueeze(-2), dtype)
        near(v.mH @ v, torch.eye(shape[-1], dtype=dtype).expand(shape), dtype)
    for shape in [(0, 0), (2, 0, 0), (0, 3, 3)]:
        agree_on(LA.eigh, torch.empty(shape, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES[:3:2], ids=str)
def test_eigh_reads_one_triangle(dtype):
    a = values(4, 4, dtype=dtype)
    for uplo in "LU":
        agree_on(lambda a, u=uplo: LA.eigvalsh(a, UPLO=u), a, tolerance=1e-5)
    agree_on(lambda a: LA.eigvalsh(a, UPLO="x"), a)
    agree_on(LA.eigvalsh, a[:3])


def test_eigh_of_repeated_and_opposite_eigenvalues():
    plane = torch.tensor([[0.0, 1], [1, 0]])
    special = [torch.zeros(3, 3), torch.eye(4), torch.ones(4, 4), torch.block_diag(plane, plane)]
    special += [torch.diag(torch.tensor([3.0, -3, 1e-20])), -torch.eye(3), torch.eye(3) * 1e-30]
    for a in special:
        agree_on(LA.eigvalsh, a, tolerance=1e-6)
        w, v = (x.cpu() for x in LA.eigh(a.to("tpu")))
        near(v @ torch.diag(w) @ v.mT, a, torch.float32)
        near(v.mT @ v, torch.eye(len(a)), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES[1:3], ids=str)
def test_eigh_gradients(dtype):
    a = hermitian(4, 4, dtype=dtype)

    def invariant(a):  # of the eigenvectors' phases
        w, v = LA.eigh(a)
        return w, (v.abs() ** 3)[:, :2]

    agree_on(with_gradients(invariant), a, tolerance=10 * tolerance(dtype))


# --- SVD


def check_svd(a, slack):
    for full in (True, False):
        u, s, vh = (x.cpu() for x in LA.svd(a.to("tpu"), full_matrices=full))
        k = s.shape[-1]
        scale = s.max().item() or 1.0
        product = (u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :]
        assert ((product - a).abs().max() / scale).item() <= slack
        for q in (u, vh.mH):
            one = torch.eye(q.shape[-1], dtype=a.dtype)
            assert (q.mH @ q - one).abs().max().item() <= slack
        assert (s[..., :-1] >= s[..., 1:]).all() and (s >= 0).all()
        assert ((s - LA.svdvals(a)).abs().max() / scale).item() <= slack


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_svd(dtype):
    torch.tpu.clear_fallbacks()
    slack = 2e-14 if tolerance(dtype) < 1e-8 else 3e-6
    for shape in [*SHAPES, (9, 14)]:
        check_svd(values(*shape, dtype=dtype), slack)
    x = values(5, 3, dtype=dtype)
    steps = 10.0 ** (-5 * torch.arange(3, dtype=torch.float64))
    special = [torch.ones_like(x), torch.zeros_like(x), x * 1e-25, x * 1e25, x * steps.to(dtype)]
    special.append(x[:, :1] * values(1, 3, dtype=dtype))
    for a in special:
        check_svd(a, slack)
    assert torch.tpu.fallbacks() == []


def test_small_singular_values_keep_their_digits():
    # Graded columns: Jacobi's method gives each singular value to full relative accuracy.
    a = values(6, 6, dtype=torch.float64) * 10.0 ** (-2 * torch.arange(6, dtype=torch.float64))
    exact = LA.svdvals(a)
    ratio = LA.svdvals(a.float().to("tpu")).cpu().double() / exact
    assert (ratio - 1).abs().max().item() < 1e-4


def test_svd_layouts():
    for shape in SHAPES + EMPTY:
        for full in (True, False):
            layouts_agree(lambda a, full=full: LA.svd(a, full), torch.ones(shape))
    for shape in EMPTY:
        agree_on(LA.svd, torch.ones(shape))
        agree_on(LA.svdvals, torch.ones(shape))
    agree_on(LA.svdvals, values(6, 8).mT[1::2], tolerance=1e-5)
    agree_on(LA.svd, torch.ones(3))


@pytest.mark.parametrize("dtype", DTYPES[1:3], ids=str)
def test_svd_gradients(dtype):
    def invariant(a):
        u, s, vh = LA.svd(a, full_matrices=False)
        return s, u @ vh, u.abs() ** 3

    for shape in [(4, 3), (3, 4), (2, 3, 3)]:
        a = values(*shape, dtype=dtype, seed=3)
        agree_on(with_gradients(invariant), a, tolerance=100 * tolerance(dtype))


def test_of_what_is_not_finite():
    for bad in (float("nan"), float("inf")):
        a = torch.eye(3, device="tpu") * bad
        for function in (LA.svdvals, LA.eigvalsh):
            with pytest.raises(RuntimeError, match="failed to converge"):
                function(a).cpu()


@pytest.mark.parametrize("dtype", DTYPES[:3:2], ids=str)
def test_what_is_made_of_them(dtype):
    a, low = values(5, 3, dtype=dtype), values(5, 2, dtype=dtype) @ values(2, 4, dtype=dtype)
    for x in (a, a.mT, low):
        agree_on(lambda x: LA.pinv(x), x, tolerance=1e-4)
        agree_on(LA.matrix_rank, x)
        agree_on(lambda x: LA.matrix_norm(x, "nuc"), x, tolerance=1e-5)
        agree_on(lambda x: LA.norm(x, -2), x, tolerance=1e-5)
    agree_on(LA.cond, a, tolerance=1e-5)
    agree_on(with_gradients(LA.pinv), a, tolerance=1e-3)
    square = hermitian(4, 4, dtype=dtype)
    agree_on(lambda x: LA.pinv(x, hermitian=True), square, tolerance=1e-3)
    agree_on(lambda x: LA.matrix_rank(x, hermitian=True), square)


# --- least squares

PAIRS = [((5, 3), (5, 2)), ((5, 3), (5,)), ((3, 5), (3, 2)), ((2, 4, 3), (2, 4)), ((3, 3), (3, 1))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lstsq(dtype):
    for driver in (None, "gels", "gelsy", "gelsd", "gelss"):
        for left, right in PAIRS:
            a, b = values(*left, dtype=dtype), values(*right, dtype=dtype, seed=1)
            agree_on(
                lambda a, b, d=driver: tuple(LA.lstsq(a, b, driver=d)),
                a,
                b,
                tolerance=10 * tolerance(dtype),
            )


def test_lstsq_of_deficient_rank():
    a, b = values(5, 3), values(5, 2, seed=1)
    a[:, 2] = a[:, 0]
    for driver in ("gelsy", "gelsd", "gelss"):
        agree_on(lambda a, b, d=driver: tuple(LA.lstsq(a, b, driver=d)), a, b, tolerance=1e-4)
    agree_on(lambda a, b: tuple(LA.lstsq(a, b, 0.6, driver="gelsd")), a, b, tolerance=1e-4)
    agree_on(lambda a, b: LA.lstsq(a, b, driver="gels").solution, torch.zeros(5, 3), b)
    singular = a.clone()
    singular[:, 2] = 0
    agree_on(lambda a, b: LA.lstsq(a, b, driver="gels"), singular, b)
    agree_on(lambda a, b: LA.lstsq(a, b, driver="gels"), values(2, 5, 3) * singular, b[None])


def test_lstsq_shapes_and_errors():
    shapes = [((0, 3), (0, 2)), ((0, 4, 3), (0, 4, 2)), ((1, 4, 3), (2, 4, 2))]
    shapes += [((4, 3), (2, 4, 2)), ((2, 4, 3), (4, 2)), ((2, 4, 3), (2, 3)), ((4, 3), (3,))]
    shapes += [((4,), (4,)), ((4, 3), ())]
    for driver in ("gels", "gelsy", "gelsd"):
        for left, right in shapes:
            a, b = values(*left).double(), values(*right, seed=1).double()
            agree_on(lambda a, b, d=driver: tuple(LA.lstsq(a, b, driver=d)), a, b, tolerance=1e-9)
    a, b = values(4, 3), values(4, 2)
    agree_on(lambda a, b: LA.lstsq(a, b, driver="qr"), a, b)
    agree_on(LA.lstsq, a, b.double())
    agree_on(LA.lstsq, a.long(), b.long())


def test_lstsq_gradients_and_out():
    a, b = values(4, 3, dtype=torch.float64), values(4, 2, dtype=torch.float64, seed=1)
    agree_on(with_gradients(lambda a, b: LA.lstsq(a, b).solution), a, b, tolerance=1e-10)

    def into(a, b):
        outs = [torch.empty(0, dtype=a.dtype, device=a.device) for _ in range(4)]
        outs[2] = outs[2].long()
        return tuple(LA.lstsq(a, b, driver="gelsd", out=outs))

    agree_on(lambda a, b: [x.contiguous() for x in into(a, b)], a, b, tolerance=1e-10)
