"""Views, and what else puts places elsewhere."""

from collections.abc import Sequence

import torch
from torch.fx import Node

from ..extents import (
    CannotPad,
    Dimension,
    Layout,
    Sizes,
    broadcast,
    dimension,
    expression,
    from_the_front,
    plain,
    reshaped,
    size_of,
    varies,
)
from .rule import Padded, call, dims_of, is_number, reduced_layout, rule


@rule("view", "_unsafe_view", "reshape")
def _view(sizes: Sizes, node: Node, x: Padded, shape):
    layout = reshaped(x.layout, sizes.result(node))
    return Padded(x.tensor.reshape(sizes.shape(layout)), layout)


@rule("expand")
def _expand(sizes: Sizes, node: Node, x: Padded, shape, **kwargs):
    wanted = plain(sizes.result(node))
    own = ((),) * (len(wanted) - len(x.layout)) + x.layout
    layout = tuple(d or w for d, w in zip(own, wanted, strict=True))
    return Padded(x.tensor.expand(sizes.shape(layout)), layout)


@rule("view_as_complex")
def _view_as_complex(sizes: Sizes, node: Node, x: Padded):
    return call(sizes, node, (x,), {}, x.layout[:-1])


@rule("view_as_real")
def _view_as_real(sizes: Sizes, node: Node, x: Padded):
    return call(sizes, node, (x,), {}, (*x.layout, (2,)))


@rule("repeat")
def _repeat(sizes: Sizes, node: Node, x: Padded, repeats: Sequence[int]):
    own = ((),) * (len(repeats) - len(x.layout)) + x.layout
    if any(is_number(n) or (n != 1 and varies(d)) for n, d in zip(repeats, own, strict=True)):
        raise CannotPad("it repeats a dimension that is padded")
    layout = tuple(dimension([n, *d]) for n, d in zip(repeats, own, strict=True))
    return call(sizes, node, (x, repeats), {}, layout)


@rule("permute")
def _permute(sizes: Sizes, node: Node, x: Padded, dims):
    return Padded(x.tensor.permute(dims), tuple(x.layout[d] for d in dims))


@rule("transpose")
def _transpose(sizes: Sizes, node: Node, x: Padded, a: int, b: int):
    order = list(range(len(x.layout)))
    order[a], order[b] = order[b], order[a]
    return _permute(sizes, node, x, order)


@rule("t")
def _t(sizes: Sizes, node: Node, x: Padded):
    return _permute(sizes, node, x, list(range(len(x.layout)))[::-1])


@rule("unsqueeze")
def _unsqueeze(sizes: Sizes, node: Node, x: Padded, dim: int):
    dim %= len(x.layout) + 1
    return Padded(x.tensor.unsqueeze(dim), (*x.layout[:dim], (), *x.layout[dim:]))


@rule("squeeze")
def _squeeze(sizes: Sizes, node: Node, x: Padded, dims=None):
    dims = [d for d in dims_of(x, dims) if x.layout[d] == ()]
    return Padded(x.tensor.squeeze(dims), reduced_layout(x.layout, dims, False))


@rule("select")
def _select(sizes: Sizes, node: Node, x: Padded, dim: int, index):
    dim %= len(x.layout)
    layout = reduced_layout(x.layout, [dim], False)
    if not varies(x.layout[dim]):
        if is_number(index):
            raise CannotPad("it takes a place that varies")
        return call(sizes, node, (x, dim, index), {}, layout)
    from_the_front(x.layout[dim])
    if is_number(index) or index < 0:
        there = x.tensor.shape[dim]
        place = _places(sizes, x.layout[dim], index, 1, 1, there, x.tensor.device)
        return Padded(x.tensor.index_select(dim, place).squeeze(dim), layout)
    return Padded(x.tensor.select(dim, index), layout)


@rule("slice")
def _slice(sizes: Sizes, node: Node, x: Padded, dim=0, start=None, end=None, step=1):
    dim %= len(x.layout)
    (result,) = plain([sizes.result(node)[dim]])
    own = x.layout[dim]
    layout = (*x.layout[:dim], result, *x.layout[dim + 1 :])
    start = 0 if start is None else start
    if not varies(own) and not varies(result) and not is_number(start):
        return call(sizes, node, (x, dim, start, end, step), {}, layout)
    if start == 0 and size_of(own) == size_of(result):
        return x
    from_the_front(own)
    length, there = sizes.padded(size_of(result)), x.tensor.shape[dim]
    if step == 1 and not is_number(start) and 0 <= start <= there - length:
        return Padded(x.tensor.narrow(dim, start, length), layout)
    places = _places(sizes, own, start, step, length, there, x.tensor.device)
    return Padded(x.tensor.index_select(dim, places), layout)


def _places(sizes: Sizes, whole: Dimension, start, step, length: int, there: int, device):
    """The `length` places from `start` on of a dimension that is filled from the front and has
    `there` of them with its padding."""
    if is_number(step):
        raise CannotPad("its step varies")
    if is_number(start):
        first, size = sizes.actual(start), sizes.actual(size_of(whole))
        first = torch.where(first < 0, first + size, first)
    else:
        first = sizes.actual(expression(size_of(whole) + start) if start < 0 else start)
    return (first + step * torch.arange(length, device=device)).clamp(0, there - 1)


@rule("flip")
def _flip(sizes: Sizes, node: Node, x: Padded, dims: Sequence[int]):
    tensor = x.tensor
    for d in dims_of(x, dims) if dims else ():
        if varies(x.layout[d]):
            last = sizes.actual(from_the_front(x.layout[d])) - 1
            places = last - torch.arange(tensor.shape[d], device=tensor.device)
            tensor = tensor.index_select(d, places.clamp(min=0))
        else:
            tensor = tensor.flip(d)
    return Padded(tensor, x.layout)


