"""Bytes that a program moves to and from high-bandwidth memory.

The compiler's own count of bytes takes all memories for one. It keeps much on the chip, so what
limits a program is seen only from the layouts of its optimized form, where `S(1)` marks a value in
the chip's memory.
"""

import re
from collections.abc import Iterator

from .hlo import Instruction, Module, trip_count
from .liveness import unpadded_bytes

_FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "partition-id",
    "replica-id",
}
_READS_A_PART = {"slice", "dynamic-slice", "gather"}
_ARRAY = re.compile(r"[a-z]\w*\[[^\]]*\](?:\{[^}]*\})?")


def _arrays(shape: str) -> list[str]:
    return _ARRAY.findall(shape)


def _in_hbm(array: str) -> bool:
    return not re.search(r"S\([1-9]", array)


def _bytes(array: str) -> int:
    return unpadded_bytes(array) or 0


class _Traffic:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.shapes = {i.name: i.shape for i in module.instructions()}

    def _operand(self, operand: str) -> list[str]:
        name, *indices = operand.split("#")
        arrays = _arrays(self.shapes.get(name, ""))
        if indices and len(indices) == 1 and int(indices[0]) < len(arrays):
            return [arrays[int(indices[0])]]
        return arrays

    def _read(self, computation: str, position: int, whole: int) -> int:
        """Bytes that a fusion reads of the operand at `position`, which has `whole`."""
        fused = self.module.computations.get(computation, [])
        for i in fused:
            if i.opcode == "parameter" and i.literal == str(position):
                return min(whole, self._used(fused, i.name, whole))
        return whole

    def _used(self, fused: list[Instruction], name: str, whole: int) -> int:
        total = 0
        for user in fused:
            if name not in user.operands:
                continue
            first = user.operands[0] == name
            if first and user.opcode in _READS_A_PART:
                total += _bytes(user.shape)
            elif user.opcode == "bitcast" or (first and user.opcode == "dynamic-update-slice"):
                # What is updated stays where it is; it is read by who reads the result.
                total += self._used(fused, user.name, whole)
            elif user.opcode == "tuple":
                continue
            elif user.opcode == "fusion":
                inside = sum(
                    self._read(user.called["calls"], position, whole)
                    for position, operand in enumerate(user.operands)
                    if operand == name
                )
                # One that only renames its operand is a view: its result's users read.
                total += inside or self._used(fused, user.name, whole)
            else:
                total += whole
        return total

    def _written(self, instruction: Instruction) -> Iterator[int]:
        """Bytes of each result in high-bandwidth memory; of an update in place, of the update."""
        root = instruction
        if fused := self.module.computations.get(instruction.called.get("calls", "")):
            root = self.module.roots.get(instruction.called["calls"], fused[-1])
        by_name = {i.name: i for i in fused or ()}
        parts = [root]
        if root.opcode == "tuple":
            parts = [by_name.get(o.partition("#")[0], root) for o in root.operands]
        for k, array in enumerate(_arrays(instruction.shape)):
            if not _in_hbm(array):
                continue
            part = parts[k] if k < len(parts) else root
            while part.opcode == "bitcast" and part.operands[0] in by_name:
                part = by_name[part.operands[0]]
            if part.opcode == "dynamic-update-slice":
                update = self._operand(part.operands[1])
                yield _bytes(update[0]) if update else _bytes(array)
            else:
                yield _bytes(array)

    def of(self, computation: str) -> int:
        total = 0
        for i in self.module.computations.get(computation, ()):
            if i.opcode in _FREE or i.opcode.endswith("-done"):
                continue
            if i.opcode == "while":
                trips = trip_count(self.module, i) or 1
                total += trips * (self.of(i.called["body"]) + self.of(i.called["condition"]))
            elif i.opcode == "conditional":
                total += max(map(self.of, i.branches), default=0)
            elif i.opcode == "call":
                total += self.of(i.called["to_apply"])
            elif i.opcode.endswith("-start"):
                # The first two of the results are destination and source, or the other way round.
                moved = min(map(_bytes, _arrays(i.shape)[:2]), default=0)
                total += moved * sum(map(_in_hbm, _arrays(i.shape)[:2]))
            elif i.opcode == "custom-call" and not i.operands:
                continue  # reserves memory
            else:
                total += sum(self._written(i))
                for position, operand in enumerate(i.operands):
                    for array in filter(_in_hbm, self._operand(operand)):
                        if "calls" in i.called:
                            total += self._read(i.called["calls"], position, _bytes(array))
                        elif i.opcode in _READS_A_PART and position == 0:
                            total += _bytes(i.shape)
                        elif i.opcode == "dynamic-update-slice" and position == 0:
                            continue
                        else:
                            total += _bytes(array)
        return total


def memory_traffic(module: Module) -> int:
    """Bytes read from and written to high-bandwidth memory by the program, a loop's body times its
    trip count (once if that is unknown). A fusion reads an operand once, of one that it only
    slices the slices; padding does not count."""
    return _Traffic(module).of(module.entry)
