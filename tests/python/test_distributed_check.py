"""`python -m torch_tpu.distributed check`, under torchrun."""

import os
import subprocess
import sys


def check(ranks, *arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", "-m", "torch_tpu.distributed", "check", *arguments]
    environment = {**os.environ, "TORCH_TPU_DEVICES": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


def test_all_right():
    result = check(2, "--quick")
    assert result.returncode == 0, result.stderr
    assert "all results right" in result.stdout
    for name in ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter"):
        assert result.stdout.count(f" {name} ") == 1, result.stdout
    for name in ("all_to_all", "gather", "scatter", "send, recv"):
        assert result.stdout.count(f" {name} ") == 1, result.stdout
    assert result.stdout.count(" right ") == 18  # nine collectives, two sizes, printed once
    assert result.stdout.count("MiB/s") >= 9


def test_a_wrong_result_is_an_error():
    result = check(2, "--quick", "--corrupt", "broadcast")
    assert result.returncode != 0
    assert "2 of 18 results are wrong" in result.stdout
    assert "rank 1: element 0 is 14.0 instead of 13.0" in result.stdout


def test_alone():
    result = subprocess.run(
        [sys.executable, "-m", "torch_tpu.distributed", "check"], capture_output=True, text=True
    )
    assert result.returncode == 2
    assert "torchrun --nproc-per-node" in result.stderr
