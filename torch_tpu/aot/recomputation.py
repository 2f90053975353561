"""Keeps what activation checkpointing computes twice from being computed once.

In one program for a whole training step the forward pass and its repetition in the backward pass
are the same expressions, and the compiler merges those: everything would be kept in memory after
all. So the repetition is made to depend on the gradient that arrives where it is needed. The same
is done to what FSDP gathers twice.
"""

from collections.abc import Container, Hashable, Sequence

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from torch_tpu.compile.collectives import calls_in, is_collective

_aten = torch.ops.aten
_IDENTITIES = {_aten.detach.default, _aten.alias.default}
_PRODUCTS = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten.baddbmm.default,
    _aten.convolution.default,
}


def after(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """`x`, not known before `gradient`. (Zeros if that is NaN, when the step is lost anyway.)"""
    first = gradient.detach().reshape(-1)[0]
    return torch.where(first == first, x, 0)


def _plain(values, numbers: dict[Node, int]) -> str:
    """Equal for arguments that are equal."""
    return repr(map_arg(values, lambda node: f"%{numbers[node]}"))


def _number(nodes: Sequence[Node]) -> dict[Node, int]:
    """Numbers that are equal for nodes which compute the same."""
    numbers: dict[Node, int] = {}
    known: dict[Hashable, int] = {}
    for node in nodes:
        target = node.target
        writes = isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable
        if target in _IDENTITIES:
            numbers[node] = numbers[node.args[0]]
        elif node.op != "call_function" or not node.args or writes:
            numbers[node] = len(numbers)
        else:
            key = (target, _plain(node.args, numbers), _plain(node.kwargs, numbers))
            numbers[node] = known.setdefault(key, len(numbers))
    return numbers


def _is_float(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 0


def _is_view(node: Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return True  # getitem
    return any(a.alias_info is not None for a in target._schema.arguments)


def _placeholders(nodes: Sequence[Node]) -> list[Node]:
    return [n for n in nodes if n.op == "placeholder"]


def _draws(node: Node) -> bool:
    """Whether an operator draws random numbers; attention says so also without dropout."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    for i, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            value = node.args[i] if i < len(node.args) else argument.default_value
            return node.kwargs.get("dropout_p", value) != 0
    return True


def keep_recomputation(module: GraphModule, weights: Container[int]) -> int:
    """Ties what the backward pass of a training step computes again to its gradients.

    `weights` are the positions of arguments that need no tie, since they are there anyway. Does
    nothing to a step in which no matrix product is computed twice. Returns how many values were
    tied. Raises RuntimeError if random numbers are drawn again, since they would be others.
    """
    nodes = list(module.graph.nodes)
    start = next((i for i, n in enumerate(nodes) if n.meta.get("autograd_backward")), len(nodes))
    numbers = _number(nodes)
    computed = {numbers[n] for n in nodes[:start] if n.op == "call_function"}
    again = [n for n in nodes[start:] if n.op == "call_function" and numbers[n] in computed]
    if not any(n.target in _PRODUCTS or is_collective(n) for n in again):
        return 0
    repeated = set(again)
    given = {n for i, n in enumerate(_placeholders(nodes)) if i in weights}
    for node in nodes:
        sources = set(node.all_input_nodes)
        if node.op == "call_function" and _is_view(node) and sources and sources <= given:
            given.add(node)
    forward = set(nodes[:start])
    tied: dict[Node, Node] = {}
    gradient: Node | None = None
    points: list[Node] = []  # gradients that were there when something was gathered again
    for node in nodes[start:]:
        if node not in repeated:
            if _is_float(node) and not _is_view(node):
                gradient = node
            continue
        if node.target in _IDENTITIES and node.args[0] in forward:
            forward.add(node)
            continue
        if _draws(node):
            raise RuntimeError(
                f"{node.target} is computed again by activation checkpointing and would draw other "
                "random numbers: set dropout to 0"
            )
        if gradient is None:
            continue
        gathers = bool(calls_in([node]))
        if gathers and gradient not in points:
            points.append(gradient)
        # What is gathered for one operator may travel while the one before it is computed.
        known = points[-2] if gathers and len(points) > 1 else gradient
        for source in node.all_input_nodes:
            if not _is_float(source):
                continue
            if not gathers and (source not in forward or source in given):
                continue
            if source not in tied:
                with module.graph.inserting_before(node):
                    tied[source] = module.graph.call_function(after, (source, known))
                tied[source].meta.update(source.meta)
            node.replace_input_with(source, tied[source])
    module.recompile()
    return len(tied)
