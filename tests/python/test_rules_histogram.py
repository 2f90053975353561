"""Histograms against CPU PyTorch."""

import math
import warnings

import pytest
import torch
from agreement import agree_on
from rule_inputs import LAYOUTS, values, words

aten = torch.ops.aten
X = torch.tensor([0.0, 1.0, 2.0, 3.0, 0.5, 2.5, 1.5, -1.0, 4.0])
EDGES = torch.tensor([0.0, 0.5, 1.0, 2.5, 3.0])
WEIGHT = torch.arange(9.0) - 2


@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_histogram(density, dtype):
    x, edges, weight = X.to(dtype), EDGES.to(dtype), WEIGHT.to(dtype)
    options = {"density": density}
    tolerance = 1e-6
    for bins in (1, 4, 7):
        agree_on(lambda x, n=bins: torch.histogram(x, n, **options), x, tolerance=tolerance)
        agree_on(
            lambda x, w, n=bins: torch.histogram(x, n, range=(0, 3), weight=w, **options),
            x,
            weight,
            tolerance=tolerance,
        )
    agree_on(lambda x, e: torch.histogram(x, e, **options), x, edges, tolerance=tolerance)
    agree_on(
        lambda x, e, w: torch.histogram(x, e, weight=w, **options),
        x,
        edges,
        weight,
        tolerance=tolerance,
    )


def test_histogram_of_many():
    x = values(5000)
    agree_on(lambda x: torch.histogram(x, 100, range=(-2, 2)), x)
    agree_on(torch.histogram, x, values(300).sort().values)
    agree_on(lambda x: torch.histogram(x, 3), x)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_histogram_of_layouts(layout):
    view = LAYOUTS[layout]

    def run(x, w):
        return torch.histogram(view(x), 3, weight=view(w)), torch.histogram(view(x), 2)

    agree_on(run, values(4, 6), values(4, 6, seed=1), tolerance=1e-5)


def test_ranges():
    # Equal ends are widened by one each way; NaN and what is outside belong to no bin.
    for ends in ((1, 1), (0, 2), (-5, -4), (0.3, 0.7)):
        agree_on(lambda x, e=ends: torch.histogram(x, 4, range=e), X, tolerance=1e-6)
    agree_on(lambda x: torch.histogram(x[:1], 4), X)
    nan = torch.cat([X, torch.tensor([math.nan])])
    agree_on(lambda x: torch.histogram(x, 4, range=(0, 3)), nan)
    agree_on(torch.histogram, nan, EDGES)
    agree_on(lambda x, e: torch.histogram(x + 10, e, density=True), X, EDGES)


def test_ranges_compile_nothing():
    x = X.tpu()
    torch.histogram(x, 4, range=(0, 3))
    before = torch.tpu.compilations()["count"]
    for high in (1.5, 2.5, 3.5):
        torch.histogram(x, 4, range=(0, high))
    assert torch.tpu.compilations()["count"] == before


def test_narrow_floats():
    agree_on(lambda x: torch.histogram(x, 4, range=(1, 3)), X.bfloat16())
    agree_on(torch.histogram, X.bfloat16(), EDGES.bfloat16())
    agree_on(lambda x: torch.histogram(x, 4), X.bfloat16())
    agree_on(
        lambda x: torch.histogramdd(x.reshape(-1, 3), [2, 2, 2], range=[0, 3] * 3), X.bfloat16()
    )


def test_histogram_out():
    def run(x, e):
        hist, edges = torch.empty(0, device=x.device), torch.empty(9, device=x.device)[::2]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.histogram(x, e, out=(hist, edges))
        return hist, edges

    agree_on(run, X, EDGES)


