"""What was compiled, how long it took, where it came from, and why it had to be."""

from dataclasses import dataclass

from torch_tpu import _C


@dataclass(frozen=True)
class CompileRecord:
    """One program that was compiled, or loaded instead of compiled."""

    number: int
    """1 for the first of this process."""
    operation: str
    """The operator with its overload, "add.Tensor"; "compiled" or "compiled backward" for a graph
    of `torch.compile`."""
    source: str
    """"compiler"; "disk", the cache of earlier runs; or "memory", where another operation of this
    process has the same program."""
    seconds: float
    """Wall time altogether."""
    building: float
    """Of these: writing the module."""
    loading: float
    """Of these: looking for the program in memory and on disk, and reading it."""
    compiling: float
    """Of these: in the compiler. The rest is storing the program."""
    operations: int
    """StableHLO operations in the module."""
    reason: str
    """Why what was there did not serve: what differs from the last call of this operator."""
    where: str
    """"file.py:12" of the innermost Python line outside PyTorch, or ""."""

    def __str__(self) -> str:
        where = f", at {self.where}" if self.where else ""
        kind = "" if self.operation.startswith("compiled") else "aten."
        return (
            f"{self.number}: {kind}{self.operation}: {self.seconds * 1e3:.1f} ms, from "
            f"{self.source}, {self.operations} operations: {self.reason}{where}"
        )


def compile_log(clear: bool = False) -> list[CompileRecord]:
    """The last 4,096 programs that were compiled or loaded, oldest first; with `clear` they are
    forgotten.

    Each has `number`, `operation`, `source` ("compiler", "disk" or "memory"), `seconds` and of
    these `building`, `loading` and `compiling`, the number of StableHLO `operations`, the `reason`
    why a new program was needed, and `where` in the Python code. The reason says what differs from
    the last call of the same operator for which a program was made:

    - "first call of this operator"
    - "argument 1 (other) was f32[8,64], now f32[8,128]"
    - "argument 0 (self) was f32[8,8], now f32[8,8] with strides [1,8]": another view
    - "dim was 0, now 1": an argument that is part of the program
    - "other was an int, now a float": numbers are run-time arguments, but their kind is not
    - "was unloaded to make room": see `compilations()["unloaded"]`

    print(*torch.tpu.compile_log(), sep="\\n") shows one line a program, as TORCH_TPU_LOG=compile
    does on stderr while they are compiled. Raises nothing; before the first program it is empty."""
    return [CompileRecord(**record) for record in _C.compile_log(clear)]
