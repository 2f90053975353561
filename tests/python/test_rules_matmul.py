"""Matrix products against CPU PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from agreement import agree_on
from rule_inputs import TOLERANCE, out_forms, values, with_gradients, words

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32]
DTYPES += [torch.uint8, torch.complex64]

SHAPES = {
    "mm": ([3, 4], [4, 5]),
    "bmm": ([2, 3, 4], [2, 4, 5]),
    "mv": ([3, 4], [4]),
    "dot": ([4], [4]),
    "vdot": ([4], [4]),
    "outer": ([3], [4]),
    "inner": ([2, 4], [3, 4]),
    "kron": ([2, 3], [3, 2]),
}


def tolerance_of(dtype):
    return 2 * TOLERANCE.get(dtype, 0)


@pytest.mark.parametrize("name", SHAPES)
def test_products(name):
    function = getattr(torch, name)
    first, second = SHAPES[name]
    for dtype in DTYPES:
        a = values(*first, dtype=dtype, low=0, high=5)
        b = values(*second, dtype=dtype, low=0, high=5, seed=1)
        agree_on(function, a, b, tolerance=tolerance_of(dtype))
    a, b = values(*first), values(*second, seed=1)
    agree_on(with_gradients(function), a, b, tolerance=1e-5)
    agree_on(
        with_gradients(function), a.to(torch.complex64) * 1j, b.to(torch.complex64), tolerance=1e-5
    )
    agree_on(function, a, b.double())
    agree_on(out_forms(function, wider=False), a, b, tolerance=1e-5)


@pytest.mark.parametrize("name", words("mm bmm"))
def test_layouts(name):
    function = getattr(torch, name)
    first, second = SHAPES[name]
    a, b = values(*first), values(*second, seed=1)
    square = values(*first[:-2], 6, 6)

    def run(a, b, s):
        return [
            function(a.mT.contiguous().mT, b.mT.contiguous().mT),
            function(b.mT, a.mT),
            function(s[..., ::2], s[..., :3, :]),
            function(s[..., :1].expand(s.shape), s),
            function(a[..., :0], b[..., :0, :]),  # zeros
            function(a[..., :0, :], b),
            function(s, s),
        ]

    agree_on(run, a, b, square, tolerance=1e-5)
    agree_on(function, a, a)
    agree_on(function, a[0], b)


@pytest.mark.parametrize(
    "shapes",
    [
        ([4], [4]),
        ([3, 4], [4]),
        ([4], [4, 5]),
        ([2, 3, 4], [4]),
        ([4], [2, 4, 5]),
        ([2, 3, 4], [4, 5]),
        ([3, 4], [2, 4, 5]),
        ([2, 1, 3, 4], [5, 4, 2]),
        ([0, 3, 4], [4, 5]),
        ([2, 3, 0], [2, 0, 4]),
        ([1, 3, 4], [6, 4, 5]),
        ([2, 3], [4, 5]),
        ([2, 3, 4], [3, 4, 5]),
    ],
)
def test_matmul(shapes):
    a, b = values(*shapes[0]), values(*shapes[1], seed=1)
    agree_on(with_gradients(torch.matmul), a, b, tolerance=1e-5)


ADDED = {
    "addmm": ([3, 5], [3, 4], [4, 5]),
    "addmv": ([3], [3, 4], [4]),
    "addr": ([3, 4], [3], [4]),
    "baddbmm": ([2, 3, 5], [2, 3, 4], [2, 4, 5]),
    "addbmm": ([3, 5], [2, 3, 4], [2, 4, 5]),
}


@pytest.mark.parametrize("name", ADDED)
def test_sums_of_products(name):
    function, in_place = getattr(torch, name), getattr(torch.Tensor, name + "_")
    start, first, second = ADDED[name]
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        c = values(*start, dtype=dtype, low=0, high=4)
        a = values(*first, dtype=dtype, low=0, high=4, seed=1)
        b = values(*second, dtype=dtype, low=0, high=4, seed=2)
        for beta, alpha in ((1, 1), (2, -1), (0, 3), (1, 0)):
            agree_on(
                lambda c, a, b, beta=beta, alpha=alpha: function(c, a, b, beta=beta, alpha=alpha),
                c,
                a,
                b,
                tolerance=2 * tolerance_of(dtype),
            )
    c, a, b = (values(*s, seed=i) for i, s in enumerate(ADDED[name]))
    agree_on(
        with_gradients(lambda c, a, b: function(c, a, b, beta=0.5, alpha=2)),
        c,
        a,
        b,
        tolerance=1e-5,
    )
    agree_on(function, c[..., :1], a, b, tolerance=1e-5)
    agree_on(function, c.flatten()[0], a, b, tolerance=1e-5)

    def run(c, a, b):
        c = c.clone()
        return in_place(c, a, b, beta=0.5), c

    agree_on(run, c, a, b, tolerance=1e-5)
    agree_on(out_forms(function, wider=False), c, a, b, tolerance=1e-5)
    nan = torch.full(start, float("nan"))
    agree_on(lambda c, a, b: function(c, a, b, beta=0), nan, a, b, tolerance=1e-5)
    agree_on(lambda c, a, b: function(c[..., :2], a, b), c, a, b)


def test_linear():
    x, weight, bias = values(2, 3, 4), values(5, 4, seed=1), values(5, seed=2)
    agree_on(with_gradients(F.linear), x, weight, bias, tolerance=1e-5)
    agree_on(with_gradients(F.linear), x[0], weight, tolerance=1e-5)
    agree_on(F.linear, x[0, 0], weight, bias, tolerance=1e-5)
    agree_on(F.linear, x[:, :0], weight, bias)
    agree_on(F.linear, x.transpose(0, 1), weight, bias, tolerance=1e-5)
    half = [t.bfloat16() for t in (x, weight, bias)]
    agree_on(F.linear, *half, tolerance=3e-2)
    agree_on(F.linear, x, weight[:, :3])
    agree_on(F.linear, x, weight.bfloat16())


@pytest.mark.parametrize(
    "equation",
    [
        "ij,jk->ik",
        "ij,jk",
        "bij,bjk->bik",
        "ij,kj->ik",
        "ii->i",
        "ii",
        "ij->ji",
        "ij->",
        "i,j->ij",
        "bhqd,bhkd->bhqk",
        "...ij,...jk->...ik",
        "ij,ij->ij",
        "abc,cd,de->abe",
    ],
)
def test_einsum(equation):
    sizes = dict(zip("ijkbhqdace", (3, 3, 4, 2, 2, 3, 4, 2, 3, 5), strict=True))
    shapes = [
        [sizes[c] for c in term.replace("...", "b")] for term in equation.split("->")[0].split(",")
    ]
    tensors = [values(*s, seed=i) for i, s in enumerate(shapes)]
    agree_on(with_gradients(lambda *t: torch.einsum(equation, *t)), *tensors, tolerance=1e-5)


def test_others():
    a, b = values(2, 3, 4), values(4, 3, 5, seed=1)
    agree_on(
        with_gradients(lambda a, b: torch.tensordot(a, b, ([1, 2], [1, 0]))), a, b, tolerance=1e-5
    )
    agree_on(with_gradients(lambda a, b: torch.tensordot(a, b, 1)), a, b, tolerance=1e-5)
    x, y, w, bias = values(3, 4), values(3, 5, seed=1), values(2, 4, 5, seed=2), values(2, seed=3)
    agree_on(with_gradients(F.bilinear), x, y, w, bias, tolerance=1e-5)
    agree_on(with_gradients(lambda a: torch.linalg.multi_dot([a, a.mT, a])), x, tolerance=1e-5)
    agree_on(with_gradients(lambda a: torch.linalg.matrix_power(a, 3)), x[:, :3], tolerance=1e-4)
    agree_on(with_gradients(torch.linalg.cross), x[:, :3], y[:, :3], tolerance=1e-5)
    agree_on(with_gradients(torch.linalg.vecdot), x, x.flip(0), tolerance=1e-5)
    agree_on(lambda a: torch.chain_matmul(a, a.mT), x, tolerance=1e-5)
    agree_on(lambda a, b: torch.cdist(a, b[:, :4]), x, y, tolerance=1e-5)


def test_narrow_floats_accumulate_in_float32():
    a, b = torch.full([1, 4096], 0.1).bfloat16(), torch.full([4096, 1], 1.0).bfloat16()
    agree_on(torch.mm, a, b, tolerance=1e-2)
    a, b = torch.full([1, 64], 40.0).half(), torch.full([64, 1], 40.0).half()  # inf
    agree_on(torch.mm, a, b)


def test_wide_integers_keep_all_digits():
    agree_on(torch.mm, torch.tensor([[2**40, 3]]), torch.tensor([[5], [2**41 + 1]]))


def test_infinities():
    a = torch.tensor([[1.0, float("inf")], [0.0, float("nan")]])
    agree_on(torch.mm, a, a)
    agree_on(torch.mm, torch.zeros(2, 2), a)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_mm(dtype):
    x, w = values(10, 16, dtype=dtype), values(3, 16, 24, dtype=dtype, seed=1)
    offsets = torch.tensor([4, 4, 10], dtype=torch.int32)

    def run(x, w, o):
        return with_gradients(lambda x, w: F.grouped_mm(x, w, offs=o))(x, w)

    agree_on(run, x, w, offsets, tolerance=4e-2 if dtype is torch.bfloat16 else 1e-5)

    def transposed(x, w, o):
        return F.grouped_mm(x, w.transpose(1, 2).contiguous().transpose(1, 2), offs=o)

    agree_on(transposed, x, w, offsets, tolerance=4e-2 if dtype is torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("shapes", [((), (3,)), ((), ()), ((2, 3), ()), ((3,), (3,))])
def test_mv_of_other_ranks(shapes):
    agree_on(torch.mv, *(torch.ones(shape) for shape in shapes))
