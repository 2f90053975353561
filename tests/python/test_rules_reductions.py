"""Reductions and scans against CPU PyTorch."""

import math

import pytest
import torch
from agreement import agree_on
from rule_inputs import all_layouts, out_forms, values, with_gradients, words

NUMERIC = words(
    "sum mean prod amax amin var std nansum nanmean logsumexp norm count_nonzero all any"
)
DIMS = [None, 0, -1, (0, 2), (2, 0, 1)]


def reduction(name, dim=None, keepdim=False):
    """The reduction over `dim` as a function of a tensor."""
    function = getattr(torch, name)
    if name == "logsumexp" and dim is None:
        return lambda x: function(x, tuple(range(x.dim())), keepdim)
    if name == "prod" and isinstance(dim, tuple):
        dim = dim[0]
    if name == "count_nonzero":
        return lambda x: function(x, dim)
    if name == "norm":
        return lambda x: function(x, 2, dim, keepdim)
    if dim is None:
        return lambda x: function(x)
    return lambda x: function(x, dim, keepdim=keepdim)


@pytest.mark.parametrize("name", NUMERIC)
def test_dims(name):
    x = values(3, 4, 5)
    x[1, 2, 3] = 0
    for dim in DIMS:
        for keepdim in (False, True):
            agree_on(reduction(name, dim, keepdim), x, tolerance=1e-5)
    agree_on(reduction(name, 3), x)  # out of range
    if name not in ("prod", "norm"):
        agree_on(reduction(name, (0, -3)), x)  # twice the same


@pytest.mark.parametrize("name", NUMERIC)
def test_layouts(name):
    def run(x):
        # Without a dimension amax and amin refuse to reduce nothing.
        refused = x.numel() == 0 and name in ("amax", "amin")
        return x.sum() if refused else reduction(name)(x)

    agree_on(all_layouts(run), values(4, 6), tolerance=1e-5)


@pytest.mark.parametrize("name", NUMERIC)
def test_dtypes(name):
    for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32):
        x = values(3, 4, dtype=dtype, low=-3, high=4)
        agree_on(reduction(name, 1), x, tolerance=2e-2 if dtype.itemsize == 2 else 1e-6)
    for dtype in (torch.uint8, torch.bool):
        x = values(3, 4, dtype=dtype, low=0, high=4)
        agree_on(reduction(name, 1), x, tolerance=1e-6)


@pytest.mark.parametrize("name", NUMERIC)
def test_special_values(name):
    x = torch.tensor([[1.0, math.nan, 2.0], [math.inf, 1.0, 3.0], [-math.inf, 2.0, 1.0], [0, 0, 0]])
    agree_on(reduction(name, 1), x, tolerance=1e-6)
    agree_on(reduction(name, 0), x, tolerance=1e-6)


@pytest.mark.parametrize("name", NUMERIC)
def test_of_nothing(name):
    for dim in (0, 1, -1, None):
        agree_on(reduction(name, dim), values(2, 0, 3))
    agree_on(reduction(name, 0), values())
    agree_on(reduction(name, 0, True), values())


@pytest.mark.parametrize("name", words("sum mean prod nansum cumsum cumprod"))
def test_result_dtype(name):
    function = getattr(torch, name)
    for dtype in (torch.float64, torch.int32, torch.bfloat16):
        for x in (values(3, 4), values(3, 4, dtype=torch.int64), values(3, 4, dtype=torch.bool)):
            tolerance = 1e-2 if dtype is torch.bfloat16 else 1e-5
            agree_on(lambda x, dtype=dtype: function(x, 1, dtype=dtype), x, tolerance=tolerance)


@pytest.mark.parametrize("name", words("sum mean prod amax var std logsumexp norm nansum"))
def test_gradients(name):
    x = values(3, 4)
    for dim in (None, 1):
        agree_on(with_gradients(reduction(name, dim)), x, tolerance=2e-5)
    agree_on(with_gradients(reduction(name, 0, True)), x.mT, tolerance=2e-5)


