"""What rules for padding are, and what they share."""

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Sequence

import sympy
import torch
from torch.fx import Node
from torch.utils._pytree import tree_map

from ..extents import CannotPad, Layout, Sizes, expression, size_of, varies


@dataclasses.dataclass
class Padded:
    """A tensor of a program, and what of it is filled."""

    tensor: torch.Tensor
    layout: Layout

    @property
    def varies(self) -> bool:
        return any(map(varies, self.layout))


_rules: dict[str, Callable] = {}
POINTWISE = "pointwise"  # the rule of all operators that PyTorch tags so


def rule(*names: str):
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
        rule = _rules[POINTWISE]
    if rule is None:
        raise CannotPad("it has no rule for padding")
    return rule(sizes, node, *args, **kwargs)


def is_number(value: object) -> bool:
    return isinstance(value, sympy.Basic)


def call(
    sizes: Sizes,
    node: Node,
    args: Sequence,
    kwargs: dict,
    layouts: object,
    *,
    shapes: bool = False,
) -> object:
    """The operator itself. `layouts` of its results; a list if there are several, with None for
    those that are not tensors. Numbers that vary are refused, except with `shapes`: then they are
    sizes, and become those of the padded tensors."""

    def plain_value(value):
        if isinstance(value, Padded):
            return value.tensor
        if not is_number(value):
            return value
        if not shapes:
            raise CannotPad("one of its numbers varies")
        return sizes.padded(value)

    given = tree_map(plain_value, list(args)), tree_map(plain_value, kwargs)
    results = node.target(*given[0], **given[1])
    if isinstance(results, torch.Tensor):
        return Padded(results, layouts)
    return [
        Padded(r, layout) if isinstance(r, torch.Tensor) and layout is not None else None
        for r, layout in zip(results, layouts, strict=True)
    ]


def dims_of(x: Padded, dims: object) -> list[int]:
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(len(x.layout)))
    return [d % len(x.layout) for d in (dims if isinstance(dims, (list, tuple)) else [dims])]


def reduced_layout(layout: Layout, dims: Sequence[int], keepdim: bool) -> Layout:
    return tuple(() if i in dims else d for i, d in enumerate(layout) if keepdim or i not in dims)


def filled(sizes: Sizes, x: Padded, value: object, dims: Iterable[int] | None = None) -> Padded:
    """With `value` in the padding of `dims`; of all dimensions without."""
    return Padded(sizes.fill(x.tensor, x.layout, value, dims), x.layout)


def zeroed(sizes: Sizes, value: object) -> object:
    """Zeros in the padding of a tensor; other arguments as they are."""
    return filled(sizes, value, 0) if isinstance(value, Padded) else value


def lowest(dtype: torch.dtype) -> object:
    if dtype is torch.bool:
        return False
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> object:
    if dtype is torch.bool:
        return True
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


def count_of(sizes: Sizes, x: Padded, dims: Sequence[int]) -> object:
    return sizes.actual(expression(math.prod(size_of(x.layout[d]) for d in dims)))


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Sums of few bits are taken in float32, as PyTorch does within an operator."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
