"""How operators compute with padded tensors, so that what is filled comes out as without padding.

A rule is called with the sizes, the graph's node and the node's arguments: tensors as `Padded`,
symbolic numbers as expressions. It returns what the operator does, tensors as `Padded`. What is in
the padding is arbitrary: a rule that mixes places replaces it first.
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence

import sympy
import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves, tree_map

from .extents import (
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

aten = torch.ops.aten
_TO_THE_END = 2**63 - 1


@dataclasses.dataclass
class Padded:
    """A tensor of a program, and what of it is filled."""

    tensor: torch.Tensor
    layout: Layout

    @property
    def varies(self) -> bool:
        return any(map(varies, self.layout))


_rules: dict[str, Callable] = {}


def _rule(*names: str):
    def register(function):
        _rules.update(dict.fromkeys(names, function))
        return function

    return register


def apply(sizes: Sizes, node: Node, args: Sequence, kwargs: dict) -> object:
    """What `node` gives. Raises CannotPad."""
    target = node.target
    if target is operator.getitem:
        return args[0][args[1]]
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        raise CannotPad("it is not an operator of ATen")
    name = target._opname
    rule = _rules.get(name)
    if rule is None and torch.Tag.pointwise in target.tags:
        rule = _pointwise
    if rule is None:
        raise CannotPad("it has no rule for padding")
    return rule(sizes, node, *args, **kwargs)


def _is_number(value: object) -> bool:
    return isinstance(value, sympy.Basic)


def _call(sizes: Sizes, node: Node, args: Sequence, kwargs: dict, layouts: object) -> object:
    """The operator itself: numbers are those of the padded tensors. `layouts` of its results; a
    list if there are several, with None for those that are not tensors."""

    def plain_value(value):
        if isinstance(value, Padded):
            return value.tensor
        return sizes.padded(value) if _is_number(value) else value

    given = tree_map(plain_value, list(args)), tree_map(plain_value, kwargs)
    results = node.target(*given[0], **given[1])
    if isinstance(results, torch.Tensor):
        return Padded(results, layouts)
    return [
        Padded(r, layout) if isinstance(r, torch.Tensor) and layout is not None else None
        for r, layout in zip(results, layouts, strict=True)
    ]


def _dims(x: Padded, dims: object) -> list[int]:
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(len(x.layout)))
    return [d % len(x.layout) for d in (dims if isinstance(dims, (list, tuple)) else [dims])]


def _reduced(layout: Layout, dims: Sequence[int], keepdim: bool) -> Layout:
    return tuple(
        () if i in dims else d for i, d in enumerate(layout) if keepdim or i not in dims
    )


def _zeroed(sizes: Sizes, value: object) -> object:
    """Zeros in the padding."""
    if isinstance(value, Padded) and value.varies:
        return Padded(sizes.fill(value.tensor, value.layout, 0), value.layout)
    return value


# --- elementwise


@_rule("_to_copy", "masked_fill", "tril", "triu", "hardtanh_backward", "hardswish_backward")
@_rule("elu_backward", "softplus_backward", "log_sigmoid_backward", "lift_fresh_copy", "copy")
@_rule("alias", "detach", "bernoulli", "fill")
def _pointwise(sizes: Sizes, node: Node, *args, **kwargs):
    tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Padded)]
    layout = broadcast([t.layout for t in tensors])
    wide = any(t.tensor.dtype is torch.float64 for t in tensors)
    dtype = torch.float64 if wide else torch.float32

    def value(v):
        return sizes.actual(v, dtype) if _is_number(v) else v

    args, kwargs = tree_map(value, list(args)), tree_map(value, kwargs)
    if node.target._opname == "copy":
        layout = args[0].layout
    function = node.target
    if any(isinstance(v, torch.Tensor) for v in tree_leaves((args, kwargs))):
        # A tensor in place of a number: another overload.
        function = node.target.overloadpacket
    args, kwargs = tree_map(
        lambda v: v.tensor if isinstance(v, Padded) else v, (args, kwargs)
    )
    return Padded(function(*args, **kwargs), layout)


@_rule("native_dropout", "log_sigmoid_forward")
def _pair(sizes: Sizes, node: Node, x: Padded, *args):
    return _call(sizes, node, (x, *args), {}, [x.layout, x.layout])


# --- tensors made from nothing


@_rule("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like")
def _like(sizes: Sizes, node: Node, x: Padded, *args, **kwargs):
    return _call(sizes, node, (x, *args), kwargs, x.layout)


@_rule("zeros", "ones", "empty", "new_zeros", "new_ones", "new_empty", "rand", "randn", "arange")
def _made(sizes: Sizes, node: Node, *args, **kwargs):
    return _call(sizes, node, args, kwargs, sizes.results(node))


@_rule("full", "new_full", "scalar_tensor")
def _full(sizes: Sizes, node: Node, *args, **kwargs):
    if not _is_number(args[-1]):
        return _made(sizes, node, *args, **kwargs)
    made = _made(sizes, node, *args[:-1], 0, **kwargs)
    value = sizes.actual(args[-1]).to(made.tensor.dtype)
    return Padded(made.tensor + value, made.layout)


# --- views


@_rule("view", "_unsafe_view", "reshape")
def _view(sizes: Sizes, node: Node, x: Padded, shape):
    layout = reshaped(x.layout, sizes.result(node))
    return Padded(x.tensor.reshape(sizes.shape(layout)), layout)


@_rule("expand")
def _expand(sizes: Sizes, node: Node, x: Padded, shape, **kwargs):
    wanted = plain(sizes.result(node))
    own = ((),) * (len(wanted) - len(x.layout)) + x.layout
    layout = tuple(d or w for d, w in zip(own, wanted, strict=True))
    return Padded(x.tensor.expand(sizes.shape(layout)), layout)


@_rule("permute")
def _permute(sizes: Sizes, node: Node, x: Padded, dims):
    return Padded(x.tensor.permute(dims), tuple(x.layout[d] for d in dims))


@_rule("transpose")
def _transpose(sizes: Sizes, node: Node, x: Padded, a: int, b: int):
    order = list(range(len(x.layout)))
    order[a], order[b] = order[b], order[a]
    return _permute(sizes, node, x, order)


@_rule("t")
def _t(sizes: Sizes, node: Node, x: Padded):
    return _permute(sizes, node, x, list(range(len(x.layout)))[::-1])


@_rule("unsqueeze")
def _unsqueeze(sizes: Sizes, node: Node, x: Padded, dim: int):
    dim %= len(x.layout) + 1
    return Padded(x.tensor.unsqueeze(dim), (*x.layout[:dim], (), *x.layout[dim:]))


@_rule("squeeze")
def _squeeze(sizes: Sizes, node: Node, x: Padded, dims=None):
    dims = [d for d in _dims(x, dims) if x.layout[d] == ()]
    return Padded(x.tensor.squeeze(dims), _reduced(x.layout, dims, False))


def _at(sizes: Sizes, x: Padded, dim: int, places: torch.Tensor) -> torch.Tensor:
    return x.tensor.index_select(dim, places)


@_rule("select")
def _select(sizes: Sizes, node: Node, x: Padded, dim: int, index):
    dim %= len(x.layout)
    layout = _reduced(x.layout, [dim], False)
    if not varies(x.layout[dim]):
        if _is_number(index):
            raise CannotPad("it takes a place that varies")
        return _call(sizes, node, (x, dim, index), {}, layout)
    size = from_the_front(x.layout[dim])
    if _is_number(index) or index < 0:
        place = sizes.actual(expression(size + index) if not _is_number(index) else index)
        return Padded(_at(sizes, x, dim, place.view(1)).squeeze(dim), layout)
    return Padded(x.tensor.select(dim, index), layout)


@_rule("slice")
def _slice(sizes: Sizes, node: Node, x: Padded, dim=0, start=None, end=None, step=1):
    dim %= len(x.layout)
    (result,) = plain([sizes.result(node)[dim]])
    own = x.layout[dim]
    layout = (*x.layout[:dim], result, *x.layout[dim + 1 :])
    start = 0 if start is None else start
    if not varies(own) and not varies(result) and not _is_number(start):
        return _call(sizes, node, (x, dim, start, end, step), {}, layout)
    if start == 0 and size_of(own) == size_of(result):
        return x
    if step != 1 or _is_number(start):
        raise CannotPad("it takes places that vary")
    if varies(own):
        from_the_front(own)
    if start < 0:
        if varies(result) or not varies(own):
            raise CannotPad("it takes places that vary")
        first = sizes.actual(expression(size_of(own) + start))
        places = first + torch.arange(size_of(result), device=x.tensor.device)
        return Padded(_at(sizes, x, dim, places), layout)
    if not varies(result) and (end is None or _is_number(end) or end < 0 or end == _TO_THE_END):
        raise CannotPad("it takes places that vary")
    length = sizes.padded(size_of(result))
    if start + length > x.tensor.shape[dim]:
        raise CannotPad("what it takes is shorter than the padding")
    return Padded(x.tensor.narrow(dim, start, length), layout)


@_rule("flip")
def _flip(sizes: Sizes, node: Node, x: Padded, dims: Sequence[int]):
    tensor = x.tensor
    for d in _dims(x, dims) if dims else ():
        if varies(x.layout[d]):
            last = sizes.actual(from_the_front(x.layout[d])) - 1
            places = last - torch.arange(tensor.shape[d], device=tensor.device)
            tensor = tensor.index_select(d, places.clamp(min=0))
        else:
            tensor = tensor.flip(d)
    return Padded(tensor, x.layout)


def _into(sizes: Sizes, node: Node, grad: Padded, layout: Layout, dim: int, places) -> Padded:
    """Zeros of this layout with `grad` at `places` of a dimension."""
    zeros = torch.zeros(
        sizes.shape(layout), dtype=grad.tensor.dtype, device=grad.tensor.device
    )
    return Padded(zeros.index_add(dim, places, grad.tensor), layout)


@_rule("select_backward")
def _select_backward(sizes: Sizes, node: Node, grad: Padded, shape, dim: int, index):
    result = plain(sizes.result(node))
    dim %= len(result)
    layout = (*grad.layout[:dim], result[dim], *grad.layout[dim:])
    if not varies(result[dim]) and not _is_number(index):
        return _call(sizes, node, (grad, sizes.shape(layout), dim, index), {}, layout)
    if not _is_number(index):
        index = index if index >= 0 else expression(size_of(result[dim]) + index)
    place = torch.as_tensor(sizes.actual(index), device=grad.tensor.device).view(1)
    row = Padded(grad.tensor.unsqueeze(dim), layout)
    return _into(sizes, node, row, layout, dim, place)


@_rule("slice_backward")
def _slice_backward(sizes: Sizes, node: Node, grad: Padded, shape, dim: int, start, end, step):
    result = plain(sizes.result(node))
    dim %= len(result)
    layout = (*grad.layout[:dim], result[dim], *grad.layout[dim + 1 :])
    if not varies(grad.layout[dim]) and not varies(result[dim]) and not _is_number(start):
        return _call(sizes, node, (grad, sizes.shape(layout), dim, start, end, step), {}, layout)
    if start == 0 and size_of(grad.layout[dim]) == size_of(result[dim]):
        return grad
    if step != 1 or _is_number(start):
        raise CannotPad("it takes places that vary")
    tensor = sizes.fill(grad.tensor, grad.layout, 0, [dim])
    length = sizes.padded(size_of(result[dim]))
    if start < 0:
        if varies(grad.layout[dim]):
            raise CannotPad("it takes places that vary")
        first = sizes.actual(expression(size_of(result[dim]) + start))
        places = first + torch.arange(tensor.shape[dim], device=tensor.device)
        return _into(sizes, node, grad, layout, dim, places)
    pads = [0, 0] * (len(layout) - 1 - dim) + [start, length - start - tensor.shape[dim]]
    return Padded(torch.constant_pad_nd(tensor, pads), layout)


@_rule("split", "split_with_sizes", "unbind", "chunk")
def _split(sizes: Sizes, node: Node, x: Padded, *args):
    dim = args[-1] if len(args) == (1 if node.target._opname == "unbind" else 2) else 0
    dim %= len(x.layout)
    if varies(x.layout[dim]):
        raise CannotPad("it splits a dimension that is padded")
    layouts = []
    for found in sizes.results(node):
        if node.target._opname == "unbind":
            layouts.append(_reduced(x.layout, [dim], False))
        else:
            layouts.append((*x.layout[:dim], found[dim], *x.layout[dim + 1 :]))
    return _call(sizes, node, (x, *args), {}, layouts)


@_rule("cat", "stack")
def _cat(sizes: Sizes, node: Node, tensors: Sequence[Padded], dim: int = 0):
    stacked = node.target._opname == "stack"
    tensors = [t for t in tensors if stacked or t.layout != ((0,),)]
    if len(tensors) == 1 and not stacked:
        return Padded(tensors[0].tensor.clone(), tensors[0].layout)
    dim %= len(tensors[0].layout) + stacked
    if not stacked:
        if any(varies(t.layout[dim]) for t in tensors):
            raise CannotPad("it puts something behind a dimension that is padded")
        rest = broadcast([_reduced(t.layout, [dim], True) for t in tensors])
        joined = sum(size_of(t.layout[dim]) for t in tensors)
        layout = (*rest[:dim], dimension([joined]), *rest[dim + 1 :])
    else:
        rest = broadcast([t.layout for t in tensors])
        layout = (*rest[:dim], dimension([len(tensors)]), *rest[dim:])
    return _call(sizes, node, (tensors, dim), {}, layout)


@_rule("constant_pad_nd")
def _constant_pad(sizes: Sizes, node: Node, x: Padded, pad: Sequence[int], value=0):
    found, tensor = plain(sizes.result(node)), x.tensor
    layout = list(x.layout)
    if any(_is_number(p) for p in pad) or _is_number(value):
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


# --- sums and other reductions


def _lowest(dtype: torch.dtype) -> object:
    if dtype is torch.bool:
        return False
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _highest(dtype: torch.dtype) -> object:
    if dtype is torch.bool:
        return True
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


# What changes nothing in the padding.
_NEUTRAL: dict[str, Callable[[torch.dtype], object]] = {
    "sum": lambda dtype: 0,
    "prod": lambda dtype: 1,
    "any": lambda dtype: False,
    "all": lambda dtype: True,
    "amax": _lowest,
    "max": _lowest,
    "argmax": _lowest,
    "amin": _highest,
    "min": _highest,
    "argmin": _highest,
    "logsumexp": _lowest,
}


@_rule(*_NEUTRAL)
def _reduction(sizes: Sizes, node: Node, x: Padded, dims=None, keepdim=False, **kwargs):
    name = node.target._opname
    if isinstance(dims, Padded):  # max(a, b)
        return _pointwise(sizes, node, x, dims)
    reduced = _dims(x, dims)
    if name in ("argmax", "argmin") and dims is None and x.varies:
        raise CannotPad("it numbers the places of a padded tensor")
    if any(len(x.layout[d]) > 1 and varies(x.layout[d]) for d in reduced) and name[:3] == "arg":
        raise CannotPad("it numbers the places of a padded tensor")
    filled = sizes.fill(x.tensor, x.layout, _NEUTRAL[name](x.tensor.dtype), reduced)
    layout = _reduced(x.layout, reduced, keepdim)
    args = [a for a, given in ((dims, len(node.args) > 1), (keepdim, len(node.args) > 2)) if given]
    layouts = layout if isinstance(node.meta["val"], torch.Tensor) else [layout, layout]
    return _call(sizes, node, (Padded(filled, x.layout), *args), kwargs, layouts)


def _count(sizes: Sizes, x: Padded, dims: Sequence[int]) -> object:
    return sizes.actual(expression(math.prod(size_of(x.layout[d]) for d in dims)))


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Sums of few bits are taken in float32, as PyTorch does within an operator."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


@_rule("mean")
def _mean(sizes: Sizes, node: Node, x: Padded, dims=None, keepdim=False, *, dtype=None):
    dims = _dims(x, dims)
    tensor = x.tensor if dtype is None else x.tensor.to(dtype)
    total = _wide(sizes.fill(tensor, x.layout, 0, dims)).sum(dims, keepdim)
    mean = (total / _count(sizes, x, dims)).to(tensor.dtype)
    return Padded(mean, _reduced(x.layout, dims, keepdim))


@_rule("var", "std", "var_mean", "std_mean")
def _variance(sizes: Sizes, node: Node, x: Padded, dims=None, *, correction=None, keepdim=False):
    dims = _dims(x, dims)
    tensor, count = _wide(x.tensor), _count(sizes, x, dims)
    mean = sizes.fill(tensor, x.layout, 0, dims).sum(dims, True) / count
    squares = sizes.fill((tensor - mean).square(), x.layout, 0, dims).sum(dims, True)
    degrees = count - (1 if correction is None else correction)
    found = squares / (degrees.clamp(min=0) if isinstance(degrees, torch.Tensor) else degrees)
    if node.target._opname.startswith("std"):
        found = found.sqrt()
    layout = _reduced(x.layout, dims, keepdim)
    results = [
        Padded((r if keepdim else r.squeeze(dims)).to(x.tensor.dtype), layout)
        for r in (found, mean)
    ]
    return results if node.target._opname.endswith("_mean") else results[0]


@_rule("linalg_vector_norm")
def _vector_norm(sizes: Sizes, node: Node, x: Padded, ord=2, dims=None, keepdim=False, **kwargs):
    if not ord > 0:
        raise CannotPad("zeros count in this norm")
    reduced = _dims(x, dims)
    filled = Padded(sizes.fill(x.tensor, x.layout, 0, reduced), x.layout)
    layout = _reduced(x.layout, reduced, keepdim)
    return _call(sizes, node, (filled, ord, dims, keepdim), kwargs, layout)


@_rule("cumsum", "cumprod")
def _cumulative(sizes: Sizes, node: Node, x: Padded, dim: int, **kwargs):
    if varies(x.layout[dim]):
        from_the_front(x.layout[dim])
    return _call(sizes, node, (x, dim), kwargs, x.layout)


@_rule("_softmax", "_log_softmax")
def _softmax(sizes: Sizes, node: Node, x: Padded, dim: int, half_to_float: bool):
    filled = Padded(sizes.fill(x.tensor, x.layout, -math.inf, [dim]), x.layout)
    return _call(sizes, node, (filled, dim, half_to_float), {}, x.layout)


@_rule("_softmax_backward_data", "_log_softmax_backward_data")
def _softmax_backward(sizes: Sizes, node: Node, grad: Padded, output: Padded, dim, dtype):
    layout = broadcast([grad.layout, output.layout])
    filled = [Padded(sizes.fill(t.tensor, t.layout, 0, [dim]), layout) for t in (grad, output)]
    return _call(sizes, node, (*filled, dim, dtype), {}, layout)


# --- products


def _contracted(sizes: Sizes, a: Padded, b: Padded) -> tuple[Padded, Padded]:
    """With zeros where rows of `a` and columns of `b` are padded."""
    if a.layout[-1] != b.layout[-2]:
        raise CannotPad("dimensions that are padded differently meet")
    return (
        Padded(sizes.fill(a.tensor, a.layout, 0, [-1]), a.layout),
        Padded(sizes.fill(b.tensor, b.layout, 0, [-2]), b.layout),
    )


@_rule("mm", "bmm")
def _product(sizes: Sizes, node: Node, a: Padded, b: Padded):
    a, b = _contracted(sizes, a, b)
    batch = broadcast([a.layout[:-2], b.layout[:-2]])
    return _call(sizes, node, (a, b), {}, (*batch, a.layout[-2], b.layout[-1]))


@_rule("addmm", "baddbmm")
def _product_and_sum(sizes: Sizes, node: Node, c: Padded, a: Padded, b: Padded, **kwargs):
    a, b = _contracted(sizes, a, b)
    batch = broadcast([a.layout[:-2], b.layout[:-2]])
    layout = broadcast([c.layout, (*batch, a.layout[-2], b.layout[-1])])
    return _call(sizes, node, (c, a, b), kwargs, layout)


# --- normalization over dimensions that do not vary


def _normalized(x: Padded, shape: Sequence) -> Layout:
    rank = len(x.layout) - len(shape)
    if any(map(varies, x.layout[rank:])):
        raise CannotPad("it normalizes over a dimension that is padded")
    return (*x.layout[:rank], *((),) * len(shape))


@_rule("native_layer_norm", "_fused_rms_norm")
def _layer_norm(sizes: Sizes, node: Node, x: Padded, shape, *args):
    statistics = _normalized(x, shape)
    layouts = [x.layout] + [statistics] * (len(node.meta["val"]) - 1)
    return _call(sizes, node, (x, shape, *args), {}, layouts)


@_rule("native_layer_norm_backward", "_fused_rms_norm_backward")
def _layer_norm_backward(sizes: Sizes, node: Node, grad: Padded, x: Padded, shape, *args):
    _normalized(x, shape)
    layouts = [
        None if v is None else x.layout if i == 0 else plain(v.shape)
        for i, v in enumerate(node.meta["val"])
    ]
    args = [_zeroed(sizes, a) for a in (grad, x, shape, *args)]
    return _call(sizes, node, args, {}, layouts)


# --- operators that treat every row of the batch alike


def _batch_only(args: Sequence) -> None:
    for value in tree_leaves(list(args)):
        if isinstance(value, Padded) and any(map(varies, value.layout[1:])):
            raise CannotPad("a dimension other than the first is padded")


@_rule("convolution", "convolution_overrideable", "native_group_norm", "avg_pool2d", "avg_pool1d")
@_rule("max_pool2d_with_indices", "_adaptive_avg_pool2d", "upsample_nearest2d", "pixel_shuffle")
@_rule("upsample_bilinear2d", "upsample_bicubic2d", "_native_batch_norm_legit_no_training")
def _by_rows(sizes: Sizes, node: Node, x: Padded, *args):
    _batch_only((x, *args))
    if any(isinstance(v, Padded) and v.varies for v in tree_leaves(args)):
        raise CannotPad("an argument other than the first is padded")
    return _call(sizes, node, (x, *args), {}, sizes.results(node))


@_rule("convolution_backward", "convolution_backward_overrideable", "native_group_norm_backward")
@_rule("max_pool2d_with_indices_backward", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward")
@_rule("upsample_nearest2d_backward", "upsample_bilinear2d_backward")
def _by_rows_backward(sizes: Sizes, node: Node, *args):
    _batch_only(args)
    args = [_zeroed(sizes, a) for a in args]
    return _call(sizes, node, args, {}, sizes.results(node))


# --- indices


def _indices(sizes: Sizes, index: Padded, indexed: Dimension) -> Padded:
    """With zeros in the padding, and counted from the front."""
    tensor = index.tensor
    if tensor.dtype in (torch.bool, torch.uint8):
        raise CannotPad("how much a mask selects varies")
    if varies(indexed):
        size = sizes.actual(from_the_front(indexed))
        tensor = torch.where(tensor < 0, tensor + size.to(tensor.dtype), tensor)
    return _zeroed(sizes, Padded(tensor, index.layout))


@_rule("embedding")
def _embedding(sizes: Sizes, node: Node, weight: Padded, indices: Padded, *args):
    layout = (*indices.layout, *weight.layout[1:])
    indices = _indices(sizes, indices, weight.layout[0])
    return _call(sizes, node, (weight, indices, *args), {}, layout)


@_rule("embedding_dense_backward")
def _embedding_backward(sizes: Sizes, node: Node, grad: Padded, indices: Padded, *args):
    if args[2]:
        raise CannotPad("it counts how often an index occurs")
    given = (_zeroed(sizes, grad), _zeroed(sizes, indices), *args)
    return _call(sizes, node, given, {}, sizes.results(node))


@_rule("gather")
def _gather(sizes: Sizes, node: Node, x: Padded, dim: int, index: Padded, **kwargs):
    index = _indices(sizes, index, x.layout[dim])
    return _call(sizes, node, (x, dim, index), kwargs, index.layout)


@_rule("index_select")
def _index_select(sizes: Sizes, node: Node, x: Padded, dim: int, index: Padded):
    dim %= len(x.layout)
    index = _indices(sizes, index, x.layout[dim])
    layout = (*x.layout[:dim], *(index.layout or ((),)), *x.layout[dim + 1 :])
    return _call(sizes, node, (x, dim, index), {}, layout)


@_rule("index")
def _index(sizes: Sizes, node: Node, x: Padded, indices: Sequence[Padded | None]):
    given = [i for i, index in enumerate(indices) if index is not None]
    found = [i and _indices(sizes, i, x.layout[d]) for d, i in enumerate(indices)]
    common = broadcast([found[i].layout for i in given])
    rest = [d for i, d in enumerate(x.layout) if i not in given]
    # Where the indices stand together their dimensions come in their place, else in front.
    together = given == list(range(given[0], given[-1] + 1))
    place = given[0] if together else 0
    layout = (*rest[:place], *common, *rest[place:])
    return _call(sizes, node, (x, found), {}, layout)


@_rule("scatter")
def _scatter(sizes: Sizes, node: Node, x: Padded, dim: int, index: Padded, *args, **kwargs):
    if index.varies or any(isinstance(a, Padded) and a.varies for a in args):
        raise CannotPad("the padding would be written as well")
    index = _indices(sizes, index, x.layout[dim])
    return _call(sizes, node, (x, dim, index, *args), kwargs, x.layout)


@_rule("scatter_add")
def _scatter_add(sizes: Sizes, node: Node, x: Padded, dim: int, index: Padded, source: Padded):
    index = _indices(sizes, index, x.layout[dim])
    if broadcast([index.layout, source.layout]) != index.layout:
        raise CannotPad("dimensions that are padded differently meet")
    return _call(sizes, node, (x, dim, index, _zeroed(sizes, source)), {}, x.layout)


@_rule("index_add")
def _index_add(sizes: Sizes, node: Node, x: Padded, dim: int, index: Padded, source: Padded, **kw):
    if source.layout[dim] != (index.layout[0] if index.layout else ()):
        raise CannotPad("dimensions that are padded differently meet")
    index = _indices(sizes, index, x.layout[dim])
    return _call(sizes, node, (x, dim, index, _zeroed(sizes, source)), kw, x.layout)


@_rule("index_put", "_unsafe_index_put")
def _index_put(sizes: Sizes, node: Node, x: Padded, indices, values: Padded, accumulate=False):
    found = [i and _indices(sizes, i, x.layout[d]) for d, i in enumerate(indices)]
    if any(i is not None and i.varies for i in found) or values.varies:
        if not accumulate:
            raise CannotPad("the padding would be written as well")
        leading = broadcast([i.layout for i in found if i is not None])
        if values.layout[: len(leading)] != leading or None in indices[: len(leading)]:
            raise CannotPad("it adds one value in several places")
        values = _zeroed(sizes, values)
    return _call(sizes, node, (x, found, values, accumulate), {}, x.layout)


# --- losses


def _ignoring(sizes: Sizes, target: Padded, ignored: int) -> Padded:
    return Padded(sizes.fill(target.tensor, target.layout, ignored), target.layout)


@_rule("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss(sizes: Sizes, node: Node, x: Padded, target: Padded, weight, reduction, ignored):
    target = _ignoring(sizes, target, ignored)
    layouts = [target.layout if reduction == 0 else (), ()]
    args = (_zeroed(sizes, x), target, weight, reduction, ignored)
    return _call(sizes, node, args, {}, layouts)


@_rule("nll_loss_backward", "nll_loss2d_backward")
def _nll_loss_backward(
    sizes: Sizes, node: Node, grad, x: Padded, target, weight, reduction, ignored, total
):
    args = (grad, x, _ignoring(sizes, target, ignored), weight, reduction, ignored, total)
    return _call(sizes, node, args, {}, x.layout)


@_rule("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss")
@_rule("binary_cross_entropy_with_logits")
def _loss(sizes: Sizes, node: Node, x: Padded, target: Padded, *args):
    args = _with_reduction(node, args, 0)
    layout = broadcast([x.layout, target.layout])
    each = _call(sizes, node, (x, target, *args[0]), {}, layout)
    if args[1] == 0:
        return each
    total = _wide(sizes.fill(each.tensor, layout, 0)).sum()
    if args[1] == 1:
        total = total / _count(sizes, each, range(len(layout)))
    return Padded(total.to(each.tensor.dtype), ())


@_rule("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward")
@_rule("binary_cross_entropy_backward", "soft_margin_loss_backward")
def _loss_backward(sizes: Sizes, node: Node, grad: Padded, x: Padded, target: Padded, *args):
    args, reduction = _with_reduction(node, args, 2)
    layout = broadcast([x.layout, target.layout])
    if reduction == 0:
        raise CannotPad("it has no rule for padding")
    if reduction == 1:
        count = _count(sizes, Padded(x.tensor, layout), range(len(layout)))
        grad = Padded((grad.tensor / count).to(grad.tensor.dtype), grad.layout)
    return _call(sizes, node, (grad, x, target, *args), {}, layout)


def _with_reduction(node: Node, args: Sequence, reduction: int) -> tuple[list, int]:
    """The arguments behind the target with another reduction, and the one that was given."""
    names = [a.name for a in node.target._schema.arguments]
    place = names.index("reduction") - names.index("target") - 1
    defaults = [a.default_value for a in node.target._schema.arguments]
    args = [*args, *defaults[names.index("target") + 1 + len(args) :]]
    given, args[place] = args[place], reduction
    return args, given


# --- attention


def _keys(sizes: Sizes, key: Padded, query: Padded, bias: Padded | None, causal: bool):
    """The bias that leaves out padded keys, and whether queries still have to leave out later ones.

    Causal attention of as many queries as keys needs none: what is filled sees only what is filled.
    """
    length = key.layout[2]
    if not varies(length) or (causal and query.layout[2] == length):
        return bias, causal
    inside, layout = sizes.filled(length), (length,)
    if causal:
        places = [torch.arange(t.tensor.shape[2], device=key.tensor.device) for t in (query, key)]
        inside, layout = inside & (places[1] <= places[0][:, None]), (query.layout[2], length)
    dtype, device = query.tensor.dtype, query.tensor.device
    other = torch.full((), -math.inf, dtype=dtype, device=device)
    given = torch.zeros((), dtype=dtype, device=device) if bias is None else bias.tensor
    tensor = torch.where(inside, given, other)
    layout = broadcast([layout, () if bias is None else bias.layout])
    rank = 4 - tensor.dim()
    full = Padded(tensor.view([1] * rank + list(tensor.shape)), ((),) * rank + layout)
    return full, False


@_rule("_scaled_dot_product_fused_attention_overrideable")
def _attention(
    sizes: Sizes,
    node: Node,
    query: Padded,
    key: Padded,
    value: Padded,
    bias: Padded | None = None,
    dropout=0.0,
    causal=False,
    *args,
    **kwargs,
):
    bias, causal = _keys(sizes, key, query, bias, causal)
    # No scores of padding that are not numbers.
    key, value = (_zeroed(sizes, t) if varies(t.layout[2]) else t for t in (key, value))
    layouts = [None] * len(node.meta["val"])
    layouts[0] = (*query.layout[:3], value.layout[3])
    layouts[1] = query.layout[:3]
    layouts[6] = layouts[7] = ()
    given = (query, key, value, bias, dropout, causal, *args)
    return _call(sizes, node, given, kwargs, layouts)


@_rule("_scaled_dot_product_fused_attention_overrideable_backward")
def _attention_backward(
    sizes: Sizes,
    node: Node,
    grad: Padded,
    query: Padded,
    key: Padded,
    value: Padded,
    bias: Padded | None,
    needed,
    out: Padded,
    logsumexp: Padded,
    cum_q,
    cum_k,
    max_q,
    max_k,
    dropout,
    causal,
    *args,
    **kwargs,
):
    layouts = [query.layout, key.layout, value.layout, bias.layout if bias is not None else None]
    bias, causal = _keys(sizes, key, query, bias, causal)
    grad, query, key, value, out, logsumexp = (
        _zeroed(sizes, t) for t in (grad, query, key, value, out, logsumexp)
    )
    given = (grad, query, key, value, bias, needed, out, logsumexp, cum_q, cum_k)
    given += (sizes.padded(max_q), sizes.padded(max_k), dropout, causal, *args)
    return _call(sizes, node, given, kwargs, layouts)
