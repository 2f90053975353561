"""Device meshes that follow the links between the chips.

The chips of a slice form a grid with a link to each neighbour; links that close a side into a ring
exist only in large slices. Ranks are numbered as libtpu numbers processes: host by host, x fastest,
among hosts and among the chips of one. In that order the ranks of a mesh's innermost dimension,
which talk most, are often not neighbours.

PyTorch's groups keep their ranks in ascending order, so a mesh whose ranks descend somewhere would
have coordinates that differ from the ranks in its groups. What can be chosen is which ranks are
together. A rank is a sum of what x, y and z contribute, so the chips of a slice are numbers of
several digits, a dimension of the mesh is a set of digits, and its ranks ascend everywhere.
"""

import itertools
import math
import os
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from torch_tpu.aot.topology import GENERATIONS, resolve_topology

from .bootstrap import slice_bounds
from .machine import slice_of
from .presence import libtpu_chosen

Chip = tuple[int, int, int]

# The longest side of a flat slice spans the pod, and only there the ends are joined.
_FLAT_RING = 16
_ONE_HOST = {4: "v5e:2x2", 8: "v5e:2x4"}


def _places(bounds: Chip) -> Iterator[Chip]:
    """All places of a grid, x fastest."""
    for z, y, x in itertools.product(*(range(n) for n in reversed(bounds))):
        yield x, y, z


def chips_of_ranks(bounds: Chip) -> list[Chip]:
    """The chip of each rank of a slice."""
    host = (min(bounds[0], 2), min(bounds[1], 2), 1)
    hosts = tuple(n // h for n, h in zip(bounds, host, strict=True))
    return [
        tuple(a * h + b for a, h, b in zip(at, host, inside, strict=True))
        for at in _places(hosts)
        for inside in _places(host)
    ]


def _primes(number: int) -> list[int]:
    """Its prime factors, ascending."""
    factors, prime = [], 2
    while number > 1:
        while number % prime == 0:
            factors.append(prime)
            number //= prime
        prime += 1
    return factors


class _Digits:
    """The coordinates of a slice, taken apart digit by digit, the lowest ones of each axis first.
    A digit is an axis, a stride along it and a count."""

    def __init__(self, bounds: Chip):
        self.left = list(bounds)
        self.taken = [1, 1, 1]

    def take(self, axis: int, count: int) -> tuple[int, int, int]:
        digit = (axis, self.taken[axis], count)
        self.taken[axis] *= count
        self.left[axis] //= count
        return digit

    def near(self, size: int) -> list[tuple[int, int, int]]:
        """Digits of a box of `size` chips as near to one another as can be: those of one host
        first, then whatever keeps the box closest to a cube."""
        extent, digits = [1, 1, 1], []
        for prime in _primes(size):
            axis = min(
                (a for a in range(3) if self.left[a] % prime == 0),
                key=lambda a: (a == 2 or self.taken[a] >= 2, extent[a], a),
            )
            extent[axis] *= prime
            digits.append(self.take(axis, prime))
        return digits


def _rings(size: int, bounds: Chip, flat: bool) -> tuple[int, ...] | None:
    """Axes that make `size` together and have all the links a side can have: rings, and pairs."""
    if flat:
        axes = [a for a in range(3) if bounds[a] in (2, _FLAT_RING)]
    else:
        axes = [a for a in range(3) if bounds[a] == 2 or (bounds[a] > 1 and min(bounds) >= 4)]
    for count in (1, 2):
        for some in itertools.combinations(axes, count):
            if math.prod(bounds[a] for a in some) == size:
                return some
    return None


def _chips(digits: Sequence[tuple[int, int, int]]) -> list[Chip]:
    """The chips that differ in these digits alone."""
    chips = []
    for values in itertools.product(*(range(count) for _, _, count in digits)):
        chip = [0, 0, 0]
        for value, (axis, stride, _) in zip(values, digits, strict=True):
            chip[axis] += value * stride
        chips.append(tuple(chip))
    return chips


def rank_order(shape: Sequence[int], topology: str, *, num_slices: int = 1) -> list[int]:
    """The ranks of a mesh of this shape, row by row, so that the innermost dimension has the
    fastest links.

    If the innermost dimension can be whole sides of the slice that are pairs or rings, it is.
    Otherwise its ranks are a box of chips, those of one host first; the other dimensions follow,
    from the inside, among what is left. Ranks ascend along every dimension. Several slices, joined
    by a slower network, divide the outermost dimension.

    `topology` is that of one slice, one rank a chip. Pure. Raises ValueError where shape and
    topology do not fit.
    """
    shape = tuple(shape)
    resolve_topology(topology)
    generation, _, sides = topology.partition(":")
    bounds = slice_bounds(topology, min(4, math.prod(map(int, sides.split("x")))))
    chips = math.prod(bounds)
    if math.prod(shape) != chips * num_slices:
        raise ValueError(
            f"a mesh of {'x'.join(map(str, shape))} has {math.prod(shape)} places, but {num_slices}"
            f" x {topology} has {chips * num_slices} chips"
        )
    if num_slices > 1:
        if shape[0] % num_slices:
            raise ValueError(
                f"the outermost dimension of {'x'.join(map(str, shape))} goes across slices: a "
                f"multiple of {num_slices} fits"
            )
        shape = (shape[0] // num_slices, *shape[1:])
    rank_of = {chip: rank for rank, chip in enumerate(chips_of_ranks(bounds))}
    digits, order, ringed = _Digits(bounds), [0], False
    for size in reversed(shape):
        # Only the first dimension that has more than one rank: later ones find sides in use.
        rings = None
        if size > 1 and not ringed:
            ringed, rings = True, _rings(size, bounds, GENERATIONS[generation] == 2)
        mine = [digits.take(a, bounds[a]) for a in rings] if rings else digits.near(size)
        steps = sorted(rank_of[chip] for chip in _chips(mine))
        order = [step + rank for step in steps for rank in order]
    return [s * chips + rank for s in range(num_slices) for rank in order]


def topology_aware_mesh(
    shape: Sequence[int],
    mesh_dim_names: Sequence[str] | None = None,
    topology: str | None = None,
) -> DeviceMesh:
    """`init_device_mesh("tpu", shape)` with the ranks in the order of `rank_order`.

    `topology` ("v5e:4x4") is what the machine says unless given; where it says nothing, as on a
    laptop, ranks keep their order. Every rank calls this. Raises ValueError where shape, topology
    and the number of ranks do not fit.
    """
    shape = tuple(shape)
    if not dist.is_initialized():
        dist.init_process_group()
    world = dist.get_world_size()
    if math.prod(shape) != world:
        raise ValueError(
            f"a mesh of {'x'.join(map(str, shape))} has {math.prod(shape)} places for {world} ranks"
        )
    tpu = libtpu_chosen(os.environ)
    here = slice_of(os.environ, ask=tpu and topology is None)
    if topology is None:
        one_host = os.environ.get("LOCAL_WORLD_SIZE") == str(world)
        # The chips of one host are linked alike in all generations.
        topology = _ONE_HOST.get(world) if tpu and one_host else here.topology
    order = range(world)
    if topology is not None:
        order = rank_order(shape, topology, num_slices=here.num_slices)
    names = None if mesh_dim_names is None else tuple(mesh_dim_names)
    return DeviceMesh("tpu", torch.tensor(list(order)).view(shape), mesh_dim_names=names)
