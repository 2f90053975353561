"""Products of matrices."""

from torch.fx import Node

from ..extents import CannotPad, Sizes, broadcast
from .rule import Padded, call, filled, rule


def _contracted(sizes: Sizes, a: Padded, b: Padded) -> tuple[Padded, Padded]:
    """With zeros where rows of `a` and columns of `b` are padded."""
    if a.layout[-1] != b.layout[-2]:
        raise CannotPad("dimensions that are padded differently meet")
    return filled(sizes, a, 0, [-1]), filled(sizes, b, 0, [-2])


@rule("mm", "bmm")
def _product(sizes: Sizes, node: Node, a: Padded, b: Padded):
    a, b = _contracted(sizes, a, b)
    batch = broadcast([a.layout[:-2], b.layout[:-2]])
    return call(sizes, node, (a, b), {}, (*batch, a.layout[-2], b.layout[-1]))


@rule("addmm", "baddbmm")
def _product_and_sum(sizes: Sizes, node: Node, c: Padded, a: Padded, b: Padded, **kwargs):
    a, b = _contracted(sizes, a, b)
    batch = broadcast([a.layout[:-2], b.layout[:-2]])
    layout = broadcast([c.layout, (*batch, a.layout[-2], b.layout[-1])])
    return call(sizes, node, (c, a, b), kwargs, layout)
