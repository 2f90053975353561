"""Collectives as programs over the devices of all ranks: here ranks are threads of one process,
each with a device of XLA:CPU."""

import os
import subprocess
import sys

import pytest
from torchrun import SCRIPTS, torchrun


def threads(ranks: int, script: str, *checks: str) -> None:
    result = subprocess.run(
        [sys.executable, str(SCRIPTS / "threads.py"), str(ranks), script, *checks],
        env={**os.environ, "TORCH_TPU_DEVICES": str(ranks)},
        timeout=400,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert result.returncode == 0, result.stdout[-6000:]
    assert "all ranks passed" in result.stdout


def test_collectives():
    threads(4, "collectives")


@pytest.mark.parametrize("ranks", [2, 8])
def test_collectives_of_fewer_and_more_ranks(ranks):
    checks = "movements", "uneven_all_to_all", "premultiplied_sum", "messages", "new_groups"
    threads(ranks, "collectives", *checks)


def test_sharded():
    threads(4, "sharded")


@pytest.mark.parametrize("ranks", [4, 8])
def test_training_steps(ranks):
    threads(ranks, "sharded", "fsdp2", "hsdp")
    threads(ranks, "tensor_data_parallel")


def test_graphs():
    threads(4, "compiled")


def test_graphs_where_programs_do_not_reach_other_ranks():
    torchrun("compiled.py", 2)


def test_recorded_steps():
    threads(4, "recorded")


def test_faults():
    threads(3, "thread_faults")
