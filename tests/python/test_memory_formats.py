"""Strides of results of channels-last and permuted tensors, and of their gradients."""

import pytest
import torch
import torch.nn.functional as F
from agreement import agree
from rule_inputs import values, weights

LAYOUTS = {
    "channels_last": lambda t: values(2, 4, 6, 6, dtype=t).to(memory_format=torch.channels_last),
    "permuted": lambda t: values(2, 6, 4, 6, dtype=t).permute(0, 2, 1, 3),
    "volume": lambda t: values(2, 4, 2, 4, 6, dtype=t).to(memory_format=torch.channels_last_3d),
}


def agree_in_strides(function, *arguments, tolerance):
    """As `agree_on`, but the arguments keep their strides on the tpu, as gradients do."""

    def run(device):
        here = [a.to(device, copy=True) for a in arguments]
        assert [a.stride() for a in here] == [a.stride() for a in arguments]
        leaves = [a.requires_grad_() for a in here if a.is_floating_point() or a.is_complex()]
        results = function(*here)
        results = results if isinstance(results, (tuple, list)) else [results]
        ends = [r for r in results if r.requires_grad]
        gradients = torch.autograd.grad(ends, leaves, [weights(r) for r in ends]) if ends else ()
        return [r.detach() for r in results], list(gradients)

    torch.tpu.clear_fallbacks()
    agree(run, tolerance=tolerance)
    assert torch.tpu.fallbacks() == []


