"""Embeddings, gathering and scattering."""

from collections.abc import Sequence

import torch
from torch.fx import Node

from ..extents import CannotPad, Dimension, Sizes, broadcast, from_the_front, varies
from .rule import Padded, call, rule, zeroed


def _indices(sizes: Sizes, index: Padded, indexed: Dimension) -> Padded:
    """With zeros in the padding, and counted from the front."""
    tensor = index.tensor
    if tensor.dtype in (torch.bool, torch.uint8):
        raise CannotPad("how much a mask selects varies")
    if varies(indexed):
        size = sizes.actual(from_the_front(indexed))
        tensor = torch.where(tensor < 0, tensor + size.to(tensor.dtype), tensor)
    return zeroed(sizes, Padded(tensor, index.layout))


@rule("embedding")
def _embedding(sizes: Sizes, node: Node, weight: Padded, indices: Padded, *args):
    layout = (*indices.layout, *weight.layout[1:])
    indices = _indices(sizes, indices, weight.layout[0])
    return call(sizes, node, (weight, indices, *args), {}, layout)


@rule("embedding_dense_backward")
def _embedding_backward(sizes: Sizes, node: Node, grad: Padded, indices: Padded, *args):
    if args[2]:
        raise CannotPad("it counts how often an index occurs")
    given = (zeroed(sizes, grad), zeroed(sizes, indices), *args)
    return call(sizes, node, given, {}, sizes.results(node), shapes=True)


def _along(x: Padded, index: Padded, dim: int) -> None:
    """That places of `index` are those of `x` in all dimensions but one."""
    for d, (own, other) in enumerate(zip(x.layout, index.layout, strict=True)):
        if d != dim % len(x.layout) and own != other:
            from_the_front(own)
            from_the_front(other)


@rule("gather")
def _gather(sizes: Sizes, node: Node, x: Padded, dim: int, index: Padded, **kwargs):
    _along(x, index, dim)
    index = _indices(sizes, index, x.layout[dim])
    return call(sizes, node, (x, dim, index), kwargs, index.layout)


@rule("index_select")
def _index_select(sizes: Sizes, node: Node, x: Padded, dim: int, index: Padded):
    dim %= len(x.layout)
    index = _indices(sizes, index, x.layout[dim])
    layout = (*x.layout[:dim], *(index.layout or ((),)), *x.layout[dim + 1 :])
    return call(sizes, node, (x, dim, index), {}, layout)


@rule("index", "_unsafe_index")
def _index(sizes: Sizes, node: Node, x: Padded, indices: Sequence[Padded | None]):
    given = [i for i, index in enumerate(indices) if index is not None]
    found = [i and _indices(sizes, i, x.layout[d]) for d, i in enumerate(indices)]
    common = broadcast([found[i].layout for i in given])
    rest = [d for i, d in enumerate(x.layout) if i not in given]
    # Where the indices stand together their dimensions come in their place, else in front.
    together = given == list(range(given[0], given[-1] + 1))
    place = given[0] if together else 0
    layout = (*rest[:place], *common, *rest[place:])
    return call(sizes, node, (x, found), {}, layout)


@rule("scatter")
def _scatter(sizes: Sizes, node: Node, x: Padded, dim: int, index: Padded, *args, **kwargs):
    if index.varies or any(isinstance(a, Padded) and a.varies for a in args):
        raise CannotPad("the padding would be written as well")
    _along(x, index, dim)
    index = _indices(sizes, index, x.layout[dim])
    return call(sizes, node, (x, dim, index, *args), kwargs, x.layout)


@rule("scatter_add")
def _scatter_add(sizes: Sizes, node: Node, x: Padded, dim: int, index: Padded, source: Padded):
    _along(x, index, dim)
    index = _indices(sizes, index, x.layout[dim])
    if broadcast([index.layout, source.layout]) != index.layout:
        raise CannotPad("dimensions that are padded differently meet")
    return call(sizes, node, (x, dim, index, zeroed(sizes, source)), {}, x.layout)


@rule("index_add")
def _index_add(sizes: Sizes, node: Node, x: Padded, dim: int, index: Padded, source: Padded, **kw):
    if source.layout[dim] != (index.layout[0] if index.layout else ()):
        raise CannotPad("dimensions that are padded differently meet")
    index = _indices(sizes, index, x.layout[dim])
    return call(sizes, node, (x, dim, index, zeroed(sizes, source)), kw, x.layout)


@rule("index_put", "_unsafe_index_put")
def _index_put(sizes: Sizes, node: Node, x: Padded, indices, values: Padded, accumulate=False):
    found = [i and _indices(sizes, i, x.layout[d]) for d, i in enumerate(indices)]
    if any(i is not None and i.varies for i in found) or values.varies:
        if not accumulate:
            raise CannotPad("the padding would be written as well")
        leading = broadcast([i.layout for i in found if i is not None])
        if values.layout[: len(leading)] != leading or None in indices[: len(leading)]:
            raise CannotPad("it adds one value in several places")
        values = zeroed(sizes, values)
    return call(sizes, node, (x, found, values, accumulate), {}, x.layout)
