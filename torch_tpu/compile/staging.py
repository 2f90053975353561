"""Cuts a graph into stages: parts that are one program each, and parts that run one by one.

Most graphs are one stage. Others have operators on CPU tensors (an optimizer's counter of steps),
copies between devices, or operators that cannot be recorded.
"""

import dataclasses
import operator
from collections.abc import Iterable, Iterator

import torch
from torch.fx import Graph, GraphModule, Node

_RESTORES_RNG = "run_with_rng_state"
_SAVES_RNG = "run_and_save_rng_state"


@dataclasses.dataclass
class Stage:
    """Nodes that run together. `device` is None for those that run one by one."""

    device: torch.device | None
    nodes: list[Node]
    inputs: list[Node] = dataclasses.field(default_factory=list)  # computed before
    outputs: list[Node] = dataclasses.field(default_factory=list)  # needed afterwards


def name_of(target) -> str:
    return getattr(target, "__name__", str(target)) if not isinstance(target, str) else target


def operators_of(graph: Graph) -> list[Node]:
    """The nodes that compute something, in order."""
    return [n for n in graph.nodes if n.op not in ("placeholder", "output", "get_attr")]


def values_of(node: Node, key: str = "val") -> Iterator[object]:
    """What a node gives by its metadata: "val" in AOTAutograd's graphs, "example_value" in
    Dynamo's. The elements of lists one by one."""
    value = node.meta.get(key)
    if isinstance(value, (list, tuple)):
        for item in value:
            if isinstance(item, (list, tuple)):
                yield from item
            else:
                yield item
    else:
        yield value


def _tensors(node: Node) -> list[torch.Tensor]:
    return [value for value in values_of(node) if isinstance(value, torch.Tensor)]


