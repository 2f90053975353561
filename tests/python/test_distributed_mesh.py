"""The order of ranks in a mesh, against the distances between their chips."""

import itertools
import math

import pytest
import torch
from torchrun import torchrun

from torch_tpu.distributed.mesh import chips_of_ranks, rank_order


def shape_of(topology):
    sides = [int(n) for n in topology.partition(":")[2].split("x")]
    return tuple([*sides, 1][:3])


def rows(shape, topology):
    """The chips of each row of the innermost dimension."""
    order = rank_order(shape, topology)
    assert sorted(order) == list(range(math.prod(shape)))
    chips = chips_of_ranks(shape_of(topology))
    return [[chips[r] for r in row] for row in torch.tensor(order).view(-1, shape[-1]).tolist()]


def distance(a, b):
    return sum(abs(x - y) for x, y in zip(a, b, strict=True))


def spread(row):
    return sum(distance(a, b) for a, b in itertools.combinations(row, 2))


@pytest.mark.parametrize(
    ("shape", "topology"),
    [((4,), "v5e:2x2"), ((2, 4), "v5e:2x4"), ((8, 2), "v6e:4x4"), ((2, 4, 4), "v5e:4x8")]
    + [((16, 16), "v5e:16x16"), ((2, 2, 2), "v4:2x2x2"), ((4, 1, 4), "v4:2x2x4")]
    + [((64, 3), "v5p:4x4x12"), ((3, 64), "v5p:4x4x12"), ((8, 16), "tpu7x:4x4x8")],
)
def test_ranks_ascend_along_every_dimension(shape, topology):
    """Or coordinates in the mesh differ from ranks in PyTorch's groups."""
    order = torch.tensor(rank_order(shape, topology)).view(shape)
    assert sorted(order.flatten().tolist()) == list(range(math.prod(shape)))
    for dim in range(len(shape)):
        assert (order.diff(dim=dim) > 0).all()


def test_chips_of_ranks():
    assert chips_of_ranks((2, 4, 1))[:6] == [
        (0, 0, 0),
        (1, 0, 0),
        (0, 1, 0),
        (1, 1, 0),
        (0, 2, 0),
        (1, 2, 0),
    ]
    assert chips_of_ranks((4, 4, 1))[4] == (2, 0, 0)
    assert chips_of_ranks((2, 2, 2))[4] == (0, 0, 1)


def test_on_one_host():
    assert rank_order((4,), "v5e:2x2") == [0, 1, 2, 3]
    assert rank_order((2, 2), "v5e:2x2") == [0, 1, 2, 3]
    assert rank_order((2,), "v4:1x2x1") == [0, 1]
    assert rank_order((1, 1), "v5e:1x1") == [0]
    for row in rows((2, 4), "v6e:2x4"):
        assert spread(row) == 8  # a square: four sides and two diagonals


@pytest.mark.parametrize(
    ("shape", "topology"),
    [((16, 16), "v5e:16x16"), ((16, 4), "v4:4x4x4"), ((4, 4, 4), "v5p:4x4x4")],
)
def test_rings_are_used_whole(shape, topology):
    for row in rows(shape, topology):
        assert any(len({chip[:a] + chip[a + 1 :] for chip in row}) == 1 for a in range(3)), row
        assert all(distance(a, b) == 1 for a, b in itertools.pairwise(row))


def test_boxes():
    # Four ranks are a host, eight two hosts that touch; 64 of a large slice are two rings.
    for shape, topology, sides in [
        ((4, 4), "v5e:4x4", [2, 2, 1]),
        ((2, 8), "v5e:4x4", [4, 2, 1]),
        ((4, 8), "v5p:2x4x4", [2, 2, 2]),
        ((16, 64), "v5p:8x8x16", [8, 8, 1]),
    ]:
        for row in rows(shape, topology):
            assert [max(c) - min(c) + 1 for c in zip(*row, strict=True)] == sides


@pytest.mark.parametrize(
    ("shape", "topology"),
    [((4, 4), "v5e:4x4"), ((8, 8), "v5e:8x8"), ((2, 8), "v6e:4x4"), ((8, 4), "v4:2x4x4")]
    + [((2, 2, 4), "v5e:4x4"), ((16, 4), "v5e:8x8"), ((8, 8), "v4:4x4x4")],
)
def test_never_farther_than_in_order(shape, topology):
    chips = chips_of_ranks(shape_of(topology))
    plain = torch.arange(math.prod(shape)).view(-1, shape[-1]).tolist()
    ordered = sum(map(spread, rows(shape, topology)))
    assert ordered <= sum(spread([chips[r] for r in row]) for row in plain)


def test_slices_divide_the_outermost_dimension():
    order = rank_order((4, 4), "v5e:2x4", num_slices=2)
    assert sorted(order[:8]) == list(range(8))
    assert order[8:] == [8 + r for r in order[:8]]


@pytest.mark.parametrize(
    ("shape", "topology", "slices", "fits"),
    [
        ((4, 4), "v5e:2x4", 1, "8 chips"),
        ((3, 4), "v5e:2x2", 3, None),
        ((1, 16), "v5e:2x4", 2, "multiple of 2"),
        ((4,), "v5e:3x3", 1, "9 chips|slices of v5e"),
        ((4,), "nonsense", 1, "expected a generation"),
    ],
)
def test_what_does_not_fit(shape, topology, slices, fits):
    if fits is None:
        assert len(rank_order(shape, topology, num_slices=slices)) == 12
        return
    with pytest.raises(ValueError, match=fits):
        rank_order(shape, topology, num_slices=slices)


def test_reachable():
    import torch.tpu.distributed

    assert torch.tpu.distributed.topology_aware_mesh.__module__ == "torch_tpu.distributed.mesh"


def test_under_torchrun():
    torchrun("mesh.py", 4)
