"""Graphs that nothing is differentiated through, without AOTAutograd.

A trace takes views and writes as they come, so a graph of `torch.compile` that needs no gradients
can be run over placeholders as it is. That saves AOTAutograd's passes over the graph, which take
longer than recording it does.
"""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch.fx import Graph, GraphModule

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


@dataclasses.dataclass(frozen=True)
class Input:
    """What a graph takes at one place."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    device: str

    @classmethod
    def of(cls, value: torch.Tensor) -> "Input":
        return cls(value.dtype, tuple(value.size()), tuple(value.stride()), value.device.type)

    def stand_in(self) -> torch.Tensor:
        """A tensor like it without contents."""
        device = "cpu" if self.device == "cpu" else "meta"
        like = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=device)
        return stand_in(like)


@dataclasses.dataclass(frozen=True)
class Program:
    """A graph of Dynamo's that is all work for one tpu device, and none of it for autograd."""

    name: str
    graph: Graph
    inputs: list[Input]

    def prepared(self) -> Callable | None:
        """A function of the graph's inputs that runs it as one program; None where it cannot be
        one."""
        placeholders = list(self.graph.find_nodes(op="placeholder"))
        nodes = operators_of(self.graph)
        results = nodes_in(self.graph.output_node().args[0])

        def body(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
            env = dict(zip(placeholders, tensors, strict=True))
            run_nodes(None, nodes, env)
            return [env[r] for r in results]

        graph = _C.Graph(self.name, body)
        with torch.utils._python_dispatch._disable_current_modes():
            try:
                graph.prepare([x.stand_in() for x in self.inputs])
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


def inference_program(module: GraphModule, inputs: Sequence, name: str) -> Program | None:
    """The graph as a program; None if it needs AOTAutograd."""
    if not _is_plain(module, inputs):
        return None
    returned = module.graph.output_node().args[0]
    results = nodes_in(returned)
    if len(results) != len(returned):
        return None
    if any(not isinstance(v, torch.Tensor) for r in results for v in values_of(r, "example_value")):
        return None
    if any(not isinstance(value, torch.Tensor) for value in inputs):
        return None
    return Program(name, module.graph, [Input.of(value) for value in inputs])
