"""Elementwise operators, and tensors made from nothing."""

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves, tree_map

from ..extents import CannotPad, Sizes, broadcast, from_the_front, size_of
from .rule import POINTWISE, Padded, call, is_number, rule


@rule("_to_copy", "masked_fill", "hardtanh_backward", "hardswish_backward")
@rule("elu_backward", "softplus_backward", "log_sigmoid_backward", "lift_fresh_copy", "copy")
@rule("alias", "detach", "bernoulli", "fill", "rsub", "polar", "_conj", "hardswish")
@rule("hardsigmoid_backward", POINTWISE)
def pointwise(sizes: Sizes, node: Node, *args, **kwargs):
    tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Padded)]
    layout = broadcast([t.layout for t in tensors])
    wide = any(t.tensor.dtype is torch.float64 for t in tensors)
    dtype = torch.float64 if wide else torch.float32

    def value(v):
        return sizes.actual(v, dtype) if is_number(v) else v

    args, kwargs = tree_map(value, list(args)), tree_map(value, kwargs)
    if node.target._opname == "copy":
        layout = args[0].layout
    function = node.target
    if any(isinstance(v, torch.Tensor) for v in tree_leaves((args, kwargs))):
        # A tensor in place of a number: another overload.
        function = node.target.overloadpacket
    args, kwargs = tree_map(lambda v: v.tensor if isinstance(v, Padded) else v, (args, kwargs))
    return Padded(function(*args, **kwargs), layout)


@rule("native_dropout", "log_sigmoid_forward")
def _pair(sizes: Sizes, node: Node, x: Padded, *args):
    return call(sizes, node, (x, *args), {}, [x.layout, x.layout])


@rule("tril", "triu")
def _triangle(sizes: Sizes, node: Node, x: Padded, diagonal: int = 0):
    for d in x.layout[-2:]:
        from_the_front(d)
    return call(sizes, node, (x, diagonal), {}, x.layout)


@rule("zeros_like", "ones_like", "empty_like", "rand_like", "randn_like")
def _like(sizes: Sizes, node: Node, x: Padded, *args, **kwargs):
    return call(sizes, node, (x, *args), kwargs, x.layout)


@rule("zeros", "ones", "empty", "new_zeros", "new_ones", "new_empty", "rand", "randn")
def _made(sizes: Sizes, node: Node, *args, **kwargs):
    return call(sizes, node, args, kwargs, sizes.results(node), shapes=True)


@rule("full", "new_full", "full_like", "scalar_tensor")
def _full(sizes: Sizes, node: Node, *args, **kwargs):
    like = node.target._opname == "full_like"
    layout = args[0].layout if like else sizes.results(node)
    *rest, value = args
    made = call(sizes, node, (*rest, 0 if is_number(value) else value), kwargs, layout, shapes=True)
    if not is_number(value):
        return made
    value = torch.as_tensor(sizes.actual(value), device=made.tensor.device)
    return Padded(value.to(made.tensor.dtype).expand(made.tensor.shape), layout)


@rule("arange")
def _arange(sizes: Sizes, node: Node, *args, **kwargs):
    layout = sizes.results(node)
    if len(args) == 1:
        return call(sizes, node, args, kwargs, layout, shapes=True)
    start, _, step = (*args, 1)[:3]
    if is_number(step) or not isinstance(step, int):
        raise CannotPad("its step varies, or is not a whole number")
    dtype, device = node.meta["val"].dtype, kwargs.get("device")
    places = torch.arange(sizes.padded(size_of(layout[0])), dtype=dtype, device=device)
    return Padded(places * step + sizes.actual(start), layout)
