"""A graph of Dynamo's, written down: PyTorch's functions by name, and the lines they come from."""

import builtins
import dataclasses
import importlib
import math
import operator
import pickle
from collections.abc import Callable

import torch
from torch.fx import Graph, Node
from torch.fx.graph import _get_qualified_name
from torch.fx.node import map_aggregate

from .facts import NoFact
from .pickling import dumps

# Of other libraries' operators, what they make of shapes may change.
_LIBRARIES = ("aten", "prim", "prims")
_ROOTS = {"torch": torch, "_operator": operator, "builtins": builtins, "math": math}


@dataclasses.dataclass(frozen=True)
class _Reference:
    """To a node of the graph, by its position."""

    position: int


def _resolve(name: str) -> object:
    root, *rest = name.split(".")
    value = _ROOTS[root]
    for i, part in enumerate(rest, 2):
        if not hasattr(value, part):
            importlib.import_module(".".join(name.split(".")[:i]))
        value = getattr(value, part)
    return value


def _name_of(target: Callable) -> str:
    """The name of a function of PyTorch's or Python's; others may do something else elsewhere."""
    is_operator = isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))
    if is_operator and str(target).partition(".")[0] not in _LIBRARIES:
        raise NoFact(f"the custom operator {target}")
    name = _get_qualified_name(target)
    try:
        if _resolve(name) is target:
            return name
    except (KeyError, AttributeError, ImportError):
        pass
    raise NoFact(f"{name} in the graph")


def write(graph: Graph) -> bytes:
    """Raises NoFact for a function that has no name of its own, and for a constant tensor."""
    positions: dict[Node, int] = {}
    names: dict[Callable, str] = {}
    nodes = []

    def by_position(value: object) -> object:
        return _Reference(positions[value]) if isinstance(value, Node) else value

    for node in graph.nodes:
        target = node.target
        if node.op == "call_function":
            if target not in names:
                names[target] = _name_of(target)
            target = names[target]
        arguments = map_aggregate((node.args, node.kwargs), by_position)
        # Lines, most of which are those of other nodes, too.
        trace = tuple((node.meta.get("stack_trace") or "").splitlines())
        nodes.append((node.op, node.name, target, *arguments, trace))
        positions[node] = len(positions)
    lines: dict[str, str] = {}
    nodes = [(*n[:-1], tuple(lines.setdefault(line, line) for line in n[-1])) for n in nodes]
    return dumps(nodes)


def read(stored: bytes) -> Graph:
    graph = Graph()
    nodes: list[Node] = []
    targets: dict[str, object] = {}

    def by_node(value: object) -> object:
        return nodes[value.position] if isinstance(value, _Reference) else value

    for op, name, target, args, kwargs, trace in pickle.loads(stored):
        if op == "call_function":
            if target not in targets:
                targets[target] = _resolve(target)
            target = targets[target]
        args, kwargs = map_aggregate((args, kwargs), by_node)
        node = graph.create_node(op, target, args, kwargs, name)
        if trace:
            node.meta["stack_trace"] = "\n".join(trace) + "\n"
        nodes.append(node)
    return graph
