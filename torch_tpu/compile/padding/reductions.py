"""Sums and other reductions."""

import math
from collections.abc import Callable

import torch
from torch.fx import Node

from ..extents import CannotPad, Sizes, broadcast, dimension, from_the_front, varies
from .elementwise import pointwise
from .rule import (
    Padded,
    call,
    count_of,
    dims_of,
    filled,
    highest,
    is_number,
    lowest,
    reduced_layout,
    rule,
    widened,
)

# What changes nothing in the padding.
_NEUTRAL: dict[str, Callable[[torch.dtype], object]] = {
    "sum": lambda dtype: 0,
    "prod": lambda dtype: 1,
    "any": lambda dtype: False,
    "all": lambda dtype: True,
    "amax": lowest,
    "max": lowest,
    "argmax": lowest,
    "amin": highest,
    "min": highest,
    "argmin": highest,
    "logsumexp": lowest,
}


@rule(*_NEUTRAL)
def _reduction(sizes: Sizes, node: Node, x: Padded, dims=None, keepdim=False, **kwargs):
    name = node.target._opname
    if isinstance(dims, Padded):  # max(a, b)
        return pointwise(sizes, node, x, dims)
    reduced = dims_of(x, dims)
    if name in ("argmax", "argmin") and dims is None and x.varies:
        raise CannotPad("it numbers the places of a padded tensor")
    if any(len(x.layout[d]) > 1 and varies(x.layout[d]) for d in reduced) and name[:3] == "arg":
        raise CannotPad("it numbers the places of a padded tensor")
    x = filled(sizes, x, _NEUTRAL[name](x.tensor.dtype), reduced)
    layout = reduced_layout(x.layout, reduced, keepdim)
    args = [a for a, given in ((dims, len(node.args) > 1), (keepdim, len(node.args) > 2)) if given]
    layouts = layout if isinstance(node.meta["val"], torch.Tensor) else [layout, layout]
    return call(sizes, node, (x, *args), kwargs, layouts)


@rule("mean")
def _mean(sizes: Sizes, node: Node, x: Padded, dims=None, keepdim=False, *, dtype=None):
    dims = dims_of(x, dims)
    tensor = x.tensor if dtype is None else x.tensor.to(dtype)
    total = widened(sizes.fill(tensor, x.layout, 0, dims)).sum(dims, keepdim)
    mean = (total / count_of(sizes, x, dims)).to(tensor.dtype)
    return Padded(mean, reduced_layout(x.layout, dims, keepdim))


@rule("var", "std", "var_mean", "std_mean")
def _variance(sizes: Sizes, node: Node, x: Padded, dims=None, *, correction=None, keepdim=False):
    if x.tensor.is_complex():
        raise CannotPad("it has no rule for padding")
    dims = dims_of(x, dims)
    tensor, count = widened(x.tensor), count_of(sizes, x, dims)
    mean = sizes.fill(tensor, x.layout, 0, dims).sum(dims, True) / count
    squares = sizes.fill((tensor - mean).square(), x.layout, 0, dims).sum(dims, True)
    degrees = count - (1 if correction is None else correction)
    found = squares / (degrees.clamp(min=0) if isinstance(degrees, torch.Tensor) else degrees)
    if node.target._opname.startswith("std"):
        found = found.sqrt()
    layout = reduced_layout(x.layout, dims, keepdim)
    results = [
        Padded((r if keepdim else r.squeeze(dims)).to(x.tensor.dtype), layout)
        for r in (found, mean)
    ]
    return results if node.target._opname.endswith("_mean") else results[0]


@rule("linalg_vector_norm")
def _vector_norm(sizes: Sizes, node: Node, x: Padded, ord=2, dims=None, keepdim=False, **kwargs):
    if not ord > 0:
        raise CannotPad("zeros count in this norm")
    reduced = dims_of(x, dims)
    x = filled(sizes, x, 0, reduced)
    layout = reduced_layout(x.layout, reduced, keepdim)
    return call(sizes, node, (x, ord, dims, keepdim), kwargs, layout)


@rule("topk")
def _topk(sizes: Sizes, node: Node, x: Padded, k: int, dim=-1, largest=True, ordered=True):
    dim %= len(x.layout)
    if is_number(k):
        raise CannotPad("how many it takes varies")
    from_the_front(x.layout[dim])
    last = (lowest if largest else highest)(x.tensor.dtype)
    x = filled(sizes, x, last, [dim])
    layout = (*x.layout[:dim], dimension([k]), *x.layout[dim + 1 :])
    return call(sizes, node, (x, k, dim, largest, ordered), {}, [layout, layout])


@rule("cumsum", "cumprod")
def _cumulative(sizes: Sizes, node: Node, x: Padded, dim: int, **kwargs):
    from_the_front(x.layout[dim])
    return call(sizes, node, (x, dim), kwargs, x.layout)


@rule("_softmax", "_log_softmax")
def _softmax(sizes: Sizes, node: Node, x: Padded, dim: int, half_to_float: bool):
    x = filled(sizes, x, -math.inf, [dim])
    return call(sizes, node, (x, dim, half_to_float), {}, x.layout)


@rule("_softmax_backward_data", "_log_softmax_backward_data")
def _softmax_backward(sizes: Sizes, node: Node, grad: Padded, output: Padded, dim, dtype):
    layout = broadcast([grad.layout, output.layout])
    given = [filled(sizes, t, 0, [dim]) for t in (grad, output)]
    return call(sizes, node, (*given, dim, dtype), {}, layout)