def _into(sizes: Sizes, grad: torch.Tensor, layout: Layout, dim: int, places) -> Padded:
    """Zeros of this layout with `grad` at `places` of a dimension."""
    zeros = torch.zeros(sizes.shape(layout), dtype=grad.dtype, device=grad.device)
    return Padded(zeros.index_add(dim, places, grad), layout)


@rule("select_backward")
def _select_backward(sizes: Sizes, node: Node, grad: Padded, shape, dim: int, index):
    result = plain(sizes.result(node))
    dim %= len(result)
    layout = (*grad.layout[:dim], result[dim], *grad.layout[dim:])
    if not varies(result[dim]) and not is_number(index):
        return call(sizes, node, (grad, sizes.shape(layout), dim, index), {}, layout)
    there, device = sizes.padded(size_of(result[dim])), grad.tensor.device
    place = _places(sizes, result[dim], index, 1, 1, there, device)
    return _into(sizes, grad.tensor.unsqueeze(dim), layout, dim, place)


@rule("slice_backward")
def _slice_backward(sizes: Sizes, node: Node, grad: Padded, shape, dim: int, start, end, step):
    result = plain(sizes.result(node))
    dim %= len(result)
    layout = (*grad.layout[:dim], result[dim], *grad.layout[dim + 1 :])
    if not varies(grad.layout[dim]) and not varies(result[dim]) and not is_number(start):
        return call(sizes, node, (grad, sizes.shape(layout), dim, start, end, step), {}, layout)
    if start == 0 and size_of(grad.layout[dim]) == size_of(result[dim]):
        return grad
    tensor = sizes.fill(grad.tensor, grad.layout, 0, [dim])
    own, length, there = result[dim], tensor.shape[dim], sizes.padded(size_of(result[dim]))
    from_the_front(own)
    if step == 1 and not is_number(start) and 0 <= start <= there - length:
        pads = [0, 0] * (len(layout) - 1 - dim) + [start, there - start - length]
        return Padded(torch.constant_pad_nd(tensor, pads), layout)
    places = _places(sizes, own, start, step, length, there, tensor.device)
    return _into(sizes, tensor, layout, dim, places)


@rule("split", "split_with_sizes", "unbind", "chunk")
def _split(sizes: Sizes, node: Node, x: Padded, *args):
    dim = args[-1] if len(args) == (1 if node.target._opname == "unbind" else 2) else 0
    dim %= len(x.layout)
    if varies(x.layout[dim]):
        raise CannotPad("it splits a dimension that is padded")
    layouts = []
    for found in sizes.results(node):
        if node.target._opname == "unbind":
            layouts.append(reduced_layout(x.layout, [dim], False))
        else:
            layouts.append((*x.layout[:dim], found[dim], *x.layout[dim + 1 :]))
    return call(sizes, node, (x, *args), {}, layouts)


@rule("cat", "stack")
def _cat(sizes: Sizes, node: Node, tensors: Sequence[Padded], dim: int = 0):
    stacked = node.target._opname == "stack"
    tensors = [t for t in tensors if stacked or t.layout != ((0,),)]
    if len(tensors) == 1 and not stacked:
        return Padded(tensors[0].tensor.clone(), tensors[0].layout)
    dim %= len(tensors[0].layout) + stacked
    if not stacked:
        rest = broadcast([reduced_layout(t.layout, [dim], True) for t in tensors])
        (joined,) = plain([sum(size_of(t.layout[dim]) for t in tensors)])
        layout = (*rest[:dim], joined, *rest[dim + 1 :])
        if any(varies(t.layout[dim]) for t in tensors):
            return _behind_each_other(sizes, node, tensors, dim, layout)
    else:
        rest = broadcast([t.layout for t in tensors])
        layout = (*rest[:dim], dimension([len(tensors)]), *rest[dim:])
    return call(sizes, node, (tensors, dim), {}, layout)


def _behind_each_other(
    sizes: Sizes, node: Node, tensors: Sequence[Padded], dim: int, layout: Layout
) -> Padded:
    """Each tensor where those before it are filled to."""
    total, dtype = sizes.padded(size_of(layout[dim])), node.meta["val"].dtype
    made, filled = None, 0
    for t in tensors:
        tensor, size = t.tensor.to(dtype), from_the_front(t.layout[dim])
        if made is None:
            pads = [0, 0] * (tensor.dim() - 1 - dim) + [0, total - tensor.shape[dim]]
            made = torch.constant_pad_nd(tensor, pads)
        else:
            places = torch.arange(total, device=tensor.device) - sizes.actual(expression(filled))
            taken = tensor.index_select(dim, places.clamp(0, tensor.shape[dim] - 1))
            behind = (places >= 0).view([-1 if i == dim else 1 for i in range(tensor.dim())])
            made = torch.where(behind, taken, made)
        filled = filled + size
    return Padded(made, layout)


@rule("constant_pad_nd")
def _constant_pad(sizes: Sizes, node: Node, x: Padded, pad: Sequence[int], value=0):
    found, tensor = plain(sizes.result(node)), x.tensor
    layout = list(x.layout)
    if any(is_number(p) for p in pad) or is_number(value):
        raise CannotPad("it pads by numbers that vary")
    for i in range(len(pad) // 2):
        dim = len(layout) - 1 - i
        before, behind = pad[2 * i], pad[2 * i + 1]
        if not before and not behind:
            continue
        if varies(layout[dim]):
            from_the_front(layout[dim])
            if behind > 0:
                tensor = sizes.fill(tensor, x.layout, value, [dim])
        layout[dim] = found[dim]
    padded = torch.constant_pad_nd(tensor, list(pad), value)
    return Padded(padded, tuple(layout))
