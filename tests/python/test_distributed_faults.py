"""What the ranks of a group are told when one of them fails."""

import json

import pytest
from torchrun import apart, torchrun


def test_disagreements():
    out = torchrun("disagreements.py", 3).stdout
    assert out.count("passed ") == 12, out


@pytest.mark.parametrize("victim", [3, 0])  # the store is in the process of rank 0
def test_a_rank_is_killed(victim):
    results = apart("killed.py", 4, str(victim))
    for rank, (output, status) in enumerate(results):
        if rank == victim:
            assert status == -9
            continue
        assert status == 0, output
        line = next(x for x in output.splitlines() if x.startswith("told "))
        told, errors, seconds, device_works = json.loads(line.removeprefix("told "))
        assert told == rank and device_works
        assert len(errors) == (3 if rank == (victim + 1) % 4 else 2)
        for error in errors:
            assert error.startswith("DistBackendError"), error
        assert "all_reduce(SUM, float32[1048576])" in errors[0], errors
        assert "ended" in errors[0], errors
        assert seconds < 60
