"""Ranks that are threads and do not call the same: errors on all, and which program is used."""

import datetime
import os
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from ranks import check
from ranks import main as run


def fails(call, *parts):
    try:
        call()
    except dist.DistBackendError as error:
        for part in parts:
            assert part in str(error), error
        return
    raise AssertionError("nothing was raised")


@check
def another_shape():
    rank = dist.get_rank()
    group = dist.new_group()
    x = torch.ones(4 if rank == 1 else 3, device="tpu")
    fails(lambda: dist.all_reduce(x, group=group), "all_reduce(SUM, float32[4])", "float32[3]")
    # And the group remembers.
    fails(lambda: dist.all_reduce(torch.ones(2, device="tpu"), group=group), "all_reduce")


@check
def another_call():
    group = dist.new_group()
    x = torch.ones(4, device="tpu")
    if dist.get_rank() == 2:
        fails(lambda: dist.broadcast(x, 0, group=group), "broadcast", "all_reduce")
    else:
        fails(lambda: dist.all_reduce(x, group=group), "broadcast", "all_reduce")


@check
def a_rank_that_does_not_come():
    group = dist.new_group(timeout=datetime.timedelta(seconds=2))
    if dist.get_rank() != 1:
        x = torch.ones(4, device="tpu")
        fails(lambda: dist.all_reduce(x, group=group), "timed out", "rank 1 did not call it")


@check
def others_are_not_concerned():
    x = torch.ones(4, device="tpu")
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * 4


@check
def from_any_rank():
    if dist.get_rank() == 0:
        try:
            dist.recv(torch.ones(2, device="tpu"))
        except NotImplementedError as error:
            assert "name the rank" in str(error)
        else:
            raise AssertionError("nothing was raised")


@check
def by_way_of_the_host():
    os.environ["TORCH_TPU_TRANSPORT"] = "host"
    dist.barrier()
    group = dist.new_group()
    x = torch.full((2,), float(dist.get_rank()), device="tpu")
    dist.all_reduce(x, group=group)
    assert x.tolist() == [3.0] * 2


@check
def a_rank_that_does_not_come_to_a_program():
    os.environ.pop("TORCH_TPU_TRANSPORT", None)

    @torch.compile(fullgraph=True)
    def f(x):
        return x.add_(functional.all_reduce(x, "sum", dist.group.WORLD))

    x = torch.ones(4, device="tpu")
    f(x)
    assert x.tolist() == [4.0] * 4
    if dist.get_rank() != 1:
        fails(lambda: f(x), "compiled timed out", "rank 1 did not call it")
        # What it was to be written to is there.
        assert x.tolist() == [4.0] * 4
        fails(lambda: f(x), "timed out")
    else:
        time.sleep(14)  # the others wait for 10


def main(**options):
    run(timeout=datetime.timedelta(seconds=10), **options)
