"""Inputs that rules are tested with: values of every dtype, and tensors of every layout."""

import math
import warnings

import torch

TOLERANCE = {
    torch.float64: 1e-11,
    torch.complex128: 1e-11,
    torch.float32: 5e-6,
    torch.complex64: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -3.5, 88.0, -88.0, 1e-30, 1e30]
SPECIAL += [math.inf, -math.inf, math.nan]


def words(text):
    return text.split()


def values(*shape, dtype=torch.float32, low=-2.0, high=2.0, seed=0):
    """Numbers that are the same in every run; of integers those from low to high - 1."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    x = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
    if dtype.is_complex:
        y = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
        return torch.complex(x, y).to(dtype)
    return (x if dtype.is_floating_point else x.floor()).to(dtype)


def weights(x):
    """A gradient for `x` that is neither constant nor random."""
    ramp = torch.arange(x.numel(), dtype=torch.float64) % 7 - 2.5
    return ramp.reshape(x.shape).to(x.dtype).to(x.device)


# What a tensor of two dimensions, at least [3, 4], may be made into.
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.mT,
    "strided": lambda x: x[:, ::2],
    "offset": lambda x: x[1:, 1:-1],
    "expanded": lambda x: x[:1].expand(5, 2, x.shape[-1]),
    "scalar": lambda x: x[1, 2],
    "empty": lambda x: x[:0],
}


def all_layouts(function):
    """`function` of a tensor applied in each of the layouts."""
    return lambda x: [function(layout(x)) for layout in LAYOUTS.values()]


def differentiable(tensors):
    return [t for t in tensors if t.is_floating_point() or t.is_complex()]


def with_gradients(function):
    """`function`, its results followed by the gradients of its differentiable arguments."""

    def run(*arguments):
        leaves = differentiable([a for a in arguments if isinstance(a, torch.Tensor)])
        for leaf in leaves:
            leaf.requires_grad_()
        results = function(*arguments)
        results = results if isinstance(results, (tuple, list)) else (results,)
        ends = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
        gradients = torch.autograd.grad(ends, leaves, [weights(r) for r in ends], allow_unused=True)
        return [r.detach() if isinstance(r, torch.Tensor) else r for r in results], [
            None if g is None else g.clone() for g in gradients
        ]

    return run


def out_forms(function, wider=True):
    """Calls `function(..., out=)` with outs of the right shape, a wrong one, strided, and wider."""

    def run(*arguments):
        plain = function(*arguments)
        outs = [torch.empty_like(plain), torch.full([1, 3], 7, dtype=plain.dtype).to(plain.device)]
        dims = [2 * d for d in plain.shape] or [2]
        host = torch.full(dims, 5, dtype=plain.dtype).to(plain.device)
        outs.append(host[tuple(slice(1, None, 2) for _ in plain.shape)] if plain.dim() else host[1])
        if wider and plain.dtype is torch.float32:
            outs.append(torch.empty_like(plain, dtype=torch.float64))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # outs that have to be resized
            results = [function(*arguments, out=out) for out in outs]
        assert all(r is out for r, out in zip(results, outs, strict=True))
        return outs, host

    return run
