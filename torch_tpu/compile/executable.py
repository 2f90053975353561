"""A compiled graph: programs for its stages on tpu, single operators for the rest."""

import warnings
from collections.abc import Iterable, Sequence

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from torch_tpu import _C

from .buckets import Buckets, Padding
from .collectives import calls_in, with_waits
from .extents import CannotPad, Layout
from .run import CannotCapture, plain_operators, run_nodes, source_of
from .staging import Stage, Staging, is_number, name_of, operators_of

_told: set[str] = set()


def _tell_once(key: str, message: str) -> None:
    if key not in _told:
        _told.add(key)
        warnings.warn(message, stacklevel=3)


def nodes_in(argument: object) -> list[Node]:
    """The nodes of a (nested) argument."""
    found: list[Node] = []
    map_arg(argument, found.append)
    return found


class _Program:
    """A stage on tpu."""

    def __init__(self, module: GraphModule, stage: Stage, name: str, donated: set[Node]) -> None:
        self.module = module
        self.stage = stage
        self.name = name
        self.tensors = [n for n in stage.inputs if not is_number(n)]
        self.numbers = [n for n in stage.inputs if is_number(n)]
        self.donated = [i for i, n in enumerate(self.tensors) if n in donated]
        self.graphs: dict[tuple, _C.Graph] = {}

    def graph(self, numbers: tuple = ()) -> _C.Graph:
        """The program for these values of the sizes that vary."""
        found = self.graphs.get(numbers)
        if found is None:
            found = self.graphs[numbers] = _C.Graph(
                self.name, self._body(numbers), self.donated, functional=True
            )
        return found

    def _body(self, numbers: tuple):
        def body(placeholders: list[torch.Tensor]) -> list[torch.Tensor]:
            env = dict(zip(self.tensors, placeholders, strict=True))
            env.update(zip(self.numbers, numbers, strict=True))
            with plain_operators():
                run_nodes(self.module, self.stage.nodes, env, device=self.stage.device)
            # A number that an operator counts on the device leaves the program as a tensor.
            return [
                torch.as_tensor(env[n], device=self.stage.device) if is_number(n) else env[n]
                for n in self.stage.outputs
            ]

        return body