def test_histogram_errors():
    inf, nan = math.inf, math.nan
    agree_on(lambda x: torch.histogram(x, 0), X)
    agree_on(lambda x: torch.histogram(x, -1), X)
    # At once the first time, later when the device is read.
    agree_on(lambda x: torch.histogram(x, 11, range=(0, inf)), X)
    agree_on(lambda x: torch.histogram(x, 12, range=(3, 0)), X)
    agree_on(lambda x: torch.histogram(x, 13, range=(3,)), X)
    for ends in ((0, inf), (3, 0)):
        torch.histogram(X.tpu(), 14, range=(0, 1))
        with pytest.raises(RuntimeError, match=r"torch.histogramdd: .*(finite|exceed)"):
            torch.histogram(X.tpu(), 14, range=ends).hist.cpu()
    agree_on(lambda x: torch.histogram(x, 4), X.int())
    agree_on(lambda x: torch.histogram(x, 4), X.bool())
    agree_on(torch.histogram, X, EDGES.double())
    agree_on(torch.histogram, X, EDGES[None])
    agree_on(torch.histogram, X, EDGES[0])
    agree_on(torch.histogram, X, EDGES[:1])
    agree_on(torch.histogram, X, EDGES[:0])
    agree_on(lambda x, e: torch.histogram(x, e, weight=x[:6]), X, EDGES)
    agree_on(lambda x, e: torch.histogram(x, e, weight=x.double()), X, EDGES)
    for bad in (nan, inf):
        with pytest.raises(RuntimeError, match=r"range .*is not finite"):
            torch.histogram(torch.tensor([bad, 1.0]).tpu(), 4).hist.cpu()
    agree_on(torch.histogram, X, EDGES)


POINTS = values(20, 3)


@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_histogramdd(density, weighted):
    weight = values(20, low=0, high=3, seed=1)

    def run(x, w):
        options = {"density": density, "weight": w if weighted else None}
        edges = [torch.tensor(e).to(x) for e in ([-1.0, 0, 2], [-2.0, 2], [-2.0, -1, 0, 1])]
        return [
            list(torch.histogramdd(x, [2, 3, 4], **options)),
            list(torch.histogramdd(x, [1, 2, 2], range=[-1, 1, -2, 0, 0, 2], **options)),
            list(torch.histogramdd(x, 2, **options)),
            list(torch.histogramdd(x, edges, **options)),
        ]

    agree_on(run, POINTS, weight, tolerance=1e-5)
    agree_on(run, POINTS.double(), weight.double(), tolerance=1e-12)
    agree_on(
        lambda x, w: run(x.reshape(4, 5, 3), w.reshape(4, 5) if weighted else w),
        POINTS,
        weight,
        tolerance=1e-5,
    )


def test_histogramdd_of_nothing():
    agree_on(lambda x: list(torch.histogramdd(x[:0], [2, 3, 1])), POINTS)
    agree_on(lambda x: list(torch.histogramdd(x[:, :0], [])), POINTS)


def test_bin_edges():
    agree_on(lambda x: aten._histogramdd_bin_edges(x, [2, 3, 4]), POINTS, tolerance=1e-6)
    ends = [0.0, 1.0, 0.0, 9.0, -3.0, 7.0]
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        agree_on(
            lambda x: aten._histogramdd_bin_edges(x, [2, 3, 4], range=ends),
            POINTS.to(dtype),
            tolerance=1e-6,
        )
    agree_on(lambda x: aten._histogramdd_bin_edges(x, [2, 3, 4]), POINTS.int())


def test_histogramdd_errors():
    for arguments in (
        ([2, 3],),
        ([2, 0, 1],),
        ([2, 3, 4], [0, 1]),
        ([2, 3, 5], [0, 1, 2, 1, 0, 1]),
        ([2, 3, 6], [0, 1, 2, math.inf, 0, 1]),
    ):
        agree_on(lambda x, a=arguments: torch.histogramdd(x, *a), POINTS)
    agree_on(lambda x: torch.histogramdd(x[0], [2]), POINTS)
    agree_on(lambda x: torch.histogramdd(x, [x[:, 0]]), POINTS)
    agree_on(lambda x: torch.histogramdd(x, [x[0], x[0], x[0].double()]), POINTS)
    agree_on(lambda x: torch.histogramdd(x, [2, 3, 4], weight=x[:4, 0]), POINTS)


def test_histc():
    for name in words("float32 float64 bfloat16"):
        agree_on(lambda x: torch.histc(x, 3, 0, 3), X.to(getattr(torch, name)))
