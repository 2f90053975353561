"""Runs a script of tests/distributed on several ranks, as a user would: with torchrun."""

import os
import pathlib
import socket
import subprocess
import sys
import time

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent / "distributed"


def torchrun(
    script: str,
    ranks: int,
    *arguments: str,
    timeout: float = 240,
    restarts: int = 0,
    **environment: str,
):
    """The completed process; its output has both streams of all ranks. Fails if a rank does, but
    for `restarts` times, after which all ranks are started again."""
    result = start(script, ranks, *arguments, timeout=timeout, restarts=restarts, **environment)
    assert result.returncode == 0, result.stdout[-8000:]
    return result


def start(
    script: str,
    ranks: int,
    *arguments: str,
    timeout: float = 240,
    restarts: int = 0,
    **environment: str,
):
    """The same, whatever becomes of it."""
    # Each rank has one device, and two processors are not enough for a team of threads each.
    environment = {**os.environ, "TORCH_TPU_DEVICES": "1", "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    command += [str(SCRIPTS / script), *arguments]
    return subprocess.run(
        command,
        env=environment,
        timeout=timeout,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def apart(script: str, ranks: int, *arguments: str, timeout: float = 120):
    """Output and exit status of each rank, started without torchrun, which ends all ranks when one
    fails."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "TORCH_TPU_DEVICES": "1",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPTS / script), *arguments],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(ranks)
    ]
    deadline = time.monotonic() + timeout
    try:
        outputs = [p.communicate(timeout=deadline - time.monotonic())[0] for p in processes]
    finally:
        for process in processes:
            process.kill()
    return [(output, p.returncode) for output, p in zip(outputs, processes, strict=True)]
