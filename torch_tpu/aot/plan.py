"""From a PyTorch module to what the TPU compiler says of it."""

import contextlib
import dataclasses
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .plan_report import ProgramValue
from .program import CompiledProgram, compile_text
from .topology import resolve_topology
from .trace import AdamW, Recorded, record_call, record_training_step


@dataclasses.dataclass
class Lowered:
    """StableHLO for a TPU, and what its arguments and results are."""

    name: str
    text: str
    inputs: list[ProgramValue]
    outputs: list[ProgramValue]


def _write(recorded: Recorded, name: str) -> Lowered:
    from torch_tpu.compile.capture import to_stablehlo

    captured = to_stablehlo(
        recorded.module,
        recorded.example_inputs,
        platform="tpu",
        donate=recorded.donate,
        name=name,
    )
    inputs = []
    for parameter in captured.parameters:
        if parameter.input is not None:
            inputs.append(recorded.inputs[parameter.input])
            continue
        role = "generator" if parameter.random else "constant"
        inputs.append(
            ProgramValue.of(parameter.random or role, parameter.dtype, parameter.shape, role)
        )
    outputs = [ProgramValue.of("", dtype, shape, "output") for dtype, shape in captured.results]
    for value, result in zip(recorded.outputs, captured.outputs, strict=True):
        if result is not None:
            outputs[result] = dataclasses.replace(value)
    for position, result in captured.mutations:
        outputs[result] = dataclasses.replace(recorded.inputs[position], role="updated")
    return Lowered(name, captured.text, inputs, outputs)


@contextlib.contextmanager
def _training(model: torch.nn.Module, training: bool):
    before = {module: module.training for module in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for module, mode in before.items():
            module.training = mode


def compile_lowered(
    lowered: Lowered,
    topology: str,
    *,
    trace_seconds: float,
    timeout: float,
    dump_hlo: str | Path | None = None,
) -> CompiledProgram:
    """Compiles what `lower` gave, as `compile` does. `trace_seconds` is what it took to get there;
    the report says it, with this process's memory."""
    program = compile_text(
        lowered.text,
        topology,
        name=lowered.name,
        inputs=lowered.inputs,
        outputs=lowered.outputs,
        timeout=timeout,
        dump_hlo=dump_hlo,
    )
    program.report.trace_seconds = trace_seconds
    # Of this process so far, in KiB.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    program.report.host_bytes = {"tracing": peak, **program.report.host_bytes}
    return program


def lower(
    model: torch.nn.Module,
    args: Sequence = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    train: bool | AdamW = False,
    loss: Callable[[Any], torch.Tensor] | None = None,
    donate: bool = True,
    name: str | None = None,
) -> Lowered:
    """The StableHLO that `compile` compiles; the arguments are the same."""
    kwargs = dict(kwargs or {})
    with _training(model, bool(train) or model.training):
        if not train:
            recorded = record_call(model, args, kwargs, donate=donate)
        else:
            recorded = record_training_step(
                model,
                args,
                kwargs,
                optimizer=train if isinstance(train, AdamW) else None,
                donate=donate,
                **({"loss": loss} if loss else {}),
            )
    return _write(recorded, name or type(model).__name__)


def compile(
    model: torch.nn.Module,
    args: Sequence = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    topology: str = "v5e:1x1",
    train: bool | AdamW = False,
    loss: Callable[[Any], torch.Tensor] | None = None,
    donate: bool = True,
    name: str | None = None,
    timeout: float = 600.0,
    dump_hlo: str | Path | None = None,
    dump_stablehlo: str | Path | None = None,
) -> CompiledProgram:
    """Compiles a call of `model` for one TPU of `topology`, without a TPU and without its weights.

    `args` and `kwargs` are what the model is called with. Of their tensors and of the model's
    parameters and buffers only shape and dtype count; they may be on "meta". Tensors inside of
    objects (a Transformers `StaticCache`) are inputs as well, and those that the call writes to
    are also outputs, in place with `donate`. `train` compiles a training step instead: forward,
    backward and AdamW in one program that updates parameters and optimizer states in place; the
    model is in training mode for it, and `loss` makes the scalar of what it returns (default: its
    `loss`). `dump_hlo` and `dump_stablehlo` are files for the optimized program and for what was
    compiled. `timeout` is for the compiler, in seconds.

    Returns the program with its report. Running out of memory is a report like another. Raises
    ValueError for a topology that does not exist and for a training step without a scalar loss,
    ModuleNotFoundError without libtpu, RuntimeError for an operator that cannot be compiled.
    """
    resolve_topology(topology)
    start = time.monotonic()
    lowered = lower(model, args, kwargs, train=train, loss=loss, donate=donate, name=name)
    seconds = time.monotonic() - start
    if dump_stablehlo is not None:
        Path(dump_stablehlo).write_text(lowered.text)
    return compile_lowered(
        lowered, topology, trace_seconds=seconds, timeout=timeout, dump_hlo=dump_hlo
    )
