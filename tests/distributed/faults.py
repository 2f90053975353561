"""What the ranks are told when one of them fails. Started one by one, not by torchrun, which would
end the others. Each rank prints a line of JSON: the error it got, and after how many seconds."""

import datetime
import json
import os
import signal
import sys
import time

import ranks  # noqa: F401  (filters of warnings)
import torch
import torch.distributed as dist

SECONDS = 60  # none of these failures may need the time-out, but where it is set below


def killed(rank):
    """In the middle of a collective: the others wait for its data."""
    victim = int(sys.argv[2])
    x = torch.ones(1 << 22, device="tpu")
    if rank == victim:
        dist.all_reduce(x, async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(100):
        dist.all_reduce(x)


def killed_while_receiving(rank):
    if rank == 1:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        dist.recv(torch.empty(3, device="tpu"), 1)
    else:
        dist.all_reduce(torch.ones(3, device="tpu"))


def other_collective(rank):
    x = torch.ones(4, device="tpu")
    if rank == 1:
        dist.broadcast(x, 0)
    else:
        dist.all_reduce(x)


def other_shape(rank):
    dist.all_reduce(torch.ones(4 if rank == 1 else 8, device="tpu"))


def other_dtype(rank):
    """As many bytes, so that nothing but the check can notice."""
    dtype = torch.int32 if rank == 1 else torch.float32
    dist.all_gather_into_tensor(
        torch.empty(4 * dist.get_world_size(), dtype=dtype, device="tpu"),
        torch.ones(4, dtype=dtype, device="tpu"),
    )


def other_operation(rank):
    op = dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM
    dist.all_reduce(torch.ones(4, device="tpu"), op)


def other_split(rank):
    world = dist.get_world_size()
    sizes = [2] * world if rank == 1 else [1] * world
    x = torch.ones(sum(sizes), device="tpu")
    dist.all_to_all_single(torch.empty_like(x), x, sizes, sizes)


def other_message(rank):
    if rank == 0:
        dist.send(torch.ones(4, device="tpu"), 1)
    elif rank == 1:
        dist.recv(torch.ones(8, device="tpu"), 0)
    dist.barrier()


def missing(rank):
    """Rank 1 does not come, but lives."""
    if rank == 1:
        time.sleep(8)
    else:
        dist.all_reduce(torch.ones(4, device="tpu"))


def aborted(rank):
    work = dist.barrier(async_op=True) if rank != 1 else None
    if rank == 1:
        time.sleep(1)
        dist.distributed_c10d._abort_process_group()
        raise RuntimeError("aborted it")
    work.wait()


def main():
    scenario = globals()[sys.argv[1]]
    seconds = 3 if scenario is missing else SECONDS
    dist.init_process_group("tpu_dist", timeout=datetime.timedelta(seconds=seconds))
    dist.barrier()
    rank = dist.get_rank()
    start = time.monotonic()
    error, again = None, None
    try:
        scenario(rank)
    except Exception as e:
        error = f"{type(e).__name__}: {e}"
        if dist.is_initialized():
            try:
                dist.all_reduce(torch.ones(1, device="tpu"))
            except Exception as e:
                again = f"{type(e).__name__}: {e}"
    print(json.dumps([rank, error, again, time.monotonic() - start]), flush=True)
    # The device itself works on.
    assert (torch.ones(2, device="tpu") + 1).tolist() == [2.0, 2.0]
    if rank == 0:
        time.sleep(2)  # the store is here
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
