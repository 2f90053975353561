"""Runs the nodes of a graph one after another, over real tensors or placeholders."""

import contextlib
import functools
from collections.abc import Iterable

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_map_only

from torch_tpu import _C

from . import control_flow as control_flow  # it registers rules, as the next one does
from . import flex_attention as flex_attention
from . import higher_order
from .staging import constants_of, operators_of


class CannotCapture(Exception):
    """`node` cannot be recorded."""

    def __init__(self, node: Node, reason: BaseException) -> None:
        super().__init__(str(reason))
        self.node = node
        self.reason = reason


def _add_line(error: BaseException, node: Node) -> None:
    """Says which operator of the graph failed, and the line it comes from."""
    note = f"while running {node.format_node()}"
    if trace := node.meta.get("stack_trace"):
        note += f"\nwhich comes from\n{trace.rstrip()}"
    error.add_note(note)


def source_of(node: Node) -> tuple[str, int] | None:
    """The innermost Python line that a node comes from."""
    for line in reversed((node.meta.get("stack_trace") or "").splitlines()):
        line = line.strip()
        if line.startswith('File "'):
            file, _, rest = line[6:].partition('", line ')
            digits = rest.split(",")[0]
            if digits.isdigit():
                return file, int(digits)
    return None


@contextlib.contextmanager
def plain_operators():
    """Operators do what the graph says: no autograd, no autocast, no modes of the caller."""
    with torch.no_grad(), torch._C._DisableAutocast():
        yield


def run_nodes(
    module: GraphModule | None,
    nodes: Iterable[Node],
    env: dict[Node, object],
    *,
    device: torch.device | None = None,
    lines: bool = False,
) -> None:
    """Computes `nodes` into `env`, which holds what they depend on.

    `module` has what the nodes call or take from it; none is needed for those that do neither.
    Under a capture CPU numbers become the device's: `device` replaces the CPU in the arguments of
    what is computed from them. `lines` records the Python line of each operator. Raises
    CannotCapture for a node that cannot be recorded.
    """
    capturing = _C.capturing()
    for node in nodes:
        load = env.__getitem__
        for source in node.all_input_nodes:
            if source not in env and source.op == "get_attr":
                env[source] = constants_of(module, source)
        args = map_arg(node.args, load)
        kwargs = map_arg(node.kwargs, load)
        if device is not None and _on_cpu(kwargs.get("device")):
            kwargs = {**kwargs, "device": device}
        if lines:
            _C.set_capture_source(*(source_of(node) or ("", 0)))
        try:
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                # Its bodies run like the graph they are in.
                body = functools.partial(functools.partial, run_graph, device=device, lines=lines)
                args, kwargs = tree_map_only(GraphModule, body, (args, kwargs))
                env[node] = higher_order.run(node.target, args, kwargs)
            elif node.op == "call_function":
                env[node] = node.target(*args, **kwargs)
            elif node.op == "call_method":
                env[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
            elif node.op == "call_module":
                env[node] = module.get_submodule(node.target)(*args, **kwargs)
            else:
                raise NotImplementedError(f"graph node {node.op}")
        except CannotCapture as inside:
            # Something in a body: the node that has the body is what cannot be recorded.
            raise CannotCapture(node, inside.reason) from inside
        except Exception as error:
            if capturing and _C.capture_aborted():
                raise CannotCapture(node, error) from error
            _add_line(error, node)
            raise


def run_graph(module: GraphModule, *inputs, device: torch.device | None, lines: bool) -> object:
    """Calls a graph: its nodes one after another over `inputs`."""
    env = dict(zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True))
    run_nodes(module, operators_of(module.graph), env, device=device, lines=lines)
    output = module.graph.output_node()
    for source in output.all_input_nodes:
        if source.op == "get_attr":
            env[source] = constants_of(module, source)
    values = map_arg(output.args[0], env.__getitem__)
    return list(values) if isinstance(values, list) else values  # not an immutable one


def _on_cpu(device: object) -> bool:
    return device is not None and torch.device(device).type == "cpu"
