"""A program compiled for a chip, with its report; kept in a file and read again."""

import dataclasses
import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from . import hlo, liveness
from .advice import advise
from .chips import chip_of
from .compiler import compile_in_detail
from .exchange import exchanged_bytes, partitions
from .plan_report import KEPT_BUFFERS, TIMELINE_POINTS, Buffer, PlanReport, ProgramValue, Timeline
from .report import Status
from .topology import resolve_topology
from .traffic import memory_traffic

FORMAT = 1
_MANIFEST, _EXECUTABLE = "manifest.json", "executable"
_NEEDED = re.compile(r"\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)")
_LAYER = re.compile(r"\.\d+\.")
_NUMBER = re.compile(r"[.\d]+$")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class CompiledProgram:
    """What `compile` and `load` return.

    `report` is a `PlanReport`. There is no program to save or run unless its status is OK.
    """

    def __init__(self, report: PlanReport, serialized: bytes | None) -> None:
        self.report = report
        self._serialized = serialized

    def __str__(self) -> str:
        return str(self.report)

    def save(self, path: str | Path) -> Path:
        """Writes a zip file: the executable as the compiler serialized it and a JSON manifest with
        topology, compiler, inputs, outputs and report. Raises ValueError if there is no program."""
        if self._serialized is None:
            raise ValueError(
                f"{self.report.program}: there is no program to save ({self.report.status})"
            )
        path = Path(path)
        manifest = {"format": FORMAT, "report": self.report.as_dict()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
            archive.writestr(_EXECUTABLE, self._serialized)
        return path

    def load_executable(self):
        """The program on this process's TPU: called with a device index and a list of tensors in
        the order of `report.inputs`. Raises RuntimeError where the device is not a TPU."""
        from torch_tpu import _C

        if self._serialized is None:
            raise ValueError(f"{self.report.program}: there is no program ({self.report.status})")
        platform = _C.plugin_info()["platform"]
        if platform != "tpu":
            raise RuntimeError(
                f"{self.report.program} is compiled for {self.report.topology}; the device of this "
                f"process is {platform or 'none'}. Load it where a TPU is present."
            )
        import torch

        def types(values: Sequence[ProgramValue]) -> list:
            return [(getattr(torch, v.dtype), v.shape) for v in values]

        program = _C.LoadedProgram.deserialize(
            self.report.program,
            self._serialized,
            types(self.report.inputs),
            types(self.report.outputs),
        )
        return program.run


def load(path: str | Path) -> CompiledProgram:
    """The program that `CompiledProgram.save` wrote. Nothing in the file is executed or unpickled.
    Raises ValueError if it is not such a file."""
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
            serialized = archive.read(_EXECUTABLE)
    except (zipfile.BadZipFile, KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a compiled program: {error}") from None
    if manifest.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {manifest.get('format')!r}, this version reads {FORMAT}"
        )
    report = PlanReport.from_dict(manifest["report"])
    resolve_topology(report.topology)
    return CompiledProgram(report, serialized)


def _listing(directory: Path, ending: str) -> str | None:
    files = sorted(directory.glob(f"*.{ending}"))
    return files[-1].read_text(errors="replace") if files else None


def _split_shape(shape: str) -> tuple[str, str]:
    """ "bf16[8,128]{1,0:T(8,128)}" as shape and layout; a tuple's parts stay together."""
    if shape.startswith("("):
        return re.sub(r"\{[^}]*\}", "", shape), ""
    array, brace, layout = shape.partition("{")
    return array, brace + layout


def _buffers(
    profile: liveness.Profile, module: hlo.Module | None, inputs: Sequence[ProgramValue]
) -> list[Buffer]:
    """Those that take most of the peak. Buffers alike in all but the number of a layer are one."""
    origins = hlo.origins(module) if module else {}
    groups: dict[tuple, Buffer] = {}
    for live in profile.buffers:
        instruction = live.name.partition("{")[0]
        operator, source = origins.get(instruction, ("", ""))
        shape, layout = _split_shape(live.shape)
        if live.parameter is not None and live.parameter < len(inputs):
            name, operator, source = inputs[live.parameter].name, "", ""
            alike = _LAYER.sub(".*.", name)
        else:
            name = instruction
            alike = "" if operator or source else _NUMBER.sub("", name)
        key = (live.category, live.bytes, shape, layout, alike, operator, source)
        if key in groups:
            groups[key].count += 1
            groups[key].name = alike or name
            continue
        elements = liveness.unpadded_bytes(live.shape)
        groups[key] = Buffer(
            name=name,
            category=live.category,
            count=1,
            bytes=live.bytes,
            shape=shape,
            layout=layout,
            padding=live.bytes / elements if elements else None,
            operator=operator,
            source=source,
        )
    return sorted(groups.values(), key=lambda b: -b.total)[:KEPT_BUFFERS]


def _timeline(profile: liveness.Profile) -> Timeline:
    steps = len(next(iter(profile.live.values())))
    stride = -(-steps // TIMELINE_POINTS)
    starts = np.arange(0, steps, stride)
    # The categories of the step with the largest sum stand for each stretch.
    total = sum(profile.live.values())
    chosen = [int(s + total[s : s + stride].argmax()) for s in starts]
    series = {name: values[chosen].tolist() for name, values in profile.live.items()}
    return Timeline(
        steps=steps,
        stride=stride,
        peak_step=profile.peak_step,
        peak_instruction=profile.steps[profile.peak_step] if profile.steps else "",
        **series,
    )


def _add_memory(
    report: PlanReport, profile: liveness.Profile, module: hlo.Module | None
) -> PlanReport:
    by_role: dict[str, int] = {}
    for buffer in profile.buffers:
        if buffer.parameter is not None and buffer.parameter < len(report.inputs):
            role = report.inputs[buffer.parameter].role
            by_role[role] = by_role.get(role, 0) + buffer.bytes
    return dataclasses.replace(
        report,
        argument_bytes=profile.argument_bytes,
        output_bytes=profile.output_bytes,
        alias_bytes=profile.alias_bytes,
        temporary_bytes=profile.temporary_bytes,
        peak_bytes=profile.live_peak_bytes,
        argument_bytes_by_role=by_role,
        buffers=_buffers(profile, module, report.inputs),
        timeline=_timeline(profile),
    )


def _available(message: str) -> int | None:
    """The device's memory as the compiler's message about running out of it says, to 10 MiB."""
    match = _NEEDED.search(message)
    return int(float(match[3]) * _UNITS[match[4]]) if match else None


def compile_text(
    text: str,
    topology: str,
    *,
    name: str = "program",
    inputs: Sequence[ProgramValue] = (),
    outputs: Sequence[ProgramValue] = (),
    timeout: float = 600.0,
    dump_hlo: str | Path | None = None,
) -> CompiledProgram:
    """Compiles a StableHLO module with libtpu for `topology`; no TPU is needed. A module of several
    partitions runs on so many devices of it.

    Running out of memory, a compiler that ends itself and one that needs more than `timeout`
    seconds are statuses of the report, whose memory is then as far known as the compiler came.
    `inputs` and `outputs` name the module's arguments and results for the report. `dump_hlo` is a
    file for the optimized program, as text. Raises ValueError for a topology that does not exist
    and ModuleNotFoundError without libtpu.
    """
    with tempfile.TemporaryDirectory(prefix="torch_tpu_aot_") as directory:
        work = Path(directory)
        file, dump, executable = work / "module.mlir", work / "dump", work / "executable"
        file.write_text(text)
        answer = compile_in_detail(
            file, topology, dump=dump, executable=executable, timeout=timeout
        )
        serialized = executable.read_bytes() if executable.exists() else None
        report = PlanReport(
            program=name,
            topology=topology,
            devices=partitions(text),
            exchanged_bytes=exchanged_bytes(text),
            status=Status(answer["status"]),
            message=answer.get("message", ""),
            compiler=" ".join(answer.get("compiler", "").split()),
            hbm_bytes=_available(answer.get("message", "")) or chip_of(topology).hbm_bytes,
            compile_seconds=answer["seconds"],
            compile_cpu_seconds=answer.get("cpu_seconds"),
            host_bytes={"compiler": answer["host_bytes"]} if "host_bytes" in answer else {},
            inputs=list(inputs),
            outputs=list(outputs),
        )
        generated = _listing(dump, "after_codegen.txt")
        optimized = generated or _listing(dump, "after_optimizations.txt")
        module = hlo.parse(optimized) if optimized else None
        assignment = _listing(dump, "after_optimizations-buffer-assignment.txt")
        ranges = _listing(dump, "after_optimizations-live-range.txt")
        if assignment and ranges:
            report = _add_memory(report, liveness.profile(assignment, ranges), module)
        if report.status == Status.OK:
            cycles = hlo.estimated_cycles(module) if module else hlo.Cycles(None, 0)
            report = dataclasses.replace(
                report,
                argument_bytes=answer["argument_bytes"],
                output_bytes=answer["output_bytes"],
                alias_bytes=answer["alias_bytes"],
                temporary_bytes=answer["temporary_bytes"],
                generated_code_bytes=answer["generated_code_bytes"],
                compiler_peak_bytes=answer.get("peak_bytes"),
                flops=answer.get("flops"),
                bytes_accessed=answer.get("bytes_accessed"),
                hbm_traffic=memory_traffic(module) if module else None,
                estimated_cycles=cycles.total,
                unknown_loops=cycles.unknown_loops,
            )
        report.advice = advise(report)
        if dump_hlo is not None and optimized:
            Path(dump_hlo).write_text(optimized)
        shutil.rmtree(dump, ignore_errors=True)
    return CompiledProgram(report, serialized)
