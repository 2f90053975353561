"""Bytes that the ranks of a program send one another."""

import math
import re

_CALL = re.compile(
    r'"stablehlo\.(all_gather|all_reduce|all_to_all|collective_permute|reduce_scatter)"'
)
_GROUPS = re.compile(r"replica_groups = dense<[^>]*> : tensor<\d+x(\d+)xi64>")
_TYPES = re.compile(r"\} : \(tensor<([^>]*)>\) -> tensor<([^>]*)>")
_BITS = re.compile(r"[a-z]+(\d+)")
_PARTITIONS = re.compile(r"module @\S+ attributes \{mhlo.num_partitions = (\d+)")


def partitions(text: str) -> int:
    """On how many devices at once a StableHLO module runs."""
    found = _PARTITIONS.match(text)
    return int(found[1]) if found else 1


def _bytes(array: str) -> int:
    *dims, element = array.split("x")
    return math.ceil(math.prod(map(int, dims)) * int(_BITS.match(element)[1]) / 8)


def exchanged_bytes(text: str) -> int:
    """What each device receives from others at least, if a StableHLO module is run as it is
    written: of n ranks an all-gather brings all but the own n-th, an all-reduce that twice. What
    is in a loop counts once."""
    total = 0.0
    for call in _CALL.finditer(text):
        # The attributes of an operation with a body come after it.
        types = _TYPES.search(text, call.end())
        operand, result = _bytes(types[1]), _bytes(types[2])
        if call[1] == "collective_permute":
            total += operand
            continue
        n = int(_GROUPS.search(text, call.end())[1])
        times = 2 if call[1] == "all_reduce" else 1
        total += times * max(operand, result) * (n - 1) / n
    return round(total)
