"""A rank is killed in the middle of a collective; those that wait for it are told. Started one by
one: torchrun would end the others. Each survivor prints its errors and the seconds it took."""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from ranks import say


def attempt(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main():
    victim = int(sys.argv[1])
    dist.init_process_group("tpu_dist")
    rank, world = dist.get_rank(), dist.get_world_size()
    messages = dist.new_group()
    x = torch.ones(1 << 20, device="tpu")
    dist.all_reduce(x)
    dist.barrier(group=messages)
    if rank == victim:
        dist.all_reduce(x, async_op=True)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    received = dist.group.WORLD
    if rank == (victim + 1) % world:
        received = dist.irecv(torch.empty(3, device="tpu"), victim, group=messages)

    def reduce():
        for _ in range(1000):
            dist.all_reduce(x)

    errors = [attempt(reduce), attempt(lambda: dist.all_reduce(x))]
    if received is not dist.group.WORLD:
        errors.append(attempt(received.wait))
    seconds = time.monotonic() - start
    works = (torch.ones(2, device="tpu") + 1).tolist() == [2.0, 2.0]
    say("told", json.dumps([rank, errors, seconds, works]))
    if rank == 0:
        time.sleep(3)  # the store is here, and the others look into it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
