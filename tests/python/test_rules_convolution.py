"""Convolutions against CPU PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from agreement import agree_on
from rule_inputs import values, with_gradients
from torch import nn

SPACE = {1: [7], 2: [7, 6], 3: [5, 4, 6]}

FORWARD = [
    {},
    {"stride": 2},
    {"padding": 1},
    {"dilation": 2},
    {"padding": 2, "stride": 2, "dilation": 2},
    {"groups": 2},
    {"groups": 4},
    {"padding": "same"},
    {"padding": "valid"},
]


@pytest.mark.parametrize("arguments", FORWARD, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolution(rank, arguments):
    function = getattr(F, f"conv{rank}d")
    groups = arguments.get("groups", 1)
    x = values(2, 4, *SPACE[rank])
    weight, bias = values(8, 4 // groups, *[3, 2, 3][:rank], seed=1), values(8, seed=2)
    run = with_gradients(lambda x, w, *b: function(x, w, *b, **arguments))
    agree_on(run, x, weight, bias, tolerance=1e-4)


TRANSPOSED = [
    {},
    {"stride": 2},
    {"stride": 2, "padding": 1, "output_padding": 1},
    {"dilation": 2},
    {"groups": 2},
    {"groups": 2, "stride": 2, "padding": 1},
]


@pytest.mark.parametrize("arguments", TRANSPOSED, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolution(rank, arguments):
    function = getattr(F, f"conv_transpose{rank}d")
    groups = arguments.get("groups", 1)
    x = values(2, 4, *SPACE[rank])
    weight, bias = values(4, 6 // groups, *[3, 2, 3][:rank], seed=1), values(6, seed=2)
    run = with_gradients(lambda x, w, *b: function(x, w, *b, **arguments))
    agree_on(run, x, weight, bias, tolerance=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_dtypes(dtype):
    x, weight = values(2, 4, 7, 6, dtype=dtype), values(6, 4, 3, 2, dtype=dtype, seed=1)
    tolerance = {torch.float64: 1e-11, torch.complex64: 1e-4}.get(dtype, 4e-2)
    agree_on(lambda x, w: F.conv2d(x, w, padding=1), x, weight, tolerance=tolerance)
    # Backward on CPU rounds narrow floats in other places.
    tolerance = {torch.float64: 1e-10, torch.complex64: 1e-3}.get(dtype, 3e-1)
    agree_on(with_gradients(lambda x, w: F.conv2d(x, w)), x, weight, tolerance=tolerance)


def test_integers():
    x = values(2, 4, 7, dtype=torch.int64, low=-3, high=4)
    weight = values(2, 4, 3, dtype=torch.int64, low=-3, high=4, seed=1)
    agree_on(F.conv1d, x, weight)


def test_layouts():
    x, weight = values(2, 4, 6, 6), values(6, 4, 3, 3, seed=1)
    last = {"memory_format": torch.channels_last}
    agree_on(lambda x, w: F.conv2d(x.to(**last), w.to(**last)), x, weight, tolerance=1e-5)
    agree_on(lambda x, w: F.conv2d(x.mT, w.mT), x, weight, tolerance=1e-5)
    agree_on(lambda x, w: F.conv2d(x[:, :, ::2], w[:, :, :2]), x, weight, tolerance=1e-5)
    agree_on(lambda x, w: F.conv2d(x[:1].expand(3, 4, 6, 6), w), x, weight, tolerance=1e-5)
    agree_on(lambda x, w: F.conv2d(x[0], w), x, weight, tolerance=1e-5)  # no batch
    agree_on(lambda x, w: F.conv2d(x[:0], w), x, weight)

    def gradients(x, w):
        _, gradients = with_gradients(lambda x, w: F.conv2d(x.to(**last), w))(x, w)
        return [g.contiguous() for g in gradients]

    agree_on(gradients, x, weight, tolerance=1e-4)


def test_depthwise_and_pointwise():
    x = values(2, 4, 6, 6)
    depth, point = values(4, 1, 3, 3, seed=1), values(5, 4, 1, 1, seed=2)
    agree_on(
        with_gradients(lambda x, w: F.conv2d(x, w, padding=1, groups=4)), x, depth, tolerance=1e-4
    )
    agree_on(with_gradients(lambda x, w: F.conv2d(x, w, stride=2)), x, point, tolerance=1e-4)
    patches = values(8, 4, 2, 2, seed=3)
    agree_on(with_gradients(lambda x, w: F.conv2d(x, w, stride=2)), x, patches, tolerance=1e-4)


def test_errors():
    x, weight = values(2, 4, 6, 6), values(6, 3, 3, 3)
    agree_on(F.conv2d, x, weight)
    agree_on(F.conv2d, x, weight[:, :2])
    agree_on(lambda x, w: F.conv2d(x, w, padding=-1), x, values(6, 4, 3, 3))
    agree_on(lambda x, w: F.conv2d(x, w, stride=0), x, values(6, 4, 3, 3))
    agree_on(F.conv2d, x, values(6, 4, 8, 8))
    agree_on(F.conv2d, x[0, 0], values(6, 4, 3, 3))
    agree_on(lambda x, w: F.conv2d(x, w, x[0, 0, 0, :2]), x, values(6, 4, 3, 3))


def test_second_derivatives():
    def run(x, w):
        x.requires_grad_()
        w.requires_grad_()
        first = torch.autograd.grad(F.conv2d(x, w).square().sum(), (x, w), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), (x, w))

    agree_on(run, values(1, 2, 4, 4), values(2, 2, 2, 2, seed=1), tolerance=1e-2)


def test_module():
    def run(x):
        torch.manual_seed(0)
        module = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
            nn.ReLU(),
            nn.ConvTranspose2d(4, 2, 2, stride=2),
        ).to(x.device)
        module(x).square().sum().backward()
        return [p.grad for p in module.parameters()]

    agree_on(run, values(2, 3, 5, 5), tolerance=1e-3)
