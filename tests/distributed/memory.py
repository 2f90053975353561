"""Large results are the memory that was received: it is nobody else's while a tensor lives."""

import torch
import torch.distributed as dist
from ranks import check, held, main, same

SHAPE = (300, 1000)  # 1.2 MB: in place


def everyone(salt):
    return [held(rank, SHAPE, salt=salt) for rank in range(dist.get_world_size())]


@check
def results_stay_while_memory_is_used_again():
    rank, kept = dist.get_rank(), []
    for salt in range(12):
        x = held(rank, SHAPE, salt=salt).to("tpu")
        dist.all_reduce(x, dist.ReduceOp.MAX if salt % 2 else dist.ReduceOp.SUM)
        if salt % 3 == 0:
            kept.append((salt, x))  # the others' memory goes back
    for salt, x in kept:
        parts = torch.stack(everyone(salt))
        same(x, parts.amax(0) if salt % 2 else parts.sum(0))


@check
def results_are_written_to_in_place():
    """Also where the program's own buffers would be given to the one that computes the new ones."""
    rank, world = dist.get_rank(), dist.get_world_size()
    whole = [torch.empty(SHAPE, device="tpu") for _ in range(world)]
    dist.all_gather(whole, held(rank, SHAPE).to("tpu"))
    before = whole[0].clone()
    optimizer = torch.optim.SGD([w.requires_grad_() for w in whole], lr=1.0)
    for _ in range(3):
        for w in whole:
            w.grad = torch.ones_like(w)
        optimizer.step()
        torch.tpu.synchronize()
    same(before, held(0, SHAPE))
    for w, expected in zip(whole, everyone(0), strict=True):
        same(w.detach(), expected - 1 - 1 - 1)


@check
def a_part_outlives_the_whole():
    rank, world = dist.get_rank(), dist.get_world_size()
    parts = [torch.empty(SHAPE, device="tpu") for _ in range(world)]
    dist.all_gather(parts, held(rank, SHAPE).to("tpu"))
    last = parts.pop()
    del parts
    for _ in range(3):
        dist.all_reduce(torch.zeros(SHAPE, device="tpu"))
    same(last, held(world - 1, SHAPE))


if __name__ == "__main__":
    main(backend="tpu_dist")
