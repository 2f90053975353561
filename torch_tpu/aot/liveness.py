"""Which buffers a compiled program holds, and when: read from the compiler's own buffer assignment.

libtpu writes, before it generates code and also for a program that does not fit, which value
lies where in which allocation and from which to which instruction of its schedule it lives. So
nothing is estimated here. Only high-bandwidth memory is looked at, not the memories on the chip.
"""

import dataclasses
import math
import re
from collections import defaultdict

import numpy as np

_ALLOCATION = re.compile(r"allocation (\d+): size (\d+), (?:color (\d+), )?(.*):$")
_VALUE = re.compile(r" value: <\d+ (\S+) @\d+> \(size=(\d+),offset=(\d+)\): (.*)$")
_RANGE = re.compile(r"    (.+):(\d+)-(\d+)$")
_STEP = re.compile(r"    (\d+):(.+)$")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\]")
_BITS = re.compile(r"[a-z]+(\d+)")

ARGUMENT, OUTPUT, TEMPORARY = CATEGORIES = ("argument", "output", "temporary")


@dataclasses.dataclass(slots=True)
class Value:
    name: str  # of the instruction, with the part of its tuple: "fusion.2{1}"
    bytes: int
    offset: int
    shape: str


@dataclasses.dataclass(slots=True)
class Allocation:
    index: int
    bytes: int
    category: str
    parameter: int | None  # which argument it is
    live_out: bool
    values: list[Value]


def unpadded_bytes(shape: str) -> int | None:
    """What the elements of an array take without the padding of its layout; None for tuples."""
    if shape.startswith("(") or not (match := _ARRAY.match(shape)):
        return None
    bits = _BITS.match(match[1])
    size = 8 if bits is None else int(bits[1])
    return math.ceil(math.prod(int(n.lstrip("<=")) for n in match[2].split(",") if n) * size / 8)


def parse_assignment(text: str) -> list[Allocation]:
    """The allocations in high-bandwidth memory."""
    allocations: list[Allocation] = []
    skipping = True
    for line in text.splitlines():
        if match := _ALLOCATION.match(line):
            described = match[4]
            skipping = match[3] not in (None, "0") or "thread-local" in described
            if skipping:
                continue
            parameter = re.search(r"parameter (\d+)", described)
            live_out = "maybe-live-out" in described
            category = ARGUMENT if parameter else OUTPUT if live_out else TEMPORARY
            allocations.append(
                Allocation(
                    index=int(match[1]),
                    bytes=int(match[2]),
                    category=category,
                    parameter=int(parameter[1]) if parameter else None,
                    live_out=live_out,
                    values=[],
                )
            )
        elif not skipping and (match := _VALUE.match(line)):
            name = match[1] if match[1].endswith("}") else match[1] + "{}"
            allocations[-1].values.append(Value(name, int(match[2]), int(match[3]), match[4]))
    return allocations


def parse_live_ranges(text: str) -> tuple[list[str], dict[str, tuple[int, int]]]:
    """The schedule's instructions, and for each value the first and last position it lives at."""
    steps: list[str] = []
    ranges: dict[str, tuple[int, int]] = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("  ") and line[2] != " ":
            section = line.strip()
        elif section == "InstructionSequence:" and (match := _STEP.match(line)):
            steps.append(match[2])
        elif section == "BufferLiveRange:" and (match := _RANGE.match(line)):
            ranges[match[1]] = (int(match[2]), int(match[3]))
    return steps, ranges


@dataclasses.dataclass(slots=True)
class LiveBuffer:
    """A buffer that is live at the peak."""

    name: str  # the instruction that made it, with the part of its tuple
    category: str
    bytes: int
    shape: str
    parameter: int | None


@dataclasses.dataclass(slots=True)
class Profile:
    """The memory of a program along its schedule. All figures are bytes."""

    argument_bytes: int
    output_bytes: int  # with those that take an argument's place
    alias_bytes: int
    temporary_bytes: int  # what is reserved for them, gaps and all
    live: dict[str, np.ndarray]  # by category, one figure for each step of the schedule
    steps: list[str]
    peak_step: int
    buffers: list[LiveBuffer]  # at the peak, largest first

    @property
    def allocated_bytes(self) -> int:
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temporary_bytes

    @property
    def live_peak_bytes(self) -> int:
        return int(sum(series[self.peak_step] for series in self.live.values()))


def _place_series(intervals: list[tuple[int, int, int]], steps: int) -> np.ndarray:
    """Bytes in use at one place in memory. Values that share it at one step (an operand and the
    result computed in place) count once, as the larger."""
    series = np.zeros(steps, dtype=np.int64)
    for start, end, size in intervals:
        window = series[start : end + 1]
        np.maximum(window, size, out=window)
    return series


def profile(assignment: str, live_ranges: str) -> Profile:
    """What the compiler's two listings say together. An argument counts from the first step to the
    last, because its buffer is the caller's; so does an output that takes its place. Another output
    counts from the step that makes it, a temporary as long as it lives."""
    allocations = parse_assignment(assignment)
    names, ranges = parse_live_ranges(live_ranges)
    steps = max(1, len(names))
    live = {category: np.zeros(steps, dtype=np.int64) for category in CATEGORIES}
    sizes = dict.fromkeys(CATEGORIES, 0)
    aliased = 0
    candidates: list[tuple[LiveBuffer, int, int, tuple[int, int]]] = []  # with range and place
    for a in allocations:
        sizes[a.category] += a.bytes
        if a.category == ARGUMENT:
            aliased += a.bytes if a.live_out else 0
            live[ARGUMENT] += a.bytes
            first = a.values[0] if a.values else Value(f"parameter {a.parameter}", a.bytes, 0, "")
            buffer = LiveBuffer(first.name, ARGUMENT, a.bytes, first.shape, a.parameter)
            candidates.append((buffer, 0, steps - 1, (a.index, 0)))
            continue
        places: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for value in a.values:
            start, end = ranges.get(value.name, (0, steps - 1))
            end = steps - 1 if a.category == OUTPUT else min(end, steps - 1)
            start = min(start, end)
            places[value.offset].append((start, end, value.bytes))
            buffer = LiveBuffer(value.name, a.category, value.bytes, value.shape, None)
            candidates.append((buffer, start, end, (a.index, value.offset)))
        for intervals in places.values():
            if len(intervals) == 1:
                start, end, size = intervals[0]
                live[a.category][start : end + 1] += size
            else:
                low = min(i[0] for i in intervals)
                high = max(i[1] for i in intervals) + 1
                shifted = [(start - low, end - low, size) for start, end, size in intervals]
                live[a.category][low:high] += _place_series(shifted, high - low)
    total = sum(live.values())
    peak_step = int(total.argmax())
    # An operand and the result that takes its place at this step are one buffer.
    at_peak: dict[tuple[int, int], LiveBuffer] = {}
    for buffer, start, end, place in candidates:
        if start <= peak_step <= end:
            known = at_peak.get(place)
            if known is None or known.bytes < buffer.bytes:
                at_peak[place] = buffer
    return Profile(
        argument_bytes=sizes[ARGUMENT],
        output_bytes=sizes[OUTPUT] + aliased,
        alias_bytes=aliased,
        temporary_bytes=sizes[TEMPORARY],
        live=live,
        steps=names,
        peak_step=peak_step,
        buffers=sorted(at_peak.values(), key=lambda buffer: -buffer.bytes),
    )
