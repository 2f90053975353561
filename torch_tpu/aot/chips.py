"""What is published of each generation of chips, for the limits that a report names.

Peak rates and memory are Google's, from the system-architecture pages of the Cloud TPU
documentation (https://cloud.google.com/tpu/docs/v4, .../v5e, .../v5p, .../v6e, .../tpu7x), a chip's
figures divided by its devices where a chip has two (v4, tpu7x). The clock of v4 is in "TPU v4: An
Optically Reconfigurable Supercomputer" (ISCA 2023); that of the others is the published peak rate
divided by what their matrix units do in a cycle, two operations for each multiplier of 128 x 128
(v5e: 4 units, v5p: 8) or 256 x 256 (v6e and a device of tpu7x: 4, as the compiler schedules them).
The interconnect's rates are published for both directions together; half of that comes in.
The memory that a program may use is less than the chip has; this is what libtpu 0.0.52 compares
with.
"""

import dataclasses

GIB = 1024**3


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device of a generation."""

    generation: str
    peak_flops: float  # bfloat16 with float32 accumulation, operations a second
    hbm_bandwidth: float  # bytes a second
    hbm_bytes: int  # what a program may use
    clock: float  # cycles a second
    ici_bandwidth: float  # bytes a second that come in over all links of a slice

    @property
    def ridge(self) -> float:
        """The arithmetic intensity, in operations a byte, above which compute is the limit."""
        return self.peak_flops / self.hbm_bandwidth


CHIPS = {
    chip.generation: chip
    for chip in (
        Chip("v4", 275e12 / 2, 1228e9 / 2, int(30.5 * GIB), 1.05e9, 300e9 / 2),
        Chip("v5e", 197e12, 819e9, int(15.75 * GIB), 1.5e9, 200e9),
        Chip("v5p", 459e12, 2765e9, int(95.7 * GIB), 1.75e9, 600e9),
        Chip("v6e", 918e12, 1640e9, int(31.24 * GIB), 1.75e9, 400e9),
        Chip("tpu7x", 2307e12 / 2, 7380e9 / 2, int(94.7 * GIB), 2.2e9, 600e9 / 2),
    )
}


def chip_of(topology: str) -> Chip:
    """The chip of a topology that `resolve_topology` accepts."""
    return CHIPS[topology.partition(":")[0].rpartition("*")[2]]
