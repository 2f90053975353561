"""Graphs whose sizes vary, as programs for a few sizes: what is given is padded to the next one.

A program for a bucket takes the actual sizes as arguments, so it serves all sizes up to its own and
gives exactly what is asked for; `padding` has the rules.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import sympy
import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves, tree_map

from torch_tpu import _C

from . import padding
from .capture import stand_in
from .collectives import is_collective
from .extents import (
    CannotPad,
    Layout,
    Size,
    Sizes,
    Symbols,
    expression,
    plain,
    shape_of,
    size_of,
    value_of,
    varies,
)
from .padding import Padded
from .run import CannotCapture, plain_operators, run_nodes, source_of
from .staging import Staging, constants_of, is_number, name_of, values_of


def bucket_of(size: int, largest: int | None = None) -> int:
    """The next power of two, or the one before it and a half: at most a third is padding."""
    size = max(size, 2)  # one row would be taken for one that is broadcast
    power = 1 << (size - 1).bit_length()
    found = power * 3 // 4 if power >= 4 and size <= power * 3 // 4 else power
    return found if largest is None else min(found, largest)


@dataclasses.dataclass
class Padding:
    """What a graph whose sizes vary is padded by. The backward pass takes over what the forward
    pass found.

    `sizes`: the numbers that are sizes of inputs, by their symbols, and what they are at most if
    that is known. `fixed`: whether each program is for one value of the other numbers, rather than
    taking them as arguments. `kept`: outputs from this one on may stay padded. `layouts`: of those
    inputs that the forward pass left padded, by name. `results`: of what the forward pass
    returned, by shape. `refused`: why nothing is padded.
    """

    sizes: dict[str, int | None]
    fixed: bool = False
    kept: int | None = None
    layouts: dict[str, Layout] = dataclasses.field(default_factory=dict)
    results: dict[tuple[Size, ...], Layout] = dataclasses.field(default_factory=dict)
    refused: str | None = None

    @classmethod
    def of(cls, module: GraphModule, kept: int | None = None) -> "Padding":
        """With the bounds that `mark_dynamic` and the traced code give."""
        sizes: dict[str, int | None] = {}
        for node in module.graph.find_nodes(op="placeholder"):
            value = node.meta.get("val")
            for size in value.shape if isinstance(value, torch.Tensor) else ():
                symbol = expression(size)
                if isinstance(symbol, sympy.Symbol):
                    upper = size.node.shape_env.bound_sympy(symbol).upper
                    bounded = isinstance(upper, (int, sympy.Integer)) and upper < 2**31
                    sizes[str(symbol)] = int(upper) if bounded else None
        return cls(sizes, kept=kept)


def by_shape(layouts: Mapping[str, Layout]) -> dict[tuple[Size, ...], Layout]:
    """Layouts by the shape of what has them."""
    return {tuple(map(size_of, layout)): layout for layout in reversed(layouts.values())}


class Buckets:
    """The programs of a graph, one for each bucket.

    Called like an `Executable`, with a list of inputs that it empties.
    """

    def __init__(
        self, module: GraphModule, name: str, donated: Iterable[Node], padding: Padding
    ) -> None:
        """Raises CannotPad, with the reason, if the graph cannot be padded."""
        self.module = module
        self.name = name
        self.padding = padding
        self.placeholders = list(module.graph.find_nodes(op="placeholder"))
        self.results = list(module.graph.output_node().args[0])
        self.kept = len(self.results) if padding.kept is None else padding.kept
        self.tensors = [
            n
            for n in self.placeholders
            if not is_number(n) and any(u.op != "output" and not is_number(u) for u in n.users)
        ]
        self.donated = [i for i, n in enumerate(self.tensors) if n in set(donated)]
        self.symbols = self._sources()
        self.layouts = {
            n: padding.layouts.get(n.name) or self._of_input(n)
            for n in self.placeholders
            if isinstance(n.meta.get("val"), torch.Tensor)
        }
        self.device = self._check()
        self.outputs = self._outputs()
        self.graphs: dict[tuple, _Program] = {}

    def _sources(self) -> dict[sympy.Symbol, tuple[int, int | None]]:
        """Where the value of each symbol is: an input that is a number, or one's dimension."""
        found: dict[sympy.Symbol, tuple[int, int | None]] = {}
        for i, node in enumerate(self.placeholders):
            if is_number(node) and isinstance(number := expression(node.meta["val"]), sympy.Symbol):
                found.setdefault(number, (i, None))
        for i, node in enumerate(self.placeholders):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and node.name not in self.padding.layouts:
                for d, size in enumerate(map(expression, value.shape)):
                    if isinstance(size, sympy.Symbol):
                        found.setdefault(size, (i, d))
        return found

    def _values(self, inputs: Sequence) -> dict[sympy.Symbol, int | float]:
        return {
            symbol: inputs[i] if d is None else inputs[i].shape[d]
            for symbol, (i, d) in self.symbols.items()
        }

    def _of_input(self, node: Node) -> Layout:
        # What is not padded yet may be laid out at will: a gradient as what it is the gradient of.
        layout = plain(node.meta["val"].shape)
        return self.padding.results.get(tuple(map(size_of, layout)), layout)

    def _check(self) -> torch.device | None:
        """What can be told before anything is recorded. Returns the graph's device."""
        if not self.symbols:
            raise CannotPad("no size varies")
        known = set(self.symbols)
        for node in self.module.graph.nodes:
            for value in values_of(node):
                sizes = value.shape if isinstance(value, torch.Tensor) else [value]
                for size in map(expression, sizes):
                    if isinstance(size, sympy.Basic) and not size.free_symbols <= known:
                        raise CannotPad(f"{size} is not known before the program runs")
                if isinstance(value, torch.SymBool):
                    raise CannotPad("it decides by sizes")
        if any(map(is_collective, self.module.graph.nodes)):
            raise CannotPad("it exchanges something with other ranks, whose sizes may be others")
        staging = Staging(self.module.graph)
        numbers = staging.repeatable  # tensors of the CPU; the program computes them as well
        nodes = [n for n in staging.nodes if not is_number(n)]
        devices = {staging.device_of(n) for n in nodes if n not in numbers}
        if (nodes and len(devices) != 1) or None in devices:
            raise CannotPad("it is not one program")
        returned = {n for n in self.results if isinstance(n, Node)}
        for node in reversed(nodes):
            if node in numbers and node in returned:
                returned.update(node.all_input_nodes)
        self.host = [n for n in nodes if n in numbers and n in returned]
        if any(is_number(n) for node in self.host for n in node.all_input_nodes):
            raise CannotPad("it computes with sizes on the CPU")
        for node in self.results:
            if isinstance(node, Node) and node.op == "get_attr":
                raise CannotPad("it returns a constant")
        return devices.pop() if devices else None

    # --- recording

    def _body(self, program: "_Program") -> Callable:
        def body(placeholders: list[torch.Tensor]) -> list[torch.Tensor]:
            count = len(self.tensors)
            actual = dict(zip(program.arguments, placeholders[count:], strict=True))
            sizes = Sizes(program.buckets, actual, program.fixed)
            env: dict[Node, object] = {}
            for node, tensor in zip(self.tensors, placeholders[:count], strict=True):
                env[node] = Padded(tensor, sizes.layout(self.layouts[node]))
            with plain_operators():
                for node in self.module.graph.nodes:
                    if node.op not in ("placeholder", "output", "get_attr") and not is_number(node):
                        self._run(sizes, node, env)
            for node in self.outputs:
                program.layouts[node] = env[node].layout
            return [env[node].tensor for node in self.outputs]

        return body

    def _outputs(self) -> list[Node]:
        """What the program returns."""
        found = dict.fromkeys(n for n in self.results if isinstance(n, Node))
        host = set(self.host)
        return [n for n in found if not is_number(n) and n.op != "placeholder" and n not in host]

    def _run(self, sizes: Sizes, node: Node, env: dict[Node, object]) -> None:
        def load(source: Node) -> object:
            if is_number(source):
                return sizes.expression(source.meta["val"])
            if source not in env and source.op == "get_attr":
                env[source] = _padded_nowhere(constants_of(self.module, source))
            return env[source]

        try:
            args, kwargs = map_arg(node.args, load), map_arg(node.kwargs, load)
            if self._is_fixed(sizes, node, args, kwargs):
                plain_env = {
                    n: load(n) if is_number(n) else _plain_value(load(n))
                    for n in node.all_input_nodes
                }
                run_nodes(self.module, [node], plain_env, device=self.device)
                env[node] = tree_map(_padded_nowhere, plain_env[node])
            else:
                env[node] = padding.apply(sizes, node, args, kwargs)
                self._verify(sizes, node, env[node])
        except Exception as error:
            line = source_of(node)
            where = f" ({line[0]}:{line[1]})" if line else ""
            raise CannotPad(f"{name_of(node.target)}{where}: {error}") from error

    def _is_fixed(self, sizes: Sizes, node: Node, args: Sequence, kwargs: Mapping) -> bool:
        """Whether nothing that a node takes or makes varies."""
        given = tree_leaves((list(args), dict(kwargs)))
        made = [s for v in values_of(node) if isinstance(v, torch.Tensor) for s in v.shape]
        return not (
            any(isinstance(v, sympy.Basic) or (isinstance(v, Padded) and v.varies) for v in given)
            or any(isinstance(sizes.expression(size), sympy.Basic) for size in made)
        )

    def _verify(self, sizes: Sizes, node: Node, result: object) -> None:
        """What a rule says against what the graph says and what was made."""
        results = result if isinstance(result, (list, tuple)) else [result]
        for made, expected in zip(results, values_of(node), strict=True):
            if not isinstance(made, Padded):
                continue
            said = [size_of(d) for d in made.layout]
            if said != [sizes.expression(s) for s in expected.shape]:
                raise CannotPad(f"its result is {list(expected.shape)}, not {said}")
            if list(made.tensor.shape) != sizes.shape(made.layout):
                raise CannotPad(f"padded to {list(made.tensor.shape)}")
            if made.tensor.dtype != expected.dtype:
                raise CannotPad(f"its result is {expected.dtype}, not {made.tensor.dtype}")

    def _buckets(self, values: Mapping[sympy.Symbol, int | float]) -> dict[sympy.Symbol, int]:
        sizes = self.padding.sizes
        return {s: bucket_of(v, sizes[str(s)]) for s, v in values.items() if str(s) in sizes}

    def _program(self, values: Mapping[sympy.Symbol, int | float]) -> "_Program":
        buckets = self._buckets(values)
        fixed = {s: v for s, v in values.items() if s not in buckets and self.padding.fixed}
        key = (*buckets.values(), *fixed.values())
        if (found := self.graphs.get(key)) is None:
            apart = self.padding.layouts or self.kept < len(self.results)
            if apart and any(p.fixed != fixed for p in self.graphs.values()):
                raise CannotPad("a number that is not a size has changed")
            arguments = [s for s in values if s not in fixed]
            found = self.graphs[key] = _Program(buckets, fixed, arguments)
            found.shapes = {n: shape_of(self.layouts[n], found.padded) for n in self.tensors}
            found.graph = _C.Graph(self.name, self._body(found), self.donated, functional=True)
        return found

    def prepare(self) -> dict[str, Layout]:
        """Records the program of the sizes that the graph was traced with. Returns the layouts of
        the outputs by name. Raises CannotPad."""
        if self.device is None:
            return {}
        try:
            return self._prepare()
        except CannotPad:
            # With numbers as arguments it cannot decide by them.
            if (
                self.padding.fixed
                or self.padding.layouts
                or len(self.padding.sizes) == len(self.symbols)
            ):
                raise
        self.padding.fixed = True
        self.graphs.clear()
        return self._prepare()

    def _prepare(self) -> dict[str, Layout]:
        given = self._values([node.meta["val"] for node in self.placeholders])
        hints = {symbol: number.node.hint for symbol, number in given.items()}
        program = self._program(hints)
        with torch.utils._python_dispatch._disable_current_modes():
            given = [stand_in(self._likely(n, program.shapes[n])) for n in self.tensors]
            self._record(program, given + [self._number(hints[s]) for s in program.arguments])
        return {node.name: layout for node, layout in program.layouts.items()}

    def _record(self, program: "_Program", given: list[torch.Tensor]) -> None:
        try:
            program.graph.prepare(given)
        except (CannotCapture, NotImplementedError) as error:
            raise CannotPad(str(error)) from error
        program.recorded = True

    def _likely(self, node: Node, shape: list[int]) -> torch.Tensor:
        value = node.meta["val"]
        return torch.empty(shape, dtype=value.dtype, device=value.device)

    # --- running

    def _number(self, value: int | float) -> torch.Tensor:
        dtype = torch.float64 if isinstance(value, float) else torch.int64
        return torch.tensor(value, dtype=dtype, device=self.device)

    def __call__(self, inputs: list) -> list:
        actual = self._values(inputs)
        program = self._program(actual)
        env = dict(zip(self.placeholders, inputs, strict=True))
        kept = self.padding.layouts
        held = [
            env[n]
            if n.name in kept and list(env[n].shape) == program.shapes[n]
            else _pad(env[n], self.layouts[n], program.padded, actual)
            for n in self.tensors
        ]
        held += [self._number(actual[s]) for s in program.arguments]
        if self.device is not None and not program.recorded:
            self._record(program, held)
        given = {n: env[n] for n in self.results if isinstance(n, Node) and n.op == "placeholder"}
        for node in given:
            if node.name in kept:
                given[node] = unpad(given[node], self.layouts[node], program.padded, actual)
        if self.host:
            with plain_operators():
                run_nodes(self.module, self.host, env)
            given.update((n, env[n]) for n in self.host)
        del env
        inputs.clear()
        outputs = {}
        if self.device is not None:
            outputs.update(zip(self.outputs, program.graph.run(held), strict=True))
        results = []
        for i, node in enumerate(self.results):
            if not isinstance(node, Node):
                results.append(node)
            elif node in given:
                results.append(given[node])
            elif is_number(node):
                results.append(value_of(expression(node.meta["val"]), actual))
            elif i >= self.kept:
                results.append(outputs[node])
            else:
                wanted, layout = node.meta["val"], program.layouts[node]
                made = unpad(outputs[node], layout, program.padded, actual)
                strides = [value_of(expression(s), actual) for s in wanted.stride()]
                offset = value_of(expression(wanted.storage_offset()), actual)
                results.append(_in_place(made, strides, offset))
        return results

    def unpadded(self, inputs: list) -> list:
        """Inputs of the backward pass without what the forward pass left padded."""
        actual = self._values(inputs)
        buckets = {**actual, **self._buckets(actual)}
        return [
            unpad(x, self.layouts[n], buckets, actual)
            if n in self.layouts and n.name in self.padding.layouts
            else x
            for n, x in zip(self.placeholders, inputs, strict=True)
        ]


