"""Names of topologies."""

import math
import re

# Generations that libtpu compiles for, and how many dimensions their slices have.
GENERATIONS = {"v4": 3, "v5e": 2, "v5p": 3, "v6e": 2, "tpu7x": 3}

# Those whose chips are two devices each.
_TWO_DEVICES = ("v4", "tpu7x")


def device_count(name: str) -> int:
    """How many devices a topology has; ValueError as `resolve_topology`."""
    one, options = resolve_topology(name)
    generation, _, shape = one.partition(":")
    chips = math.prod(int(n) for n in shape.split("x"))
    return chips * dict(options).get("num_slices", 1) * (2 if generation in _TWO_DEVICES else 1)


def resolve_topology(name: str) -> tuple[str, list[tuple[str, int | list[int]]]]:
    """The name and the options by which libtpu knows a topology.

    `name` is a generation and the shape of a slice in chips: "v5e:1x1", "v6e:4x4", "v5p:2x2x1".
    Several slices have their number before: "2*v5e:2x2". Slices smaller than a host's chips are
    described to libtpu by an option of their own. Raises ValueError with what is allowed for other
    names; libtpu itself would take an empty name for the second generation.
    """
    slices = re.match(r"([1-9]\d*)\*", name)
    one = name[slices.end() :] if slices else name
    match = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)", one)
    if not match or match[1] not in GENERATIONS:
        raise ValueError(
            f"topology {name!r}: expected a generation ({', '.join(GENERATIONS)}) and the shape of "
            "a slice in chips, such as v5e:2x2 or v5p:2x2x1"
        )
    generation, shape = match[1], [int(n) for n in match[2].split("x")]
    if len(shape) != GENERATIONS[generation] or 0 in shape:
        raise ValueError(
            f"topology {name!r}: the shape of a {generation} slice has "
            f"{GENERATIONS[generation]} dimensions of at least one chip"
        )
    options = []
    bounds = shape + [1] * (3 - len(shape))
    if bounds[0] * bounds[1] * bounds[2] < 4:
        options.append(("chips_per_host_bounds", bounds))
    if slices and int(slices[1]) > 1:
        options.append(("num_slices", int(slices[1])))
    return one, options
