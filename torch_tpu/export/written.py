"""A graph of ATen operators as a StableHLO module."""

import dataclasses

import torch
from torch import fx

from torch_tpu import _C

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


def _dense(outputs: list) -> list[torch.Tensor | None]:
    # A result has the shape of its storage: make that the tensor's own.
    return [
        x.clone(memory_format=torch.contiguous_format) if isinstance(x, torch.Tensor) else None
        for x in outputs
    ]


def _placeholder_of(node: fx.Node) -> str:
    """The name of the placeholder that `node` is another name of."""
    while node.op != "placeholder":
        node = node.args[0]
    return node.name


def write(graph_module: fx.GraphModule, inputs: list, platform: str) -> Written:
    """Writes the graph for `platform`. `inputs` has a tensor (also a fake one) with the shape and
    dtype for each placeholder, None for placeholders that nothing uses.

    Raises NotImplementedError if the graph draws random numbers or needs data in Python.
    """
    # Nothing is ever written into these, so they take no memory.
    examples = [
        torch.empty(x.shape, dtype=x.dtype, device="tpu") if x is not None else None for x in inputs
    ]
    graph = _C.Graph("exported", lambda tensors: _dense(graph_module(*tensors)))
    with torch.no_grad():
        written = graph.write(examples, platform)
    used = [p for p in written["parameters"] if p["used"]]
    constants = [p for p in used if p["constant"] is not None]
    if constants:
        raise NotImplementedError("the program holds a tensor that is not among its constants")
    if any(p["input"] < 0 for p in used):
        raise NotImplementedError(
            "the program draws random numbers: export the module in eval mode, or without dropout"
        )
    (output_node,) = graph_module.graph.find_nodes(op="output")
    outputs: list[int | str | None] = []
    for node, (_, result) in zip(output_node.args[0], written["outputs"], strict=True):
        if not isinstance(node, fx.Node):
            outputs.append(None)
        elif result < 0:
            outputs.append(_placeholder_of(node))
        else:
            outputs.append(result)
    first_check, end = len(written["results"]), len(main_types(written["module"])[1])
    return Written(
        text=written["module"],
        inputs=[p["input"] for p in used],
        outputs=outputs,
        checks=list(range(first_check, end)),
    )
