"""Losses."""

from collections.abc import Sequence

from torch.fx import Node

from ..extents import Sizes, broadcast
from .rule import Padded, call, count_of, filled, rule, widened, zeroed

# at::Reduction
NONE, MEAN, SUM = 0, 1, 2


@rule("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss(sizes: Sizes, node: Node, x: Padded, target: Padded, weight, reduction, ignored):
    target = filled(sizes, target, ignored)
    layouts = [target.layout if reduction == 0 else (), ()]
    args = (zeroed(sizes, x), target, weight, reduction, ignored)
    return call(sizes, node, args, {}, layouts)


@rule("nll_loss_backward", "nll_loss2d_backward")
def _nll_loss_backward(
    sizes: Sizes, node: Node, grad, x: Padded, target, weight, reduction, ignored, total
):
    args = (grad, x, filled(sizes, target, ignored), weight, reduction, ignored, total)
    return call(sizes, node, args, {}, x.layout)


@rule("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss")
@rule("binary_cross_entropy_with_logits")
def _loss(sizes: Sizes, node: Node, x: Padded, target: Padded, *args):
    args, place = _with_reduction(node, args)
    reduction, args[place] = args[place], NONE
    layout = broadcast([x.layout, target.layout])
    each = call(sizes, node, (x, target, *args), {}, layout)
    if reduction == NONE:
        return each
    total = widened(sizes.fill(each.tensor, layout, 0)).sum()
    if reduction == MEAN:
        total = total / count_of(sizes, each, range(len(layout)))
    return Padded(total.to(each.tensor.dtype), ())


@rule("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward")
@rule("binary_cross_entropy_backward", "soft_margin_loss_backward")
def _loss_backward(sizes: Sizes, node: Node, grad: Padded, x: Padded, target: Padded, *args):
    args, place = _with_reduction(node, args)
    layout = broadcast([grad.layout, x.layout, target.layout])
    if args[place] == MEAN:
        count = count_of(sizes, Padded(x.tensor, layout), range(len(layout)))
        grad = Padded((grad.tensor / count).to(grad.tensor.dtype), grad.layout)
        args[place] = SUM
    return call(sizes, node, (grad, x, target, *args), {}, layout)


def _with_reduction(node: Node, args: Sequence) -> tuple[list, int]:
    """The arguments behind the target, and which of them says how the loss is reduced."""
    names = [a.name for a in node.target._schema.arguments]
    defaults = [a.default_value for a in node.target._schema.arguments]
    first = names.index("target") + 1
    return [*args, *defaults[first + len(args) :]], names.index("reduction") - first
