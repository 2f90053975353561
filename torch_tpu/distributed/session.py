"""A name for one life of a process group that nothing in the store bears yet.

A store may outlive the ranks that wrote to it: torchrun keeps its own when it starts the ranks
again, and a group may be made anew under the name of one that was destroyed. What it then holds,
addresses and failures among them, is not to be believed. The number of the restart tells lives
apart only on one host: torchrun's agents count each for themselves.
"""

import time
import uuid

import torch.distributed as dist


def agree(store: dist.Store, rank: int, size: int, timeout: float) -> str:
    """The name; every rank of the group calls this and gets the same one.

    Raises torch.distributed.DistStoreError if a rank does not come within `timeout` seconds.
    """
    return _name(store, size, timeout) if rank == 0 else _ask(store, rank, timeout)


def _ask(store: dist.Store, rank: int, timeout: float) -> str:
    me = uuid.uuid4().hex
    store.set(f"asks/{rank}", me)
    deadline, pause = time.monotonic() + timeout, 0.001
    while not store.check([f"told/{me}"]):
        if time.monotonic() > deadline:
            raise dist.DistStoreError(f"tpu_dist: rank 0 did not come within {timeout:g} s")
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    name = store.get(f"told/{me}").decode()
    store.set(f"knows/{me}", name)
    return name


def _name(store: dist.Store, size: int, timeout: float) -> str:
    name = uuid.uuid4().hex
    told = {}  # the rank that asked last, which may be one of an earlier life: it will not answer
    missing = set(range(1, size))
    deadline, pause = time.monotonic() + timeout, 0.001
    while missing:
        for rank in sorted(missing):
            if not store.check([f"asks/{rank}"]):
                continue
            who = store.get(f"asks/{rank}").decode()
            if told.get(rank) != who:
                store.set(f"told/{who}", name)
                told[rank] = who
            # An answer to an earlier life is not one to this.
            elif store.check([f"knows/{who}"]) and store.get(f"knows/{who}").decode() == name:
                missing.discard(rank)
        if missing and time.monotonic() > deadline:
            ranks = ", ".join(map(str, sorted(missing)))
            raise dist.DistStoreError(
                f"tpu_dist: not all ranks of the group came within {timeout:g} s; missing: {ranks}"
            )
        if missing:
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
    return name