class Executable:
    """A graph of ATen operators, ready to run.

    Called with the list of the graph's inputs (tensors, numbers), which it empties; returns the
    list of its outputs. Programs are captured at the first call with inputs of a kind.
    """

    def __init__(
        self,
        module: GraphModule,
        name: str,
        donated: Iterable[int] = (),
        padding: Padding | None = None,
    ) -> None:
        """`donated`: positions of inputs whose buffers the caller will not use again. With
        `padding`, sizes that vary are padded where that changes nothing."""
        self._boxed_call = True  # of the instance: PyTorch's wrappers copy its dictionary
        self.module = module
        self.name = name
        self.placeholders = list(module.graph.find_nodes(op="placeholder"))
        self.donated = {self.placeholders[i] for i in donated}
        self.by_itself: set[Node] = set()
        self.padding = padding
        self.watching = padding is not None
        self.sizes: list | None = None  # those of the first call that was not padded
        self.buckets = self._bucketed()
        self._arrange()

    def _bucketed(self) -> Buckets | None:
        if self.padding is None or self.padding.refused is not None:
            return None
        if not self.padding.sizes and not any(map(is_number, self.placeholders)):
            return None
        try:
            return Buckets(self.module, self.name, self.donated, self.padding)
        except CannotPad as reason:
            self.padding.refused = str(reason)
            return None

    def prepare(self) -> dict[str, Layout]:
        """Records the padded program of a graph whose sizes vary, if it can be padded. Returns the
        layouts of the outputs by name."""
        if self.buckets is not None:
            try:
                return self.buckets.prepare()
            except CannotPad as reason:
                self.refuse(str(reason))
        return {}

    def refuse(self, reason: str) -> None:
        """From here on each combination of sizes gets a program."""
        self.padding.refused = reason
        self.buckets = None
        self._arrange()

    def _watch(self, inputs: Sequence) -> None:
        """Says, once sizes do vary, what it costs that they are not padded."""
        sizes = [x.shape if isinstance(x, torch.Tensor) else x for x in inputs]
        if self.sizes is None:
            self.sizes = sizes
        elif self.sizes != sizes:
            self.watching = False
            _tell_once(
                "sizes",
                "torch.compile on tpu: a program has fixed shapes, and this graph cannot be padded "
                f"to a few ({self.padding.refused}), so that it gets a program for each "
                "combination of sizes. The Python code is not traced again for it.",
            )

    def _arrange(self) -> None:
        staging = Staging(self.module.graph, self.by_itself)
        self.results = staging.output.args[0]
        self.stages = staging.stages
        # Of each stage, without the nodes that are computed again in its program.
        self.own = [
            [n for n in stage.nodes if stage.device is None or n not in staging.repeatable]
            for stage in self.stages
        ]
        self.programs = [
            stage.device and _Program(self.module, stage, self.name, self.donated)
            for stage in self.stages
        ]
        # The stage that uses a value last; none for what is returned.
        self.last: dict[Node, int] = {}
        for i, stage in enumerate(self.stages):
            self.last.update(dict.fromkeys(stage.inputs, i))
            for node in stage.nodes:
                self.last.setdefault(node, i)
        for node in nodes_in(self.results):
            self.last.pop(node, None)
        self.direct = self._direct()

    def _direct(self) -> list[int | None] | None:
        """Where each output is among those of the program that is all there is; else None."""
        if len(self.stages) != 1 or self.programs[0] is None:
            return None
        stage = self.stages[0]
        if self.programs[0].tensors != self.placeholders:
            return None
        if not all(r is None or r in stage.outputs for r in self.results):
            return None
        if any(is_number(n) for n in stage.outputs):
            return None
        return [None if r is None else stage.outputs.index(r) for r in self.results]

    def __call__(self, inputs: Sequence) -> list:
        inputs = inputs if isinstance(inputs, list) else list(inputs)
        if self.buckets is not None:
            if _C.get_eager_mode() != "debug":
                try:
                    return self.buckets(inputs)
                except CannotPad as reason:
                    buckets = self.buckets
                    self.refuse(str(reason))
                    inputs[:] = buckets.unpadded(inputs)
            else:
                inputs[:] = self.buckets.unpadded(inputs)
        if self.watching and self.padding.refused is not None:
            self._watch(inputs)
        if self.direct is not None and _C.get_eager_mode() != "debug":
            try:
                outputs = self.programs[0].graph().run(inputs)
            except (CannotCapture, _C.ProgramsDiffer) as failure:
                self._cut(self.stages[0], failure)
            else:
                return [None if i is None else outputs[i] for i in self.direct]
        env = dict(zip(self.placeholders, inputs, strict=True))
        inputs.clear()
        if _C.get_eager_mode() == "debug":
            # So that what is wrong is found at its operator.
            self._run_single(operators_of(self.module.graph), env)
        else:
            self._run_stages(env)
        return [map_arg(r, env.__getitem__) if isinstance(r, Node) else r for r in self.results]

    def _run_single(self, nodes: Iterable[Node], env: dict) -> None:
        with plain_operators():
            run_nodes(self.module, nodes, env)

    def _run_stages(self, env: dict) -> None:
        done: set[Node] = set()
        i = 0
        while i < len(self.stages):
            stage, program = self.stages[i], self.programs[i]
            if program is None:
                self._run_single([n for n in stage.nodes if n not in done], env)
            elif not done.issuperset(self.own[i]):
                numbers = tuple(env[n] for n in program.numbers)
                held = [env.pop(n) if self.last.get(n) == i else env[n] for n in program.tensors]
                try:
                    outputs = program.graph(numbers).run(held)
                except (CannotCapture, _C.ProgramsDiffer) as failure:
                    env.update(zip(program.tensors, held, strict=True))
                    self._cut(stage, failure)
                    # What has run stays done: a cut only adds stages from this one on.
                    i = 0
                    continue
                for node, value in zip(stage.outputs, outputs, strict=True):
                    env[node] = value.item() if is_number(node) else value
            for node in self.own[i]:
                done.add(node)
                if self.last.get(node) == i:
                    env.pop(node, None)
            i += 1

    def _cut(self, stage: Stage, failure: Exception) -> None:
        """Lets what keeps `stage` from being a program run by itself: the node that cannot be
        recorded, or the exchanges with ranks whose programs differ from this one."""
        if isinstance(failure, CannotCapture):
            node, reason = failure.node, failure.reason
            line = source_of(node)
            where = f" ({line[0]}:{line[1]})" if line else ""
            what, nodes = name_of(node.target), [node]
            message = f"{what}{where} cannot be part of a program: {reason}. It runs by itself"
        else:
            what, nodes, reason = "ranks", calls_in(stage.nodes), failure
            message = (
                f"{reason}, so that their collectives cannot be part of them. "
                "They run by themselves"
            )
        if self.by_itself.issuperset(nodes):
            raise reason
        for node in nodes:
            self.by_itself |= with_waits(node)
        _tell_once(what, f"torch.compile on tpu: {message}, and the graph is cut there.")
        self._arrange()
