"""What of a padded tensor is filled.

A dimension whose size varies is padded to a bucket, and dimensions are merged and split by views.
So each is described by its factors, outer ones first: `(3, s)` is a dimension in which the first
`s` places of every third are filled, `(s, 3)` one that is filled from the front. A factor is an int
or an expression of the symbols that `torch.compile` has for sizes.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import sympy
import torch
from torch.fx import Node
from torch.utils._sympy import functions

Size = int | sympy.Expr
Dimension = tuple[Size, ...]  # no factor of 1, no two ints side by side
Layout = tuple[Dimension, ...]
Symbols = Mapping[sympy.Symbol, int]


class CannotPad(Exception):
    """What is computed would not be the same with padding, or no rule says how it would be."""


def expression(number: object) -> object:
    """The expression of a symbolic number, simplified to a Python one where it is constant."""
    if isinstance(number, (torch.SymInt, torch.SymFloat)):
        number = number.node.expr
    if isinstance(number, sympy.Integer):
        return int(number)
    return float(number) if isinstance(number, sympy.Float) else number


def varies(dimension: Dimension) -> bool:
    return any(not isinstance(factor, int) for factor in dimension)


def dimension(factors: Iterable[Size]) -> Dimension:
    found: list[Size] = []
    for factor in factors:
        if isinstance(factor, int) and found and isinstance(found[-1], int):
            found[-1] *= factor
        elif not (isinstance(factor, int) and factor == 1):
            found.append(factor)
    return tuple(found)


def size_of(dimension: Dimension) -> Size:
    return expression(sympy.expand(math.prod(dimension))) if dimension else 1


def plain(shape: Iterable[Size]) -> Layout:
    """Of a tensor whose dimensions are filled from the front."""
    return tuple(dimension(_coefficient_last(expression(size))) for size in shape)


def _coefficient_last(size: Size) -> list[Size]:
    """`2 * s` filled from the front is `s` times two."""
    if isinstance(size, sympy.Mul) and isinstance(size.args[0], sympy.Integer):
        return [size / size.args[0], int(size.args[0])]
    return [size]


def from_the_front(dimension: Dimension) -> Size:
    """The size of a dimension that is filled from the front. Raises CannotPad for another."""
    if any(not isinstance(factor, int) for factor in dimension[1:]):
        raise CannotPad("it takes a part of a dimension that is padded in between")
    return size_of(dimension)


def broadcast(layouts: Sequence[Layout]) -> Layout:
    """What elementwise operators give. Raises CannotPad where places do not correspond."""
    rank = max(map(len, layouts), default=0)
    found = []
    for i in range(-rank, 0):
        filled = {layout[i] for layout in layouts if len(layout) >= -i and layout[i]}
        if len(filled) > 1:
            raise CannotPad("dimensions that are padded differently meet")
        found.append(filled.pop() if filled else ())
    return tuple(found)


def _quotient(size: Size, factor: Size) -> Size | None:
    quotient = sympy.cancel(sympy.sympify(size) / factor)
    whole = sympy.denom(quotient) == 1 and not quotient.atoms(sympy.Function)
    return expression(quotient) if whole else None


def reshaped(layout: Layout, shape: Sequence[Size]) -> Layout:
    """The layout after a view of `shape`. Raises CannotPad if that cuts a padded dimension."""
    left = list(reversed(dimension(f for d in layout for f in d)))
    found = []
    for wanted in shape:
        wanted, factors = expression(wanted), []
        while wanted != 1:
            factor = left.pop() if left else None
            if factor is None:
                raise CannotPad("a view cuts a dimension that is padded")
            if (rest := _quotient(wanted, factor)) is None and isinstance(factor, int):
                # A part of a constant factor: all of it that `wanted` has room for.
                part = math.gcd(factor, int(sympy.sympify(wanted).as_coeff_Mul()[0]))
                left.append(factor // part)
                factor, rest = part, _quotient(wanted, part)
                if part == 1:
                    rest = None
            if rest is None:
                raise CannotPad("a view cuts a dimension that is padded")
            factors.append(factor)
            wanted = rest
        found.append(dimension(factors))
    if left:
        raise CannotPad("a view cuts a dimension that is padded")
    return tuple(found)


def value_of(size: Size, symbols: Symbols) -> int:
    if isinstance(size, int):
        return size
    value = size.subs(symbols)
    if not value.is_Integer:
        raise CannotPad(f"{size} is not a size")
    return int(value)


def shape_of(layout: Layout, symbols: Symbols) -> list[int]:
    return [math.prod(value_of(factor, symbols) for factor in d) for d in layout]


_FUNCTIONS = {
    functions.IntTrueDiv: torch.true_divide,
    functions.FloatTrueDiv: torch.true_divide,
    functions.FloorDiv: lambda a, b: torch.div(a, b, rounding_mode="floor"),
    functions.ToFloat: lambda a: a,
}


class Sizes:
    """The symbols within a program: what they are padded to, and what they are when it runs."""

    def __init__(
        self,
        buckets: Symbols,
        actual: Mapping[sympy.Symbol, torch.Tensor],
        fixed: Symbols,
    ) -> None:
        """`actual`: 0-d tensors on the device. `fixed`: numbers that the program is for."""
        self.buckets = buckets
        self._actual = actual
        self._fixed = fixed

    def expression(self, number: object) -> object:
        """See `extents.expression`."""
        number = expression(number)
        if self._fixed and isinstance(number, sympy.Basic):
            number = expression(number.subs(self._fixed))
        return number

    def layout(self, layout: Layout) -> Layout:
        """With the numbers that the program is for."""
        return tuple(dimension(map(self.expression, d)) for d in layout)

    def result(self, node: Node) -> list[Size]:
        """The shape of the one tensor that a node gives without padding."""
        return [self.expression(size) for size in node.meta["val"].shape]

    def results(self, node: Node) -> Layout | list[Layout | None]:
        """The layouts of a node's results, if they are filled from the front."""
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            return plain(self.result(node))
        return [
            plain(map(self.expression, v.shape)) if isinstance(v, torch.Tensor) else None
            for v in value
        ]

    def padded(self, size: Size) -> int:
        return value_of(size, self.buckets)

    def shape(self, layout: Layout) -> list[int]:
        return shape_of(layout, self.buckets)

    def actual(self, number: object, dtype: torch.dtype = torch.float32) -> object:
        """The value of an expression when the program runs; with `dtype`, if it is a fraction."""
        if not isinstance(number, sympy.Basic):
            return number
        if isinstance(number, sympy.Symbol) and number in self._actual:
            return self._actual[number]
        if isinstance(number, sympy.Integer):
            return int(number)
        if isinstance(number, (sympy.Float, sympy.Rational)):
            return float(number)
        parts = [self.actual(part, dtype) for part in number.args]
        if isinstance(number, sympy.Add):
            return sum(parts)
        if isinstance(number, sympy.Mul):
            return math.prod(parts)
        if isinstance(number, sympy.Pow) and isinstance(number.exp, sympy.Integer):
            return parts[0] ** int(number.exp)
        if (function := _FUNCTIONS.get(type(number))) is not None:
            if function is torch.true_divide:
                parts[0] = torch.as_tensor(parts[0], device=self._device()).to(dtype)
            return function(*parts)
        raise CannotPad(f"the number {number} cannot be computed in a program")

    def _device(self) -> torch.device:
        return next(iter(self._actual.values())).device

    def filled(self, dimension: Dimension) -> torch.Tensor:
        """Which places of a dimension are filled: 1-d, bool."""
        sizes = [self.padded(factor) for factor in dimension]
        found = torch.ones((), dtype=torch.bool, device=self._device())
        for i, factor in enumerate(dimension):
            if not isinstance(factor, int):
                places = torch.arange(sizes[i], dtype=torch.int32, device=self._device())
                inside = places < self.actual(factor).to(torch.int32)
                found = found & inside.view([-1 if i == j else 1 for j in range(len(sizes))])
        return found.expand(sizes).reshape(-1)

    def fill(
        self, tensor: torch.Tensor, layout: Layout, value: object, dims: Iterable[int] | None = None
    ) -> torch.Tensor:
        """`tensor` with `value` in the padding of `dims`; of all dimensions without."""
        for d in range(tensor.dim()) if dims is None else {d % tensor.dim() for d in dims}:
            if varies(layout[d]):
                inside = self.filled(layout[d])
                inside = inside.view([-1 if i == d else 1 for i in range(tensor.dim())])
                other = torch.full((), value, dtype=tensor.dtype, device=tensor.device)
                tensor = torch.where(inside, tensor, other)
        return tensor
