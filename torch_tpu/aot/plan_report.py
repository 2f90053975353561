"""What a program needs on a chip and what limits it there."""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

from .chips import Chip, chip_of
from .report import Status

KEPT_BUFFERS = 40
TIMELINE_POINTS = 600


@dataclasses.dataclass
class ProgramValue:
    """An input or output of the program."""

    name: str
    dtype: str  # "bfloat16"
    shape: list[int]
    role: str = "input"  # input, parameter, buffer, optimizer state, output, updated
    aliased: bool = False  # an input whose memory an output takes, or that output

    @classmethod
    def of(cls, name: str, dtype: object, shape: Iterable[int], role: str) -> "ProgramValue":
        """`dtype` is a torch.dtype."""
        return cls(name, str(dtype).removeprefix("torch."), list(shape), role)


@dataclasses.dataclass
class Buffer:
    """A buffer that is live when most memory is in use, or several that are alike."""

    name: str  # the argument's, else the compiler's for the instruction that computes it
    category: str  # argument, output, temporary
    count: int  # buffers alike, of the layers of a model; then `name` has "*" for their numbers
    bytes: int  # of one, with the padding of its layout
    shape: str  # "bf16[8,128]"
    layout: str  # "{1,0:T(8,128)(2,1)}"
    padding: float | None  # bytes / bytes of its elements
    operator: str  # "" if unknown
    source: str  # the Python line, "model.py:12", "" if unknown

    @property
    def total(self) -> int:
        return self.bytes * self.count


@dataclasses.dataclass
class Timeline:
    """Live bytes along the schedule by category; one point for each `stride` instructions, the
    largest among them."""

    steps: int
    stride: int
    peak_step: int
    peak_instruction: str
    argument: list[int]
    output: list[int]
    temporary: list[int]


@dataclasses.dataclass
class PlanReport:
    """All figures are for one device; None where unknown. Bytes, seconds, operations.

    `str(report)` is a table, `report.html(path)` writes a page with the memory along the schedule.
    """

    program: str
    topology: str
    status: Status
    message: str = ""  # the compiler's, unless ok
    compiler: str = ""
    devices: int = 1  # that run it together
    # Memory. Known also for a program that does not fit.
    hbm_bytes: int | None = None  # what a program may use
    argument_bytes: int | None = None
    output_bytes: int | None = None  # with those that take an argument's place
    alias_bytes: int | None = None  # of outputs that take an argument's place
    temporary_bytes: int | None = None
    generated_code_bytes: int | None = None
    peak_bytes: int | None = None  # live at the peak of the schedule
    compiler_peak_bytes: int | None = None  # the compiler's own figure for that
    argument_bytes_by_role: dict[str, int] = dataclasses.field(default_factory=dict)
    # Most bytes first, at the peak.
    buffers: list[Buffer] = dataclasses.field(default_factory=list)
    timeline: Timeline | None = None
    # Work. Only of a program that compiled.
    flops: float | None = None
    bytes_accessed: float | None = None  # the compiler's count: by instructions, in all memories
    hbm_traffic: int | None = None  # bytes moved to and from high-bandwidth memory
    exchanged_bytes: int = 0  # received from other devices, at least
    estimated_cycles: int | None = None  # single instructions added up, copies not among them
    unknown_loops: int = 0  # loops counted once, their trip count being unknown
    # Cost of planning.
    trace_seconds: float | None = None
    compile_seconds: float | None = None
    compile_cpu_seconds: float | None = None  # None if the compiler was stopped or ended itself
    host_bytes: dict[str, int] = dataclasses.field(default_factory=dict)  # peak, by process
    inputs: list[ProgramValue] = dataclasses.field(default_factory=list)
    outputs: list[ProgramValue] = dataclasses.field(default_factory=list)
    advice: list[str] = dataclasses.field(default_factory=list)

    @property
    def chip(self) -> Chip:
        return chip_of(self.topology)

    @property
    def fits(self) -> bool | None:
        """None if the compiler said neither that it does nor that it does not."""
        if self.status == Status.OUT_OF_MEMORY:
            return False
        if self.status == Status.OK:
            return True
        required = self.required_bytes
        return None if required is None else required <= self.chip.hbm_bytes

    @property
    def required_bytes(self) -> int | None:
        """What has to be free on the device: arguments, outputs that take no argument's place,
        temporaries and the program itself."""
        if self.argument_bytes is None:
            return None
        return (
            self.argument_bytes
            + (self.output_bytes or 0)
            - (self.alias_bytes or 0)
            + (self.temporary_bytes or 0)
            + (self.generated_code_bytes or 0)
        )

    @property
    def arithmetic_intensity(self) -> float | None:
        """Operations for each byte that is moved to or from high-bandwidth memory."""
        if self.flops is None or not self.hbm_traffic:
            return None
        return self.flops / self.hbm_traffic

    @property
    def estimated_seconds(self) -> float | None:
        """The compiler's estimated cycles at the generation's clock."""
        return None if self.estimated_cycles is None else self.estimated_cycles / self.chip.clock

    @property
    def roofline_seconds(self) -> float | None:
        """A lower bound from the published rates: operations at the peak rate of bfloat16, the
        traffic at the memory's bandwidth, or what comes from other devices at that of all links,
        whichever takes longest."""
        return max(self._limits.values(), default=None)

    @property
    def bound(self) -> str | None:
        """What takes longest at the published rates: "compute", "memory bandwidth" or
        "interconnect"."""
        return max(self._limits, key=self._limits.get, default=None)

    @property
    def _limits(self) -> dict[str, float]:
        """Seconds at the published rates; empty where work is unknown."""
        if self.flops is None or not self.hbm_traffic:
            return {}
        chip = self.chip
        return {
            "compute": self.flops / chip.peak_flops,
            "memory bandwidth": self.hbm_traffic / chip.hbm_bandwidth,
            "interconnect": self.exchanged_bytes / chip.ici_bandwidth,
        }

    def as_dict(self) -> dict:
        """Fields and derived figures, fit for JSON."""
        derived = (
            "fits",
            "required_bytes",
            "arithmetic_intensity",
            "estimated_seconds",
            "roofline_seconds",
            "bound",
        )
        return {
            **dataclasses.asdict(self),
            **{name: getattr(self, name) for name in derived},
            "chip": {**dataclasses.asdict(self.chip), "ridge": self.chip.ridge},
        }

    def json(self) -> str:
        return json.dumps(self.as_dict(), indent=1)

    @classmethod
    def from_dict(cls, values: dict) -> "PlanReport":
        """The report of which `values` is the `as_dict`; derived figures are derived again."""
        fields = {f.name: values[f.name] for f in dataclasses.fields(cls) if f.name in values}
        fields["status"] = Status(fields["status"])
        fields["buffers"] = [Buffer(**b) for b in fields.get("buffers", ())]
        fields["inputs"] = [ProgramValue(**v) for v in fields.get("inputs", ())]
        fields["outputs"] = [ProgramValue(**v) for v in fields.get("outputs", ())]
        if fields.get("timeline") is not None:
            fields["timeline"] = Timeline(**fields["timeline"])
        return cls(**fields)

    def __str__(self) -> str:
        from .table import render

        return render(self)

    def html(self, path: str | Path) -> Path:
        """Writes one page without anything external: the figures, the memory along the schedule,
        the buffers at its peak."""
        from .page import page

        path = Path(path)
        path.write_text(page(self), encoding="utf-8")
        return path
