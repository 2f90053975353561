"""Functional collectives in graphs: operators that exchange something with other ranks, each
followed by a wait for its result."""

import operator
from collections.abc import Iterable

import torch
from torch.fx import Node

_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd")


def is_collective(node: Node) -> bool:
    """Whether a node exchanges something with other ranks, or waits for that."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in _NAMESPACES
    if isinstance(target, torch._ops.OpOverloadPacket):
        return target._qualified_op_name.partition("::")[0] in _NAMESPACES
    return getattr(target, "__module__", "") == "torch.distributed._functional_collectives"


def _waits(node: Node) -> bool:
    return is_collective(node) and "wait_tensor" in str(node.target)


def calls_in(nodes: Iterable[Node]) -> list[Node]:
    """The nodes that exchange something."""
    return [node for node in nodes if is_collective(node) and not _waits(node)]


def with_waits(node: Node) -> set[Node]:
    """The node and, if it is a collective, the waits for it: they must see the tensor that the call
    gave, and not a placeholder for it."""
    found = {node}
    if is_collective(node):
        for user in node.users:
            if _waits(user):
                found.add(user)
            elif user.target is operator.getitem:
                found |= {user, *filter(_waits, user.users)}
    return found
