"""Graphs that nothing is differentiated through, without AOTAutograd.

A trace takes views and writes as they come, so a graph of `torch.compile` that needs no gradients
can be run over placeholders as it is. That saves AOTAutograd's passes over the graph, which take
longer than recording it does.
"""

from collections.abc import Sequence

import torch
from torch.fx import GraphModule

from torch_tpu import _C

from .capture import stand_in
from .collectives import is_collective
from .executable import nodes_in
from .run import CannotCapture, run_nodes
from .staging import operators_of, values_of


def _is_plain(module: GraphModule, inputs: Sequence) -> bool:
    """Whether all of the graph is work for one tpu device, and none of it for autograd."""
    if torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in inputs
    ):
        return False
    if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
        return False
    devices = set()
    for node in module.graph.nodes:
        if node.op in ("call_module", "get_attr"):
            return False
        if isinstance(node.target, torch._ops.HigherOrderOperator) or is_collective(node):
            return False
        if node.target is torch._C._set_grad_enabled and node.args[0]:
            return False
        for value in values_of(node, "example_value"):
            if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                return False
            if not isinstance(value, torch.Tensor):
                continue
            if type(value) not in (torch.Tensor, torch.nn.Parameter) and not isinstance(
                value, torch._subclasses.FakeTensor
            ):
                return False
            if value.layout is not torch.strided or value.is_quantized:
                return False
            if any(not isinstance(d, int) for d in (*value.shape, *value.stride())):
                return False
            if node.op == "placeholder" and value.device.type == "cpu" and value.dim() == 0:
                continue
            devices.add(value.device)
    return len(devices) == 1 and devices.pop().type == "tpu"


def compile_inference(module: GraphModule, inputs: Sequence, name: str):
    """A function of the graph's inputs that runs it as one program; None where that cannot be."""
    if not _is_plain(module, inputs):
        return None
    placeholders = list(module.graph.find_nodes(op="placeholder"))
    nodes = operators_of(module.graph)
    returned = module.graph.output_node().args[0]
    results = nodes_in(returned)
    if len(results) != len(returned):
        return None
    if any(not isinstance(v, torch.Tensor) for r in results for v in values_of(r, "example_value")):
        return None

    def body(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        env = dict(zip(placeholders, tensors, strict=True))
        run_nodes(module, nodes, env)
        return [env[r] for r in results]

    graph = _C.Graph(name, body)
    with torch.utils._python_dispatch._disable_current_modes():
        likely = [stand_in(value) for value in inputs]
        if any(not isinstance(value, torch.Tensor) for value in likely):
            return None
        try:
            graph.prepare(likely)
        except (CannotCapture, NotImplementedError):
            # What cannot run at all says so where the graph runs.
            return None

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        held = list(tensors)
        if _C.get_eager_mode() != "debug":
            try:
                return graph.run(held)
            except CannotCapture:
                # Inputs of another kind, whose views are read otherwise.
                pass
        return body(held)

    return run
