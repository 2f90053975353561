"""A graph of torch.export as a StableHLO module."""

import dataclasses

import torch
from torch import fx

from torch_tpu.compile.capture import to_stablehlo

from .program_text import main_types


@dataclasses.dataclass
class Written:
    text: str
    # For each parameter of the module the placeholder it stands for, by position.
    inputs: list[int]
    # For each output of the graph the module's result. Several may be one. An output that is an
    # input, unchanged, is its placeholder's name instead; None for what is not a tensor.
    outputs: list[int | str | None]
    # Results that say whether indices were in range.
    checks: list[int]


def _make_results_dense(graph: fx.Graph) -> list[fx.Node | None]:
    """Copies the graph's outputs, because a result of a module has the shape of its tensor's
    storage. Returns their nodes, None for what is not a tensor."""
    (output,) = graph.find_nodes(op="output")
    nodes: list[fx.Node | None] = []
    with graph.inserting_before(output):
        for value in output.args[0]:
            if not isinstance(value, fx.Node):
                nodes.append(None)
                continue
            copy = graph.call_function(
                torch.ops.aten.clone.default, (value,), {"memory_format": torch.contiguous_format}
            )
            nodes.append(copy)
    output.args = (tuple(nodes),)
    return nodes


def _placeholder_of(node: fx.Node) -> str:
    """The name of the placeholder that `node` is another name of."""
    while node.op != "placeholder":
        node = node.args[0]
    return node.name


def write(graph_module: fx.GraphModule, inputs: list, platform: str) -> Written:
    """Writes the graph for `platform`, and changes it. `inputs` has a tensor (also a fake one) with
    the shape and dtype for each placeholder, None for placeholders that nothing uses.

    Raises NotImplementedError if the graph draws random numbers, RuntimeError if an operator cannot
    be part of a program.
    """
    nodes = _make_results_dense(graph_module.graph)
    dense = [
        None if x is None else torch.empty(x.shape, dtype=x.dtype, device="meta") for x in inputs
    ]
    captured = to_stablehlo(graph_module, dense, platform, name="exported", lines=False)
    if any(p.random for p in captured.parameters):
        raise NotImplementedError(
            "the program draws random numbers: export the module in eval mode, or without dropout"
        )
    if any(p.constant is not None for p in captured.parameters):
        raise NotImplementedError("the program holds a tensor that is not among its constants")
    outputs: list[int | str | None] = []
    for node, result in zip(nodes, captured.outputs, strict=True):
        outputs.append(_placeholder_of(node) if node and result is None else result)
    return Written(
        text=captured.text,
        inputs=[p.input for p in captured.parameters],
        outputs=outputs,
        checks=list(range(len(captured.results), len(main_types(captured.text)[1]))),
    )
