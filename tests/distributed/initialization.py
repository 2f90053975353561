"""Ways to start: by names, by device, splitting; what meshes and groups then are."""

import sys

import ranks  # noqa: F401  (filters of warnings)
import torch
import torch.distributed as dist
from ranks import held, same, say
from torch.distributed.device_mesh import init_device_mesh


def sum_of(group, members):
    x = torch.tensor([dist.get_rank() + 1.0], device="tpu")
    dist.all_reduce(x, group=group)
    same(x, torch.tensor([sum(r + 1.0 for r in members)]))


def main(kind):
    if kind == "device_id":
        dist.init_process_group(device_id=torch.device("tpu", 0))
    else:
        dist.init_process_group(kind)
    rank, world = dist.get_rank(), dist.get_world_size()
    everyone = list(range(world))
    sum_of(None, everyone)
    if kind.startswith("cpu:"):
        x = held(rank, (3,))
        dist.broadcast(x, 0)
        assert torch.equal(x, held(0, (3,)))
    backend = dist.group.WORLD._get_backend(torch.device("tpu"))
    assert backend.name() == "tpu_dist" and backend.supports_splitting
    assert dist.get_default_backend_for_device("tpu") == "tpu_dist"
    if kind == "device_id":
        # Outsiders call, as PyTorch's interface has it, and return at once.
        ends = dist.new_group([0, world - 1])
        if rank in (0, world - 1):
            sum_of(ends, [0, world - 1])
        halves = [[0], list(range(1, world))]
        part = dist.split_group(split_ranks=halves)
        sum_of(part, halves[0] if rank == 0 else halves[1])
        assert dist.get_process_group_ranks(part) == (halves[0] if rank == 0 else halves[1])
    mesh = init_device_mesh("tpu", (1, world), mesh_dim_names=("one", "all"))
    sum_of(mesh.get_group("all"), everyone)
    sum_of(mesh.get_group("one"), [rank])
    assert mesh["all"].get_local_rank() == rank
    dist.barrier()
    dist.destroy_process_group()
    # And again, in the same process. Not where PyTorch wraps the group in one of Gloo's to compare
    # the calls: that one finds the addresses of the first in the store and hangs, under "gloo" too.
    if dist.get_debug_level() != dist.DebugLevel.DETAIL:
        dist.init_process_group("tpu_dist")
        sum_of(None, everyone)
        dist.destroy_process_group()
    say("passed")


if __name__ == "__main__":
    main(sys.argv[1])
