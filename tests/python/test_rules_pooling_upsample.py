"""Pooling and resizing against CPU PyTorch."""

import math

import pytest
import torch
import torch.nn.functional as F
from agreement import agree_on
from rule_inputs import values, with_gradients

SPACE = {1: [9], 2: [9, 8], 3: [5, 6, 7]}
LAST = {2: torch.channels_last, 3: torch.channels_last_3d}

MAX = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 2, "stride": 2, "ceil_mode": True},
    {"kernel_size": 2, "stride": 1, "dilation": 2},
]


@pytest.mark.parametrize("arguments", MAX, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_max_pool(rank, arguments):
    function = getattr(F, f"max_pool{rank}d")
    x = values(2, 3, *SPACE[rank])
    agree_on(with_gradients(lambda x: function(x, **arguments)), x, tolerance=1e-5)
    agree_on(lambda x: function(x, return_indices=True, **arguments), x)
    ties = x.round()
    agree_on(lambda x: function(x, return_indices=True, **arguments), ties)
    agree_on(lambda x: function(x[0], **arguments), x)


def test_max_pool_kinds():
    x = values(2, 3, 6, 6)
    x[0, 0, 1, 1] = math.nan
    x[0, 1, 2:4] = -math.inf
    agree_on(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
    agree_on(lambda x: F.max_pool2d(x, 2), x.bfloat16())
    agree_on(lambda x: F.max_pool2d(x, 2), (values(2, 3, 6, 6) * 9).long())
    agree_on(lambda x: F.max_pool2d(x.to(memory_format=torch.channels_last), 2), values(2, 3, 6, 6))
    agree_on(lambda x: F.max_pool2d(x[:0], 2), x)
    agree_on(lambda x: F.max_pool2d(x, 2, padding=2), x)
    agree_on(lambda x: F.max_pool2d(x, 9), x)
    agree_on(lambda x: F.max_pool2d(x, 0), x)


AVERAGE = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 2, "divisor_override": 3},
]


@pytest.mark.parametrize("arguments", AVERAGE, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_avg_pool(rank, arguments):
    if rank == 1 and "divisor_override" in arguments:
        pytest.skip("avg_pool1d has no divisor_override")
    function = getattr(F, f"avg_pool{rank}d")
    x = values(2, 3, *SPACE[rank])
    agree_on(with_gradients(lambda x: function(x, **arguments)), x, tolerance=1e-5)
    if rank == 2:
        agree_on(lambda x: function(x, **arguments), x.bfloat16(), tolerance=2e-2)
        agree_on(lambda x: function(x.to(memory_format=LAST[rank]), **arguments), x, tolerance=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_adaptive_pools(rank, size):
    x = values(2, 3, *SPACE[rank])
    mean, top = getattr(F, f"adaptive_avg_pool{rank}d"), getattr(F, f"adaptive_max_pool{rank}d")
    agree_on(with_gradients(lambda x: mean(x, size)), x, tolerance=1e-5)
    agree_on(with_gradients(lambda x: top(x, size)), x, tolerance=1e-5)
    agree_on(lambda x: top(x, size, return_indices=True), x)
    agree_on(lambda x: mean(x[0], size), x, tolerance=1e-5)
    if rank == 2:
        agree_on(lambda x: mean(x, (size, None)), x, tolerance=1e-5)
        agree_on(lambda x: mean(x, size), x.bfloat16(), tolerance=2e-2)
        agree_on(lambda x: mean(x.to(memory_format=LAST[rank]), size), x, tolerance=1e-5)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_lp_pool(p):
    agree_on(
        with_gradients(lambda x: F.lp_pool2d(x, p, 2)), values(2, 3, 6, 6, low=0.1), tolerance=1e-4
    )
    agree_on(
        with_gradients(lambda x: F.lp_pool1d(x, p, 3, 2)), values(2, 3, 7, low=0.1), tolerance=1e-4
    )


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_max_unpool(rank):
    pool, unpool = getattr(F, f"max_pool{rank}d"), getattr(F, f"max_unpool{rank}d")

    def run(x):
        y, places = pool(x, 2, return_indices=True)
        return with_gradients(lambda y: unpool(y, places, 2))(y.detach())

    agree_on(run, values(2, 3, *[6, 4, 4][:rank]))


MODES = {1: ["nearest", "linear", "nearest-exact"]}
MODES[2] = ["nearest", "bilinear", "bicubic", "nearest-exact"]
MODES[3] = ["nearest", "trilinear", "nearest-exact"]


@pytest.mark.parametrize("rank,mode", [(r, m) for r in MODES for m in MODES[r]])
def test_interpolate(rank, mode):
    x = values(2, 3, *[5, 6, 4][:rank])
    corners = [None] if "nearest" in mode else [False, True]
    for align in corners:
        for size, scale in (([7, 4, 9][:rank], None), (None, 2.0), (None, 0.6), (None, 1.7)):
            resize = lambda x, s=size, f=scale, a=align: F.interpolate(  # noqa: E731
                x, s, f, mode=mode, align_corners=a
            )
            agree_on(with_gradients(resize), x, tolerance=1e-4)
    agree_on(lambda x: F.interpolate(x, scale_factor=2, mode=mode), x.bfloat16(), tolerance=2e-2)
    if rank == 2:
        last = x.to(memory_format=torch.channels_last)
        agree_on(lambda x: F.interpolate(x, scale_factor=2, mode=mode), last, tolerance=1e-5)
        agree_on(
            lambda x: F.interpolate(x, (3, 2), recompute_scale_factor=False, mode=mode),
            x,
            tolerance=1e-5,
        )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiased(mode):
    x = values(2, 3, 9, 8)
    for size in ((4, 3), (12, 5), (9, 8)):
        resize = lambda x, s=size: F.interpolate(x, s, mode=mode, antialias=True)  # noqa: E731
        agree_on(with_gradients(resize), x, tolerance=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_images_of_bytes(mode, antialias):
    if mode == "nearest" and antialias:
        pytest.skip("nearest knows no antialias")
    x = values(1, 3, 16, 12, dtype=torch.uint8, low=0, high=256)
    for size in ((7, 20), (32, 24)):
        resize = lambda x, s=size: F.interpolate(x, s, mode=mode, antialias=antialias)  # noqa: E731
        off = (resize(x.tpu()).cpu().int() - resize(x).int()).abs()
        assert off.max() <= 1 and off.float().mean() < 0.01


def test_errors():
    x = values(2, 3, 6, 6)
    agree_on(lambda x: F.interpolate(x, (0, 3), mode="bilinear"), x)
    agree_on(lambda x: F.avg_pool2d(x, 3, padding=2), x)
    agree_on(lambda x: F.avg_pool2d(x, 2, divisor_override=0), x)
    agree_on(lambda x: F.adaptive_avg_pool2d(x[0, 0], 2), x)
