"""Records a call of a module, or a training step with it, as a graph over fake tensors on tpu.

Nothing of the module's weights is read and nothing of their size is allocated: parameters and
buffers, wherever they are (on "meta" for a model that does not fit here), become arguments of the
graph, known by shape and dtype only.
"""

import contextlib
import copy
import dataclasses
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from .plan_report import ProgramValue
from .recomputation import keep_recomputation
from .sharding import Shards, local, whole, wrapped

_FRAME = re.compile(r'\s*File "([^"]*)", line (\d+)')


@dataclasses.dataclass
class AdamW:
    """The optimizer of a training step; its fields are those of `torch.optim.AdamW`."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2
    amsgrad: bool = False


@dataclasses.dataclass
class Recorded:
    """A graph of ATen operators with its arguments: `example_inputs` are fake tensors on tpu, in
    the order of `inputs`; `outputs` are what the graph returns. Those of `donate` are written to
    and may be overwritten."""

    module: GraphModule
    example_inputs: list[torch.Tensor]
    inputs: list[ProgramValue]
    outputs: list[ProgramValue]
    donate: list[int]
    seconds: float


def _tensors_in(value: Any, name: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """The tensors and devices inside arguments, with names: through containers and through the
    attributes of objects such as caches."""
    if isinstance(value, (torch.Tensor, torch.device)):
        if id(value) not in seen:
            seen.add(id(value))
            yield name, value
        return
    if value is None or isinstance(value, (str, bytes, int, float, complex, type, torch.dtype)):
        return
    if id(value) in seen or isinstance(value, torch.nn.Module) or callable(value):
        return
    seen.add(id(value))
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(str(i), item) for i, item in enumerate(value)]
    else:
        items = list(getattr(value, "__dict__", {}).items())
    for key, item in items:
        yield from _tensors_in(item, f"{name}.{key}" if name else key, seen)


def _short_trace(trace: str) -> str:
    """A node's stack trace without PyTorch's own frames, files named from their package on."""
    kept: list[str] = []
    keep = False
    for line in trace.splitlines():
        if match := _FRAME.match(line):
            path = match[1]
            keep = "/site-packages/torch/" not in path and "/torch_tpu/aot/" not in path
            line = line.replace(path, path.rpartition("/site-packages/")[2])
        if keep:
            kept.append(line)
    return "\n".join(kept)


def _positional_names(function: Callable, count: int) -> list[str]:
    import inspect

    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    return (names + [f"argument {i}" for i in range(len(names), count)])[:count]


class _State:
    """A module's parameters and buffers and the tensors in its arguments, as fake tensors."""

    def __init__(self, model: torch.nn.Module, args: Sequence, kwargs: Mapping[str, Any]) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        self.model = model
        self.shards = Shards(model)
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.device = torch.device("tpu", torch.tpu.current_device())
        self.arguments = (tuple(args), dict(kwargs))
        self.parameters = dict(model.named_parameters())
        self.buffers = dict(model.named_buffers())
        named = dict(zip(_positional_names(model.forward, len(args)), args, strict=True))
        found = list(_tensors_in({**named, **kwargs}, "", set()))
        self.argument_tensors = [(n, t) for n, t in found if isinstance(t, torch.Tensor)]
        self.argument_devices = [d for _, d in found if isinstance(d, torch.device)]

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """Of the same shape, strides and dtype, on tpu; this rank's part of a DTensor."""
        tensor = local(tensor)
        with self.mode:
            return torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.device
            )

    def inputs(
        self, named: Iterable[tuple[str, torch.Tensor]], role: str
    ) -> list[tuple[ProgramValue, torch.Tensor]]:
        """Tensors as inputs of the program, with what stands for them."""
        return [(_value(name, tensor, role), self.fake(tensor)) for name, tensor in named]

    def weights(self) -> list[tuple[ProgramValue, torch.Tensor]]:
        """The parameters and buffers as inputs."""
        return self.inputs(self.parameters.items(), "parameter") + self.inputs(
            self.buffers.items(), "buffer"
        )

    @contextlib.contextmanager
    def with_weights(self, parts: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """The module has other weights; given are this rank's parts."""
        from torch.nn.utils.stateless import _reparametrize_module

        own = {**self.parameters, **self.buffers}
        with self.shards.functional():
            state = {name: self.shards.seen(own[name], part) for name, part in parts.items()}
            with _reparametrize_module(self.model, state, tie_weights=True):
                yield

    def call(self, arguments: Sequence[torch.Tensor]) -> Any:
        """The module's result for other tensors in the arguments."""
        memo: dict[int, Any] = {id(device): self.device for device in self.argument_devices}
        for (_, original), tensor in zip(self.argument_tensors, arguments, strict=True):
            memo[id(original)] = wrapped(tensor, original)
        args, kwargs = copy.deepcopy(self.arguments, memo)
        return self.model(*args, **kwargs)


def _outputs_of(result: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(result, torch.Tensor):
        return [("output", local(result))]
    # Tensors inside of caches are seen as what happened to the arguments.
    if isinstance(result, Mapping):
        items = [(str(key), value) for key, value in result.items()]
    elif isinstance(result, (list, tuple)):
        items = [(str(i), value) for i, value in enumerate(result)]
    else:
        return []
    return [
        (f"{name}.{inner}" if inner != "output" else name, tensor)
        for name, value in items
        for inner, tensor in _outputs_of(value)
    ]


def _record(
    state: _State,
    inputs: list[tuple[ProgramValue, torch.Tensor]],
    run: Callable[[list[torch.Tensor]], list[tuple[str, torch.Tensor]]],
    donate: bool,
) -> Recorded:
    """Records `run`. Inputs that it writes to are donated, if `donate`."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.traceback import preserve_node_meta

    start = time.monotonic()
    outputs: list[ProgramValue] = []
    written: list[int] = []

    def traced(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        versions = [t._version for t in tensors]
        results = run(tensors)
        written[:] = [
            i for i, (t, v) in enumerate(zip(tensors, versions, strict=True)) if t._version != v
        ]
        outputs[:] = [_value(name, t, "output") for name, t in results]
        return [t for _, t in results]

    record = make_fx(
        traced, tracing_mode="fake", _allow_non_fake_inputs=True, record_stack_traces=True
    )
    with torch.random.fork_rng(devices=[]), preserve_node_meta():
        module = record([fake for _, fake in inputs])
    _set_lines(module)
    values = [value for value, _ in inputs]
    for i in written:
        values[i].aliased = donate
    return Recorded(
        module=module,
        example_inputs=[fake for _, fake in inputs],
        inputs=values,
        outputs=outputs,
        donate=written if donate else [],
        seconds=time.monotonic() - start,
    )


def _set_lines(module: GraphModule) -> None:
    """Shortens the stack traces of nodes. A node of the backward pass takes that of the operator
    whose gradient it computes: autograd numbers both alike."""
    forward: dict[int, str] = {}
    for node in module.graph.nodes:
        number = node.meta.get("seq_nr")
        trace = _short_trace(node.meta.get("stack_trace") or "")
        if node.meta.get("autograd_backward"):
            trace = forward.get(number, trace)
        elif number is not None and trace:
            forward.setdefault(number, trace)
        node.meta["stack_trace"] = trace


def _value(name: str, tensor: torch.Tensor, role: str) -> ProgramValue:
    tensor = local(tensor)
    return ProgramValue.of(name, tensor.dtype, tensor.shape, role)


def record_call(
    model: torch.nn.Module, args: Sequence, kwargs: Mapping[str, Any], *, donate: bool = True
) -> Recorded:
    """One call of `model` without gradients. What it writes to (a static cache) is an output, with
    `donate` in the memory of the input."""
    state = _State(model, args, kwargs)
    named = {**state.parameters, **state.buffers}
    inputs = state.weights() + state.inputs(state.argument_tensors, "input")

    def run(tensors: list[torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
        weights = dict(zip(named, tensors, strict=False))
        with torch.no_grad(), state.with_weights(weights):
            return _outputs_of(state.call(tensors[len(named) :]))

    return _record(state, inputs, run, donate)


def _loss_of(result: Any) -> torch.Tensor:
    """The scalar to minimise: what the model returns, its `loss`, or the first thing it returns."""
    if not isinstance(result, torch.Tensor):
        result = getattr(result, "loss", None) if hasattr(result, "loss") else result[0]
    if not isinstance(result, torch.Tensor) or result.dim() != 0:
        raise ValueError(
            "a training step needs a scalar loss: a model that returns one (Transformers' models "
            "do when called with labels=...), or loss=function"
        )
    return result


def record_training_step(
    model: torch.nn.Module,
    args: Sequence,
    kwargs: Mapping[str, Any],
    *,
    optimizer: AdamW | None = None,
    loss: Callable[[Any], torch.Tensor] = _loss_of,
    donate: bool = True,
) -> Recorded:
    """Forward, backward and AdamW in one graph. `loss` takes what the model returns to a scalar.
    Parameters that require a gradient, their optimizer states and what the forward writes to are
    updated, with `donate` in place."""
    from torch._functorch._aot_autograd.logging_utils import (
        setup_stacktrace_preservation_hooks_from_tensors,
    )
    from torch.optim.adamw import adamw

    optimizer = optimizer or AdamW()
    state = _State(model, args, kwargs)
    trained = {n: p for n, p in state.parameters.items() if p.requires_grad}
    if not trained:
        raise ValueError("no parameter of the model requires a gradient")
    named = {**state.parameters, **state.buffers}
    inputs = state.weights()
    kinds = ["exp_avg", "exp_avg_sq"] + (["max_exp_avg_sq"] if optimizer.amsgrad else [])
    for kind in kinds:
        named_states = ((f"{kind}.{n}", t) for n, t in trained.items())
        inputs += state.inputs(named_states, "optimizer state")
    step = torch.empty((), dtype=torch.float32, device="meta")
    # PyTorch counts for each parameter; the counts are equal, and one spares hundreds of tiny
    # computations.
    inputs += state.inputs([("step", step)], "optimizer state")
    inputs += state.inputs(state.argument_tensors, "input")

    def run(tensors: list[torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
        remaining = iter(tensors)
        weights = {n: next(remaining) for n in named}
        states = {kind: [next(remaining) for _ in trained] for kind in kinds}
        step = next(remaining)
        leaves = {n: weights[n].detach().requires_grad_() for n in trained}
        # The backward pass may compute parts of the forward again.
        with torch.enable_grad(), state.with_weights({**weights, **leaves}):
            value = whole(loss(state.call(list(remaining))))
            setup_stacktrace_preservation_hooks_from_tensors(value)
            gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        used = [i for i, gradient in enumerate(gradients) if gradient is not None]

        def of(values: Sequence) -> list:
            return [values[i] for i in used]

        with torch.no_grad():
            adamw(
                of([weights[n] for n in trained]),
                of(gradients),
                of(states["exp_avg"]),
                of(states["exp_avg_sq"]),
                of(states["max_exp_avg_sq"]) if optimizer.amsgrad else [],
                [step.clone() for _ in used],
                foreach=False,
                capturable=True,
                amsgrad=optimizer.amsgrad,
                beta1=optimizer.betas[0],
                beta2=optimizer.betas[1],
                lr=optimizer.lr,
                weight_decay=optimizer.weight_decay,
                eps=optimizer.eps,
                maximize=False,
            )
            step.add_(1)
        return [("loss", value.detach())]

    recorded = _record(state, inputs, run, donate)
    weights = {i for i, value in enumerate(recorded.inputs) if value.role != "input"}
    keep_recomputation(recorded.module, weights)
    return recorded