@pytest.mark.parametrize("name", words("sum mean prod amax amin all any var nansum norm"))
def test_out(name):
    function = getattr(torch, name)
    middle = (2,) if name == "norm" else ()

    def plain(x, **out):
        return function(x, *middle, 1, **out)

    wider = name not in ("amax", "amin", "all", "any", "norm", "mean", "var")
    agree_on(out_forms(plain, wider), values(3, 4), tolerance=1e-5)


def test_sums_of_narrow_floats_accumulate_in_float32():
    x = torch.full([2, 4096], 0.1).bfloat16()
    for name in ("sum", "mean"):
        agree_on(reduction(name, 1), x, tolerance=1e-2)
    x = torch.full([4096], 30.0).half()  # the sum is beyond float16
    agree_on(lambda x: [x.sum(), x.mean(), x.sum(dtype=torch.float32)], x, tolerance=1e-3)


def test_integer_sums_are_wide():
    x = torch.full([3], 2**31 - 1, dtype=torch.int32)
    agree_on(lambda x: [x.sum(), x.prod(), x.cumsum(0), x.sum(dtype=torch.int32)], x)
    agree_on(lambda x: x.sum(), torch.full([300], True))


@pytest.mark.parametrize("correction", [0, 1, 2, 0.5, 12])
def test_variance(correction):
    x = values(3, 4)
    for dim in (None, 0, (0, 1)):
        for function in (torch.var, torch.std, torch.var_mean, torch.std_mean):
            agree_on(lambda x, f=function, d=dim: f(x, d, correction=correction), x, tolerance=1e-5)
    agree_on(lambda x: torch.var(x + 1e4, 1), x, tolerance=1e-2)  # no cancellation
    agree_on(lambda x: torch.var(x, 1), values(3, 4, dtype=torch.complex64), tolerance=1e-5)


@pytest.mark.parametrize("p", [0, 1, 2, 3, 0.5, -1, math.inf, -math.inf])
def test_norms(p):
    x = values(3, 4)
    for dim in (None, 0, (0, 1)):
        agree_on(lambda x, d=dim: torch.linalg.vector_norm(x, p, d), x, tolerance=1e-5)
    agree_on(with_gradients(lambda x: torch.linalg.vector_norm(x, p, 1)), x, tolerance=1e-4)
    z = values(3, 4, dtype=torch.complex64)
    agree_on(lambda x: torch.linalg.vector_norm(x, p, 1), z, tolerance=1e-5)
    agree_on(lambda x: torch.linalg.vector_norm(x, p, 1, dtype=torch.float64), x, tolerance=1e-6)
    agree_on(lambda x: torch.linalg.vector_norm(x, p, 1), x.bfloat16(), tolerance=2e-2)


@pytest.mark.parametrize("name", words("max min"))
def test_extrema_with_indices(name):
    function = getattr(torch, name)

    def run(x):
        return [function(x), *function(x, 0), *function(x, -1, keepdim=True)]

    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool):
        agree_on(run, values(4, 5, dtype=dtype, low=0, high=3))  # with ties
    x = values(3, 4)
    x[1, 2] = math.nan
    x[2] = math.inf
    agree_on(run, x)
    agree_on(with_gradients(lambda x: function(x, 1).values), values(3, 4))
    agree_on(with_gradients(lambda x: function(x)), torch.tensor([1.0, 3, 3, 1, 1]))
    agree_on(lambda x: function(x, 1), values(3, 0))
    agree_on(lambda x: function(x, 0), values(0, 3))
    agree_on(lambda x: function(x), values(0, 3))

    def out(x):
        value, index = (
            torch.empty(0, device=x.device),
            torch.empty(0, dtype=torch.int64).to(x.device),
        )
        function(x, 1, out=(value, index))
        return value, index

    agree_on(out, values(3, 4))


