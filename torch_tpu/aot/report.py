"""What compiling one module came to."""

import dataclasses
import enum


class Status(enum.StrEnum):
    OK = "ok"
    ERROR = "error"  # the compiler refused the module
    OUT_OF_MEMORY = "out of memory"  # it needs more than the chip has
    ABORTED = "aborted"  # the compiler ended its process
    TIMEOUT = "timeout"


@dataclasses.dataclass
class ModuleReport:
    """One module's compilation. All figures are for one device and None where unknown."""

    file: str
    topology: str
    status: Status
    message: str = ""  # the compiler's, unless ok
    seconds: float | None = None
    peak_bytes: int | None = None  # argument + output - alias + temporary, at the peak
    argument_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None
    temporary_bytes: int | None = None
    generated_code_bytes: int | None = None
    flops: float | None = None
    bytes_accessed: float | None = None
    # A roofline of the compiler's, which does not know the precision of matrix products.
    optimal_seconds: float | None = None
    # Sum over the instructions of the optimized program, which does; a loop's body counts once.
    estimated_cycles: int | None = None

    @property
    def ok(self) -> bool:
        return self.status == Status.OK

    def as_dict(self) -> dict:
        return dataclasses.asdict(self)
