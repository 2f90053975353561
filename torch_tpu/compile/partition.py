"""Which values of a joint graph the backward pass computes again."""

import torch
from torch.fx import GraphModule, Node


def partition(joint: GraphModule, inputs, **arguments) -> tuple[GraphModule, GraphModule]:
    """PyTorch's min-cut partitioner, which takes no notice of inputs that the graph writes to."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    _keep_what_was_read_before_writing(joint)
    return min_cut_rematerialization_partition(joint, inputs, **arguments)


def _keep_what_was_read_before_writing(joint: GraphModule) -> None:
    """Nothing may be computed again from an input that has another value by then.

    A buffer's `seen += x` is `copy_(seen, seen + x)` at the end of the forward pass: a backward
    pass with another `seen + x` adds twice.
    """
    from torch.utils.checkpoint import CheckpointPolicy

    for node in joint.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        if node.args[0].op == "placeholder":
            for reader in _readers(node.args[0]):
                reader.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _readers(node: Node) -> list[Node]:
    """What computes with `node` or a view of it."""
    found = []
    for user in node.users:
        if user.op != "call_function" or user.target is torch.ops.aten.copy_.default:
            continue
        found += _readers(user) if getattr(user.target, "is_view", False) else [user]
    return found
