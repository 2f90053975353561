"""Reads the text of an optimized program, as far as the reports need it.

The compiler prints its computations in the order in which they are scheduled.
"""

import dataclasses
import re
from collections.abc import Iterator

_HEADER = re.compile(r"(ENTRY )?%(\S+) \(.*\{$")
_NAME = re.compile(r"%([\w.\-]+)")
_ATTRIBUTE = re.compile(r"(\w+)=%([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_METADATA = re.compile(r'metadata=\{((?:[^{}"]|"(?:[^"\\]|\\.)*"|\{[^}]*\})*)\}')
_QUOTED = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_INTEGER = re.compile(r"(\w+)=(\d+)")
# What stands where the compiler has no estimate of an instruction's cycles.
UNKNOWN_CYCLES = 2**63 - 1
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
_TABLE_ROW = re.compile(r"(\d+) (?:\"(.*)\"|\{(.*)\})$")


@dataclasses.dataclass(slots=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    shape: str  # with its layout: "f32[8,128]{1,0:T(8,128)}"
    operands: list[str]  # "x", or "x#1" for a part of a tuple
    literal: str  # what stands in the parentheses of a constant or parameter
    called: dict[str, str]  # by attribute: calls, body, condition, to_apply
    branches: list[str]
    attributes: str
    op_name: str = ""
    source: str = ""  # "file.py:12", "" if unknown
    cycles: int | None = None  # the compiler's estimate


@dataclasses.dataclass(slots=True)
class Module:
    computations: dict[str, list[Instruction]]
    roots: dict[str, Instruction]
    entry: str

    def instructions(self) -> Iterator[Instruction]:
        for computation in self.computations.values():
            yield from computation


def _closing(text: str, start: int) -> int:
    """The index of the parenthesis that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        if text[i] == "(":
            depth += 1
        elif text[i] == ")":
            depth -= 1
            if depth == 0:
                return i
    raise ValueError(f"unbalanced parentheses in an HLO instruction: {text[:80]!r}")


class _Sources:
    """The tables at the head of a module that say which line a stack frame is."""

    def __init__(self) -> None:
        self.files: dict[int, str] = {}
        self.locations: dict[int, tuple[int, int]] = {}
        self.frames: dict[int, int] = {}

    def read(self, table: str, line: str) -> None:
        match = _TABLE_ROW.match(line)
        if not match:
            return
        row, text, fields = int(match[1]), match[2], dict(_INTEGER.findall(match[3] or ""))
        if table == "FileNames":
            self.files[row] = text
        elif table == "FileLocations":
            self.locations[row] = (int(fields["file_name_id"]), int(fields["line"]))
        elif table == "StackFrames":
            self.frames[row] = int(fields["file_location_id"])

    def innermost(self, frame: int) -> str:
        file, line = self.locations.get(self.frames.get(frame, 0), (0, 0))
        return f"{self.files[file]}:{line}" if file in self.files else ""


def _parse_instruction(line: str, sources: _Sources) -> Instruction:
    name, rest = line.split(" = ", 1)
    name = name.removeprefix("ROOT ").lstrip("%")
    end = _closing(rest, 0) + 1 if rest[0] == "(" else rest.index(" ")
    shape, rest = rest[:end], rest[end + 1 :]
    opening = rest.index("(")
    closing = _closing(rest, opening)
    opcode, inside, attributes = rest[:opening], rest[opening + 1 : closing], rest[closing + 1 :]
    instruction = Instruction(
        name=name,
        opcode=opcode,
        shape=shape,
        operands=re.findall(r"%([\w.\-]+(?:#\d+)*)", inside),
        literal=inside,
        called=dict(_ATTRIBUTE.findall(attributes)),
        branches=[],
        attributes=attributes,
    )
    if match := _BRANCHES.search(attributes):
        instruction.branches = _NAME.findall(match[1])
    if match := _METADATA.search(attributes):
        quoted, integers = dict(_QUOTED.findall(match[1])), dict(_INTEGER.findall(match[1]))
        instruction.op_name = quoted.get("op_name", "")
        file = quoted.get("source_file", "")
        if file and file != "-":  # "-" is the module's own text
            instruction.source = f"{file}:{integers.get('source_line', '?')}"
        elif "stack_frame_id" in integers:
            instruction.source = sources.innermost(int(integers["stack_frame_id"]))
    if (match := _CYCLES.search(attributes)) and int(match[1]) < UNKNOWN_CYCLES:
        instruction.cycles = int(match[1])
    return instruction


def parse(text: str) -> Module:
    """The computations of a module in text form. Raises ValueError if there is no entry."""
    sources = _Sources()
    module = Module({}, {}, "")
    current, name, table = None, "", ""
    for line in text.splitlines():
        if current is None:
            if match := _HEADER.match(line):
                name = match[2]
                current = module.computations[name] = []
                if match[1]:
                    module.entry = name
            elif line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
                table = line
            else:
                sources.read(table, line)
        elif line.startswith("}"):
            current = None
        elif " = " in line:
            stripped = line.strip()
            instruction = _parse_instruction(stripped, sources)
            current.append(instruction)
            if stripped.startswith("ROOT "):
                module.roots[name] = instruction
    if not module.entry:
        raise ValueError("the optimized program has no entry computation")
    return module


def trip_count(module: Module, loop: Instruction) -> int | None:
    """How often a `while` runs: None unless it counts one of its variables from one constant up to
    another by a third."""
    condition = module.roots.get(loop.called.get("condition", ""))
    body = module.computations.get(loop.called.get("body", ""), [])
    root = module.roots.get(loop.called.get("body", ""))
    if condition is None or root is None or "direction=LT" not in condition.attributes:
        return None
    constants = {
        i.name: int(i.literal)
        for i in module.instructions()
        if i.opcode == "constant" and re.fullmatch(r"-?\d+", i.literal)
    }
    counter, bound = (condition.operands + ["", ""])[:2]
    if bound not in constants or "#" not in counter:
        return None
    position = int(counter.rpartition("#")[2])
    initial = {i.name: i for i in module.instructions()}.get(loop.operands[0])
    if initial is None or root.opcode != "tuple" or initial.opcode != "tuple":
        return None
    start = _through_copies(module, initial.operands[position], constants)
    advance = {i.name: i for i in body}.get(root.operands[position])
    if start is None or advance is None or advance.opcode != "add":
        return None
    steps = [constants[o] for o in advance.operands if o in constants]
    if len(steps) != 1 or steps[0] <= 0:
        return None
    return max(0, -(-(constants[bound] - start) // steps[0]))


def _through_copies(module: Module, name: str, constants: dict[str, int]) -> int | None:
    by_name = {i.name: i for i in module.instructions()}
    while name not in constants:
        instruction = by_name.get(name)
        if instruction is None or instruction.opcode not in ("copy", "bitcast"):
            return None
        name = instruction.operands[0]
    return constants[name]


@dataclasses.dataclass(slots=True)
class Cycles:
    total: int | None  # None where the compiler estimated nothing
    unknown_loops: int  # loops whose body is counted once


def estimated_cycles(module: Module) -> Cycles:
    """The compiler's estimates of single instructions added up, a loop's body times its trip count
    and the longer branch of a condition. What runs beside the computation (copies between memories)
    has no estimate."""
    found = False
    unknown = 0

    def of(computation: str) -> int:
        nonlocal found, unknown
        total = 0
        for i in module.computations.get(computation, ()):
            if i.cycles is not None:
                found = True
                total += i.cycles
            if i.opcode == "while":
                trips = trip_count(module, i)
                if trips is None:
                    unknown += 1
                    trips = 1
                total += trips * (of(i.called["body"]) + of(i.called["condition"]))
            elif i.opcode == "conditional":
                branches = i.branches or [
                    i.called[b] for b in ("true_computation", "false_computation") if b in i.called
                ]
                total += max(map(of, branches), default=0)
            elif i.opcode == "call":
                total += of(i.called["to_apply"])
        return total

    total = of(module.entry)
    return Cycles(total if found else None, unknown)


def origins(module: Module) -> dict[str, tuple[str, str]]:
    """For each instruction the operator and the source line it stands for, "" if unknown. A fusion
    without metadata takes those of its result, a copy those of what it copies."""
    by_name = {i.name: i for i in module.instructions()}
    known: dict[str, tuple[str, str]] = {}

    def of(i: Instruction, depth: int) -> tuple[str, str]:
        if i.name in known:
            return known[i.name]
        origin = (i.op_name, i.source)
        if not any(origin) and depth < 20:
            if fused := module.computations.get(i.called.get("calls", "")):
                inner = [module.roots.get(i.called["calls"], fused[-1]), *reversed(fused)]
                origin = next((o for o in (of(j, depth + 1) for j in inner) if any(o)), origin)
            elif i.operands and i.opcode not in ("while", "tuple", "parameter"):
                operand = by_name.get(i.operands[0].partition("#")[0])
                if operand is not None:
                    origin = of(operand, depth + 1)
        known[i.name] = origin
        return origin

    return {i.name: of(i, 0) for i in module.instructions()}
