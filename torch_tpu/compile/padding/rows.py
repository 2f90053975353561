"""Normalization, and operators that treat every row of the batch alike."""

from collections.abc import Sequence

from torch.fx import Node
from torch.utils._pytree import tree_leaves

from ..extents import CannotPad, Layout, Sizes, plain, varies
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


def _batch_only(args: Sequence) -> None:
    for value in tree_leaves(list(args)):
        if isinstance(value, Padded) and any(map(varies, value.layout[1:])):
            raise CannotPad("a dimension other than the first is padded")


@rule("convolution", "convolution_overrideable", "native_group_norm", "avg_pool2d", "avg_pool1d")
@rule("max_pool2d_with_indices", "_adaptive_avg_pool2d", "upsample_nearest2d", "pixel_shuffle")
@rule("upsample_bilinear2d", "upsample_bicubic2d", "_native_batch_norm_legit_no_training")
def _by_rows(sizes: Sizes, node: Node, x: Padded, *args):
    _batch_only((x, *args))
    if any(isinstance(v, Padded) and v.varies for v in tree_leaves(args)):
        raise CannotPad("an argument other than the first is padded")
    return call(sizes, node, (x, *args), {}, sizes.results(node))


@rule("convolution_backward", "convolution_backward_overrideable", "native_group_norm_backward")
@rule("max_pool2d_with_indices_backward", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward")
@rule("upsample_nearest2d_backward", "upsample_bilinear2d_backward")
def _by_rows_backward(sizes: Sizes, node: Node, *args):
    _batch_only(args)
    args = [zeroed(sizes, a) for a in args]
    return call(sizes, node, args, {}, sizes.results(node))
