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


def test_a_restart_goes_on_from_the_checkpoint(tmp_path):
    attempts = {}
    for kind in ("undisturbed", "disturbed"):
        path = tmp_path / kind
        path.mkdir()
        out = torchrun("elastic.py", 2, str(path), kind, restarts=1).stdout
        lines = [x for x in out.splitlines() if x.startswith("trained ")]
        assert len(lines) == 1, out
        attempts[kind] = json.loads(lines[0].removeprefix("trained "))
    attempt, first, losses = attempts["undisturbed"]
    assert (attempt, first, len(losses)) == (0, 0, 6)
    # The fatal step's number: those before it have their checkpoints.
    assert attempts["disturbed"] == [1, 3, losses[3:]]