def is_number(node: Node) -> bool:
    """A size or another Python number."""
    value = node.meta.get("val")
    return isinstance(value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def _is_cpu_scalars(node: Node) -> bool:
    tensors = _tensors(node)
    return bool(tensors) and all(t.device.type == "cpu" and t.dim() == 0 for t in tensors)


def _is_random_state(node: Node) -> bool:
    """The state of a generator, which the graph takes for a CPU tensor."""
    if node.op == "placeholder":
        return bool(node.users) and all(
            name_of(u.target) == _RESTORES_RNG and u.args[0] is node for u in node.users
        )
    return (
        node.target is operator.getitem
        and node.args[1] == 0
        and name_of(node.args[0].target) == _SAVES_RNG
    )


def _mutated(node: Node) -> list[Node]:
    """Arguments that the operator writes to."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return []
    found = []
    for i, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.kwargs.get(argument.name, node.args[i] if i < len(node.args) else None)
        found += [n for n in (value if isinstance(value, (list, tuple)) else [value]) if n]
    return [n for n in found if isinstance(n, Node)]


class Staging:
    """The stages of a graph, in order; `by_itself` are nodes that cannot be part of a program."""

    def __init__(self, graph: Graph, by_itself: Iterable[Node] = ()) -> None:
        self.nodes = operators_of(graph)
        self.by_itself = set(by_itself)
        self.output = graph.output_node()
        self.repeatable, self.roots = self._repeatable(graph)
        self.stages = self._cut()

    def _repeatable(self, graph: Graph) -> tuple[set[Node], dict[Node, set[Node]]]:
        """0-d CPU tensors that are computed again where a program needs them.

        With the inputs that they are computed from and that the graph writes to.
        """
        position = {node: i for i, node in enumerate(graph.nodes)}
        written: dict[Node, int] = {}
        for node in graph.nodes:
            for target in _mutated(node):
                written.setdefault(target, position[node])
        excluded: set[Node] = set()
        while True:
            found, roots = self._closure(graph, written, excluded)
            # What reads such an input's old value must be able to come before the write.
            late = {
                root
                for node in found
                for root in roots[node]
                if any(u.op != "output" and position[u] > written[root] for u in node.users)
            }
            if not late:
                return found, roots
            excluded |= late

    def _closure(self, graph: Graph, written: dict[Node, int], excluded: set[Node]):
        found: set[Node] = set()
        roots: dict[Node, set[Node]] = {}
        for node in graph.nodes:
            if node in excluded:
                continue
            if node.op == "placeholder":
                if not _is_cpu_scalars(node) or _is_random_state(node):
                    continue
            elif node.op == "get_attr":
                if not _is_cpu_scalars(node):
                    continue
            elif not (
                node.op == "call_function"
                and (_is_cpu_scalars(node) or node.target is operator.getitem)
                and all(n in found for n in node.all_input_nodes)
                and not _mutated(node)
                and not isinstance(node.target, torch._ops.HigherOrderOperator)
                and torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ())
            ):
                continue
            found.add(node)
            roots[node] = {node} & written.keys()
            roots[node].update(*(roots[n] for n in node.all_input_nodes))
        return found, roots

    def device_of(self, node: Node) -> torch.device | None:
        """Where a node's stage runs; None for one of the kind that runs by itself."""
        if node in self.by_itself:
            return None
        if node.target is operator.getitem:
            return self.device_of(node.args[0]) if node.args[0].op != "placeholder" else None
        if is_number(node):
            return None
        devices = {t.device for t in _tensors(node)}
        if name_of(node.target) == _SAVES_RNG:
            devices.discard(torch.device("cpu"))
        for source in node.all_input_nodes:
            if source.op == "get_attr" or _is_random_state(source) or _is_cpu_scalars(source):
                continue
            devices |= {t.device for t in _tensors(source)}
        if len(devices) != 1:
            return None
        device = devices.pop()
        return device if device.type == "tpu" else None

    def _cut(self) -> list[Stage]:
        # A node's level is the number of changes between stages on the way to it.
        level: dict[Node, int] = {}
        place: dict[Node, torch.device | None] = {}
        readers: dict[Node, list[Node]] = {}
        writer: dict[Node, Node] = {}
        for node in self.nodes:
            device = place[node] = self.device_of(node)
            before = list(node.all_input_nodes)
            if is_number(node) and all(level.get(n, -1) < 0 and is_number(n) for n in before):
                level[node] = -1  # sizes made of sizes, before everything
                continue
            written = _mutated(node)
            # What is written stays in order with what reads it.
            for target in written:
                before += readers.get(target, [])
            before += [writer[n] for n in node.all_input_nodes if n in writer]
            depth = 0
            for source in before:
                if source not in level or source is node:
                    continue
                if device is not None and source in self.repeatable:
                    continue
                depth = max(depth, level[source] + (place[source] != device))
            level[node] = depth
            for source in node.all_input_nodes:
                readers.setdefault(source, []).append(node)
                for root in self.roots.get(source, ()):
                    readers.setdefault(root, []).append(node)
            for target in written:
                writer[target] = node
        grouped: dict[tuple, Stage] = {}
        for node in self.nodes:
            key = (level[node], str(place[node]))
            grouped.setdefault(key, Stage(place[node], [])).nodes.append(node)
        stages = [grouped[key] for key in sorted(grouped, key=lambda key: key[0])]
        return self._connect(stages)

    def _connect(self, stages: list[Stage]) -> list[Stage]:
        needed = set(self.output.all_input_nodes)
        kept = []
        for stage in reversed(stages):
            inside = set(stage.nodes)
            if stage.device is None:
                # Numbers that only programs need are computed there.
                inside = {
                    n
                    for n in stage.nodes
                    if n not in self.repeatable or self._serves(n, inside, needed)
                }
                stage.nodes = [n for n in stage.nodes if n in inside]
            else:
                stage.nodes = self._with_repeated(stage.nodes)
                inside = set(stage.nodes)
            if not stage.nodes:
                continue
            own = [n for n in stage.nodes if n not in self.repeatable or stage.device is None]
            stage.outputs = [n for n in own if n in needed]
            inputs = {}
            for node in stage.nodes:
                for source in node.all_input_nodes:
                    if source not in inside and source.op != "get_attr":
                        inputs[source] = None
            stage.inputs = list(inputs)
            needed |= set(inputs)
            kept.append(stage)
        kept.reverse()
        return kept

    def _serves(self, node: Node, inside: set[Node], needed: set[Node]) -> bool:
        """Whether a repeatable node is wanted outside of programs."""
        if node in needed:
            return True
        return any(
            u in inside and (u not in self.repeatable or self._serves(u, inside, needed))
            for u in node.users
        )

    def _with_repeated(self, nodes: list[Node]) -> list[Node]:
        wanted: dict[Node, None] = {}

        def visit(node: Node) -> None:
            for source in node.all_input_nodes:
                if source in self.repeatable and source.op == "call_function":
                    visit(source)
                    wanted[source] = None

        for node in nodes:
            visit(node)
        return list(wanted) + nodes


def constants_of(module: GraphModule, node: Node) -> object:
    """What a get_attr node stands for."""
    value = module
    for part in node.target.split("."):
        value = getattr(value, part)
    return value
