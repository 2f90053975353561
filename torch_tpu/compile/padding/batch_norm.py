"""Batch norm, whose statistics are those of the rows that are filled."""

import torch
from torch.fx import Node

from ..extents import CannotPad, Sizes, plain, varies
from .rule import Padded, call, count_of, rule, widened


def _channels(x: Padded, value: Padded | None, otherwise: float) -> torch.Tensor:
    """A value for each channel, so that it broadcasts to `x`."""
    if value is None:
        return torch.full((), otherwise, dtype=torch.float32, device=x.tensor.device)
    return widened(value.tensor).view(1, -1, *[1] * (x.tensor.dim() - 2))


def _others(x: Padded) -> list[int]:
    if any(map(varies, x.layout[1:])):
        raise CannotPad("a dimension other than the first is padded")
    return [d for d in range(len(x.layout)) if d != 1]


def _as_said(node: Node, results: list[torch.Tensor | None], x: Padded) -> list[Padded | None]:
    """With the dtypes that the operator gives. The first is like `x`, others have no padding."""
    return [
        None
        if made is None or said is None
        else Padded(made.to(said.dtype), x.layout if i == 0 else plain(made.shape))
        for i, (made, said) in enumerate(zip(results, node.meta["val"], strict=True))
    ]


@rule("_native_batch_norm_legit_functional")
def _batch_norm(sizes: Sizes, node: Node, x: Padded, weight, bias, mean, variance, *settings):
    training, momentum, eps = settings
    dims = _others(x)
    if not training:
        raise CannotPad("it has no rule for padding")
    wide, count = widened(x.tensor), count_of(sizes, x, dims)
    center = sizes.fill(wide, x.layout, 0).sum(dims, True) / count
    spread = sizes.fill((wide - center).square(), x.layout, 0).sum(dims, True)
    inverse = (spread / count + eps).rsqrt()
    scaled = (wide - center) * inverse * _channels(x, weight, 1.0) + _channels(x, bias, 0.0)
    center, inverse, spread = (t.flatten() for t in (center, inverse, spread))
    running = [
        old.tensor * (1 - momentum) + new * momentum
        for old, new in ((mean, center), (variance, spread / (count - 1)))
    ]
    return _as_said(node, [scaled, center, inverse, *running], x)


@rule("_native_batch_norm_legit_no_training")
def _inference(sizes: Sizes, node: Node, x: Padded, *args):
    _others(x)
    return call(sizes, node, (x, *args), {}, [x.layout, None, None])  # the others say nothing


@rule("native_batch_norm_backward")
def _backward(sizes: Sizes, node: Node, grad: Padded, x: Padded, weight, mean, variance, *saved):
    center, inverse, training, _, needed = saved
    dims = _others(x)
    if not training:
        raise CannotPad("it has no rule for padding")
    count = count_of(sizes, x, dims)
    grads = sizes.fill(widened(grad.tensor), grad.layout, 0)
    inverse = _channels(x, inverse, 1.0)
    normal = sizes.fill((widened(x.tensor) - _channels(x, center, 0.0)) * inverse, x.layout, 0)
    for_bias, for_weight = (t.sum(dims, True) for t in (grads, grads * normal))
    for_input = grads - (for_bias + normal * for_weight) / count
    for_input = for_input * inverse * _channels(x, weight, 1.0)
    made = [for_input, for_weight.flatten(), for_bias.flatten()]
    return _as_said(node, [m if n else None for m, n in zip(made, needed, strict=True)], x)