@pytest.mark.parametrize("name", words("argmax argmin"))
def test_positions_of_extrema(name):
    function = getattr(torch, name)

    def run(x):
        return [function(x), function(x, 0), function(x, -1, keepdim=True)]

    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        agree_on(run, values(4, 5, dtype=dtype, low=0, high=3))
    x = values(3, 4)
    x[1, 2] = math.nan
    agree_on(run, x)
    agree_on(run, values())
    agree_on(lambda x: function(x), values(0, 3))
    agree_on(lambda x: function(x, 1), values(3, 0))
    agree_on(lambda x: function(x.mT), values(3, 4))


def test_aminmax():
    x = values(3, 4)
    agree_on(lambda x: [*torch.aminmax(x), *torch.aminmax(x, dim=1, keepdim=True)], x)
    x[0, 1] = math.nan
    agree_on(lambda x: torch.aminmax(x, dim=1), x)


SCANS = words("cumsum cumprod logcumsumexp cummax cummin")


@pytest.mark.parametrize("name", SCANS)
def test_scans(name):
    function = getattr(torch, name)
    x = values(3, 4, 5)
    for dim in (0, 1, -1):
        agree_on(lambda x, d=dim: function(x, d), x, tolerance=1e-5)
    agree_on(all_layouts(lambda x: function(x, 0)), values(4, 6), tolerance=1e-5)
    x[1, 2, 1] = math.nan
    x[0, 1, 2] = math.inf
    x[2, 3, 1] = -math.inf
    agree_on(lambda x: function(x, 1), x, tolerance=1e-5)
    agree_on(lambda x: function(x, 2), x, tolerance=1e-5)
    agree_on(lambda x: function(x, 0), values(0, 3))
    agree_on(lambda x: function(x, 0), values())
    agree_on(lambda x: function(x, 3), values(2))
    agree_on(with_gradients(lambda x: function(x, 1)), values(3, 4), tolerance=1e-4)
    for dtype in (torch.int64, torch.int32, torch.bool, torch.bfloat16):
        agree_on(
            lambda x: function(x, 1), values(3, 4, dtype=dtype, low=-2, high=3), tolerance=2e-2
        )


@pytest.mark.parametrize("name", words("cumsum cumprod"))
def test_scans_in_place(name):
    in_place = getattr(torch.Tensor, name + "_")

    def run(x):
        in_place(x.mT[1:], 0)
        return x

    agree_on(run, values(3, 4), tolerance=1e-5)
    agree_on(run, values(3, 4, dtype=torch.int32))
    agree_on(
        out_forms(lambda x, **out: getattr(torch, name)(x, 1, **out)), values(3, 4), tolerance=1e-5
    )


def test_long_scans():
    x = values(2, 1000, low=-1, high=1)
    agree_on(lambda x: [x.cumsum(1), x.cumsum(0), *x.cummax(1)], x, tolerance=1e-4)
    agree_on(lambda x: x.cumsum(0), torch.ones(3000, dtype=torch.int64))


def test_differences():
    x = values(3, 6)
    agree_on(
        lambda x: [x.diff(), x.diff(dim=0), x.diff(n=2), torch.trapezoid(x, dim=1)],
        x,
        tolerance=1e-6,
    )
    agree_on(lambda x: torch.cumulative_trapezoid(x, dim=1), x, tolerance=1e-6)


def test_all_and_any_of_bytes():
    x = values(3, 4, dtype=torch.uint8, low=0, high=2)
    agree_on(lambda x: [x.all(), x.any(1), x.all(0), x.bool().all(1)], x)


def test_wide_products():
    agree_on(lambda x: x.prod(), torch.arange(1, 21))
    agree_on(with_gradients(lambda x: x.prod(1)), torch.tensor([[0.0, 2, 3], [0, 0, 1], [1, 2, 3]]))
