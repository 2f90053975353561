"""Normalization, and operators that treat every row of the batch alike."""

from collections.abc import Sequence

from torch.fx import Node
from torch.utils._pytree import tree_leaves

from ..extents import CannotPad, Layout, Sizes, plain, size_of, varies
from .rule import Padded, call, rule, zeroed


def _normalized(x: Padded, shape: Sequence) -> Layout:
    rank = len(x.layout) - len(shape)
    if any(map(varies, x.layout[rank:])):
        raise CannotPad("it normalizes over a dimension that is padded")
    return (*x.layout[:rank], *((),) * len(shape))


@rule("native_layer_norm", "_fused_rms_norm")
def _layer_norm(sizes: Sizes, node: Node, x: Padded, shape, *args):
    statistics = _normalized(x, shape)
    layouts = [x.layout] + [statistics] * (len(node.meta["val"]) - 1)
    return call(sizes, node, (x, shape, *args), {}, layouts)


@rule("native_layer_norm_backward", "_fused_rms_norm_backward")
def _layer_norm_backward(sizes: Sizes, node: Node, grad: Padded, x: Padded, shape, *args):
    _normalized(x, shape)
    layouts = [
        None if v is None else x.layout if i == 0 else plain(v.shape)
        for i, v in enumerate(node.meta["val"])
    ]
    args = [zeroed(sizes, a) for a in (grad, x, shape, *args)]
    return call(sizes, node, args, {}, layouts)


def _by_rows(sizes: Sizes, node: Node, args: Sequence, shapes: bool) -> object:
    """The operator, if nothing but the rows of the batch is padded."""
    given = [v for v in tree_leaves(list(args)) if isinstance(v, Padded)]
    batches = {v.layout[0] for v in given if v.layout and varies(v.layout[0])}
    if len(batches) != 1 or any(map(varies, (d for v in given for d in v.layout[1:]))):
        raise CannotPad("a dimension other than the first is padded")
    batch = batches.pop()

    def row(layout: Layout | None) -> Layout | None:
        if layout is None or not any(map(varies, layout)):
            return layout
        if any(map(varies, layout[1:])) or size_of(layout[0]) != size_of(batch):
            raise CannotPad("a dimension of its result other than the first varies")
        return (batch, *layout[1:])

    results = sizes.results(node)
    several = isinstance(results, list)
    layouts = [row(layout) for layout in results] if several else row(results)
    return call(sizes, node, args, {}, layouts, shapes=shapes)


@rule("convolution", "convolution_overrideable", "native_group_norm", "avg_pool2d", "avg_pool1d")
@rule("max_pool2d_with_indices", "_adaptive_avg_pool2d", "upsample_nearest2d", "pixel_shuffle")
@rule("upsample_bilinear2d", "upsample_bicubic2d")
def _forward(sizes: Sizes, node: Node, x: Padded, *args):
    if any(isinstance(v, Padded) and v.varies for v in tree_leaves(args)):
        raise CannotPad("an argument other than the first is padded")
    return _by_rows(sizes, node, (x, *args), shapes=node.target._opname == "native_group_norm")


@rule("convolution_backward", "convolution_backward_overrideable", "native_group_norm_backward")
@rule("max_pool2d_with_indices_backward", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward")
@rule("upsample_nearest2d_backward", "upsample_bilinear2d_backward")
def _backward(sizes: Sizes, node: Node, *args):
    args = [zeroed(sizes, a) for a in args]
    # Whose numbers are shapes of inputs; those of pooling are of windows as well.
    shapes = node.target._opname != "avg_pool2d_backward"
    return _by_rows(sizes, node, args, shapes)