ANY = {
    "neg": torch.neg,
    "times a number": lambda x: x * 2.5,
    "number minus": lambda x: 1 - x,
    "abs": torch.abs,
    "angle": torch.angle,
    "clone": torch.clone,
    "contiguous": lambda x: x.contiguous() * 2,
    "zeros_like": torch.zeros_like,
    "to complex128": lambda x: x.to(torch.complex128),
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean((0, 2), keepdim=True),
    "cumsum": lambda x: x.cumsum(1),
    "flip": lambda x: x.flip(2),
    "roll": lambda x: x.roll(1, 2),
    "roll twice": lambda x: x.roll((1, 2), (0, -1)),
    "roll flat": lambda x: x.roll(3),
    "softmax": lambda x: F.softmax(x, 1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "transpose": lambda x: x.transpose(1, 2) + 1,
    "step": lambda x: x[..., ::2].exp(),
    "expand": lambda x: x[:, :1].expand(2, 4, *x.shape[2:]) * 2,
    "index": lambda x: x[:, [0, 0]],
    "repeat": lambda x: x.repeat(1, 2, *[1] * (x.dim() - 2)),
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "stack": lambda x: torch.stack([x, x * 2]),
    "stack inside": lambda x: torch.stack([x, x * 2], 1),
    "stack last": lambda x: torch.stack([x, x * 2], -1),
    "where": lambda x: torch.where(x.detach().abs() > 1, x, 0),
    "masked_fill": lambda x: x.masked_fill(x.detach().abs() > 1, 0),
    "matmul": lambda x: x @ x.mT,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_dtype(layout, dtype):
    for function in ANY.values():
        agree_in_strides(function, LAYOUTS[layout](dtype), tolerance=1e-4)


@pytest.mark.parametrize("sizes", [(2, 1, 6, 6), (2, 4, 1, 1)], ids=str)
def test_strides_of_dimensions_of_one(sizes):
    """Which PyTorch leaves to the operator; they decide the format of what follows."""
    x = values(*sizes).to(memory_format=torch.channels_last)
    for name in ("neg", "number minus", "flip", "roll", "roll twice", "stack", "stack inside"):
        agree(lambda device, f=ANY[name]: f(x.to(device)))
    agree(lambda device: (x + 0j).to(device).abs())
    agree(lambda device: F.pixel_unshuffle(x[..., :1, :1].to(device), 1))


OTHERS = {
    "same": lambda x: x.detach() + 1,
    "contiguous": lambda x: x.detach().contiguous(memory_format=torch.contiguous_format) + 1,
    "row": lambda x: values(6, dtype=x.dtype),
    "channel": lambda x: values(x.shape[1], 1, 1, dtype=x.dtype),
    "number": lambda x: torch.tensor(2.0, dtype=x.dtype),
}
BINARY = {
    "add": torch.add,
    "swapped": lambda x, y: y - x,
    "maximum": torch.maximum,
    "equal": torch.eq,
    "addcmul": lambda x, y: torch.addcmul(x, y, y),
    "where": lambda x, y: torch.where(x.detach() > 0, x, y),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("other", OTHERS)
def test_pairs(layout, other):
    x = LAYOUTS[layout](torch.float32)
    for function in BINARY.values():
        agree_in_strides(function, x, OTHERS[other](x), tolerance=1e-4)


IMAGES = {
    "gelu": F.gelu,
    "hardswish": F.hardswish,
    "glu": lambda x: F.glu(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "sort": lambda x: torch.sort(x, -1),
    "topk": lambda x: x.topk(1, 1),
    "max": lambda x: x.max(1),
    "amax": lambda x: x.amax((2, 3)),
    "cummax": lambda x: x.cummax(1),
    "normalize": F.normalize,
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "instance_norm": F.instance_norm,
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-2:]),
    "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "avg_pool": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "adaptive_avg_pool": lambda x: F.adaptive_avg_pool2d(x, 2),
    "adaptive_max_pool": lambda x: F.adaptive_max_pool2d(x, 2, return_indices=True),
    "global pool": lambda x: F.adaptive_avg_pool2d(x, 1),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.expand(-1, 4, -1, -1), 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "unfold": lambda x: F.unfold(x, 2),
    "reflection": lambda x: F.pad(x, (1, 2, 1, 0), "reflect"),
    "circular": lambda x: F.pad(x, (1, 2, 1, 0), "circular"),
    "nearest": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    "bilinear": lambda x: F.interpolate(x, (3, 4), mode="bilinear"),
    "antialiased": lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
}


@pytest.mark.parametrize("layout", ["channels_last", "permuted"])
@pytest.mark.parametrize("name", IMAGES)
def test_images(layout, name):
    x = LAYOUTS[layout](torch.float32)
    agree_in_strides(IMAGES[name], x, tolerance=1e-4)


@pytest.mark.parametrize("of_weight", [False, True])
@pytest.mark.parametrize("of_input", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_convolutions(dtype, of_input, of_weight):
    formats = {False: torch.contiguous_format, True: torch.channels_last}
    x = values(2, 4, 6, 5, dtype=dtype).to(memory_format=formats[of_input])
    weight = values(8, 4, 3, 3, dtype=dtype, seed=1).to(memory_format=formats[of_weight])
    tolerance = 1e-4 if dtype is torch.float32 else 3e-1
    agree_in_strides(
        lambda x, w: F.conv2d(x, w, stride=2, padding=1), x, weight, tolerance=tolerance
    )
    agree_in_strides(lambda x, w: F.conv2d(x, w[:4, :1], groups=4), x, weight, tolerance=tolerance)


def test_pixel_shuffle_errors():
    bad = [(F.pixel_shuffle, [4], 2), (F.pixel_shuffle, [2, 3, 4, 4], 2)]
    bad += [(F.pixel_shuffle, [1, 4, 4, 4], 0), (F.pixel_unshuffle, [4], 2)]
    bad += [(F.pixel_unshuffle, [1, 3, 4], 2), (F.pixel_unshuffle, [1, 4, 3], 2)]
    bad += [(F.pixel_unshuffle, [1, 4, 4], -1)]
    for function, sizes, factor in bad:
        agree(lambda d, f=function, s=sizes, n=factor: f(torch.ones(s, device=d), n))
    agree(lambda d: F.pixel_shuffle(torch.ones(2, 4, 0, 4, device=d), 2))
    agree(lambda d: F.pixel_shuffle(torch.ones(2, 0, 4, 2, 4, device=d).long(), 2))
