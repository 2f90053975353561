"""A graph of ATen operators written out as StableHLO, without data."""

import dataclasses
from collections.abc import Sequence

import torch
from torch.fx import GraphModule, Node

from torch_tpu import _C

from .run import CannotCapture, plain_operators, run_nodes
from .staging import is_number, operators_of


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of a module. Exactly one of `input`, `constant` and `random` says what it is."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    input: int | None = None  # position among the graph's inputs
    constant: torch.Tensor | None = None
    random: str | None = None  # "seed" or "offset" of the generator: uint64, 0-d


@dataclasses.dataclass(frozen=True)
class CapturedModule:
    """A StableHLO module and what its parameters and results are."""

    text: str
    parameters: list[Parameter]
    results: list[tuple[torch.dtype, tuple[int, ...]]]
    # For each output of the graph its result; None for one that is not a tensor, or is an input.
    outputs: list[int | None]
    # Inputs that the graph writes to, and the results that replace them.
    mutations: list[tuple[int, int]]


def stand_in(value: object, device: str = "tpu") -> object:
    """A tensor on tpu of the same geometry and without contents; other values as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type == "cpu" and value.dim() == 0:
        return torch.zeros((), dtype=value.dtype)
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)


def to_stablehlo(
    module: GraphModule,
    inputs: Sequence,
    platform: str = "tpu",
    *,
    donate: Sequence[int] = (),
    name: str = "main",
    lines: bool = True,
) -> CapturedModule:
    """Writes a graph out for `platform` ("cpu" or "tpu").

    `module` is a graph of ATen operators as AOTAutograd, `make_fx` or `torch.export` make it.
    `inputs`: one value for each of its placeholders; of tensors (fake, meta or real ones) only
    dtype, shape and strides are looked at, and nothing is allocated. `donate`: positions of inputs
    whose memory the program may reuse. With `lines` the module's operations name the Python lines
    they come from. Raises RuntimeError for an operator that cannot be part of a program.
    """
    placeholders = list(module.graph.find_nodes(op="placeholder"))
    nodes = operators_of(module.graph)
    returned = module.graph.output_node().args[0]
    if not isinstance(returned, (list, tuple)):
        returned = [returned]
    with torch.utils._python_dispatch._disable_current_modes():
        values = [stand_in(value) for value in inputs]
    tensors = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]
    fixed = {
        n: v for n, v in zip(placeholders, values, strict=True) if not isinstance(v, torch.Tensor)
    }
    results = [n for n in returned if isinstance(n, Node) and not is_number(n)]

    def body(stand_ins: list[torch.Tensor]) -> list[torch.Tensor]:
        env = dict(fixed)
        env.update(zip((placeholders[i] for i in tensors), stand_ins, strict=True))
        with torch.utils._python_dispatch._disable_current_modes(), plain_operators():
            run_nodes(module, nodes, env, device=torch.device("tpu"), lines=lines)
        return [_on_tpu(env[n]) if n in env else None for n in results]

    graph = _C.Graph(name, body, [tensors.index(i) for i in donate])
    try:
        written = graph.write([values[i] for i in tensors], platform)
    except CannotCapture as failure:
        raise RuntimeError(
            f"{failure.node.target} cannot be part of a program: {failure.reason}"
        ) from failure
    parameters = []
    random = iter(("seed", "offset"))
    for entry in written["parameters"]:
        # The generator's seed and offset come one after the other.
        word = None
        if entry["input"] < 0 and entry["constant"] is None:
            word = next(random)
        if not entry["used"]:
            continue
        parameters.append(
            Parameter(
                dtype=entry["dtype"],
                shape=entry["shape"],
                input=tensors[entry["input"]] if entry["input"] >= 0 else None,
                constant=entry["constant"],
                random=word,
            )
        )
    where = {results[i]: r if r >= 0 else None for i, r in written["outputs"]}
    return CapturedModule(
        text=written["module"],
        parameters=parameters,
        results=[tuple(r) for r in written["results"]],
        outputs=[where.get(n) for n in returned],
        mutations=[(tensors[i], r) for i, r in written["mutations"]],
    )


def _on_tpu(value: object) -> object:
    if isinstance(value, torch.Tensor) and value.device.type != "tpu":
        return value.to("tpu")
    return value
