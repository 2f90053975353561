"""How a program's parameters and results relate to the arguments and results of the module it was
exported from. Everything here is plain data that JSON holds."""

import dataclasses
import enum
import json
from typing import Any


class Kind(enum.StrEnum):
    STATE = "state"  # a parameter, buffer or constant of the module, by name
    ARGUMENT = "argument"  # a tensor among the call's arguments, by its position among all leaves


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where a tensor of the module's surroundings is."""

    kind: Kind
    name: str = ""
    position: int = -1


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a value is after the program has run: a result of its, or what a slot held before."""

    result: int | None = None
    slot: Slot | None = None


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One leaf of the call's arguments or results: a tensor, or a number, string or None that the
    program was exported with. `source` is for tensors among the results."""

    is_tensor: bool
    constant: int | float | bool | str | None = None
    source: Source | None = None


@dataclasses.dataclass(frozen=True)
class Mutation:
    """What the module changes in place: `slot` becomes `source`."""

    slot: Slot
    source: Source


@dataclasses.dataclass(frozen=True)
class Signature:
    platform: str
    parameters: list[Slot]
    arguments: list[Leaf]
    outputs: list[Leaf]
    mutations: list[Mutation]
    # Results of the program that are true where all indices were in range.
    checks: list[int]
    # torch.utils._pytree.treespec_dumps of (args, kwargs) and of what the module returns.
    in_spec: str
    out_spec: str

    def dumps(self) -> str:
        return json.dumps({"format": 1, **dataclasses.asdict(self)}, indent=1)

    @staticmethod
    def loads(text: str) -> "Signature":
        """Raises ValueError for another format."""
        data: dict[str, Any] = json.loads(text)
        version = data.pop("format", None)
        if version != 1:
            raise ValueError(f"signature format {version}, expected 1")
        return Signature(
            **data
            | {
                "parameters": [_slot(e) for e in data["parameters"]],
                "arguments": [_leaf(e) for e in data["arguments"]],
                "outputs": [_leaf(e) for e in data["outputs"]],
                "mutations": [
                    Mutation(_slot(e["slot"]), _source(e["source"])) for e in data["mutations"]
                ],
            }
        )


def _slot(entry: dict) -> Slot:
    return Slot(Kind(entry["kind"]), entry["name"], entry["position"])


def _source(entry: dict) -> Source:
    slot = entry["slot"]
    return Source(entry["result"], None if slot is None else _slot(slot))


def _leaf(entry: dict) -> Leaf:
    source = entry["source"]
    return Leaf(entry["is_tensor"], entry["constant"], None if source is None else _source(source))