@dataclasses.dataclass
class _Program:
    buckets: dict[sympy.Symbol, int]
    fixed: dict[sympy.Symbol, int]
    arguments: list[sympy.Symbol]  # what it takes behind the tensors
    shapes: dict[Node, list[int]] = dataclasses.field(default_factory=dict)  # of padded inputs
    layouts: dict[Node, Layout] = dataclasses.field(default_factory=dict)  # of recorded outputs
    graph: _C.Graph | None = None
    recorded: bool = False

    def __post_init__(self) -> None:
        self.padded = {**self.buckets, **self.fixed}


def _padded_nowhere(value: object) -> object:
    return Padded(value, plain(value.shape)) if isinstance(value, torch.Tensor) else value


def _plain_value(value: object) -> object:
    return tree_map(lambda v: v.tensor if isinstance(v, Padded) else v, value)


def _pad(
    x: torch.Tensor,
    layout: Layout,
    buckets: Symbols,
    actual: Symbols,
) -> torch.Tensor:
    """`x` with zeros behind what is filled, in a buffer of its own."""
    if not any(map(varies, layout)):
        return x
    if list(x.shape) != shape_of(layout, actual):
        raise RuntimeError(
            f"a compiled graph was given a tensor of {list(x.shape)} for {layout} of {dict(actual)}"
        )
    wanted = shape_of(layout, buckets)
    if any(varies(d[1:]) for d in layout):
        factors = plain(factor for d in layout for factor in d)
        parts = x.detach().reshape(shape_of(factors, actual))
        return _pad(parts, factors, buckets, actual).view(wanted)
    if list(x.shape) == wanted:
        # Programs are for inputs of a kind: what need not be padded is to look like what is.
        return x.detach().clone(memory_format=torch.contiguous_format)
    pads = [n for a, b in zip(x.shape, wanted, strict=True) for n in (b - a, 0)]
    return torch.constant_pad_nd(x.detach(), pads[::-1])


def unpad(
    x: torch.Tensor,
    layout: Layout,
    buckets: Symbols,
    actual: Symbols,
) -> torch.Tensor:
    """What is filled of `x`, in a buffer of its own unless that is all."""
    shape = shape_of(layout, actual)
    if list(x.shape) == shape:
        return x
    factors = [factor for d in layout for factor in d]
    parts = x.reshape([value_of(factor, buckets) for factor in factors])
    for i, factor in enumerate(factors):
        parts = parts.narrow(i, 0, value_of(factor, actual))
    return parts.reshape(shape).clone(memory_format=torch.contiguous_format)


def _in_place(x: torch.Tensor, strides: Sequence[int], offset: int) -> torch.Tensor:
    """`x` as the graph returns it. Of a view of an input, AOTAutograd takes geometry and offset."""
    if (list(x.stride()), x.storage_offset()) == (list(strides), offset):
        return x
    shape = x.shape
    for d, stride in enumerate(strides):
        if stride == 0:  # an expanded dimension
            x = x.narrow(d, 0, 1)
    extent = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, strides, strict=True))
    made = torch.empty(offset + extent, dtype=x.dtype, device=x.device)
    return made.as_strided(x.shape, strides, offset).copy_(x).expand(shape)
