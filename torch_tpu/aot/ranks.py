"""The ranks of a slice that is not here."""

import contextlib
from collections.abc import Iterator

from .topology import device_count


@contextlib.contextmanager
def world(topology: str, ranks: int | None = None) -> Iterator[None]:
    """Makes `torch.distributed` believe that this is rank 0 of a program on `topology`.

        with torch.tpu.aot.world("v5e:2x2"):
            mesh = init_device_mesh("tpu", (2, 2), mesh_dim_names=("dp", "tp"))
            ...  # parallelize_module, fully_shard: on a model on "meta"
            report = torch.tpu.aot.compile(model, args, topology="v5e:2x2", train=True).report

    `ranks`: how many there are (default: one for each device of the topology). Groups and meshes
    are made without anybody else, and their collectives become parts of the programs that
    `torch.tpu.aot.compile` compiles. Called outside of such a program a collective does nothing
    useful: it gives what it would if all ranks brought what this one does, unreduced.

    What rank 0 would run stands for all ranks, so ranks have to be alike: shapes that do not divide
    evenly are those of the first, and numbers that PyTorch computes from the rank (where the part
    of a sharded vocabulary begins) are rank 0's. That changes no figure of the report.

    Raises ValueError for a topology that does not exist or has fewer devices, RuntimeError if there
    is a process group.
    """
    import torch
    import torch.distributed as dist

    from torch_tpu import distributed

    devices = device_count(topology)
    size = devices if ranks is None else ranks
    if not 1 <= size <= devices:
        raise ValueError(f"{size} ranks on {topology}, which has {devices} devices")
    if dist.is_initialized():
        raise RuntimeError("torch.tpu.aot.world: this process is in a process group already")
    torch.tpu.init()  # a mesh asks whether there is a device
    with distributed.described():
        dist.init_process_group("tpu_dist", store=dist.HashStore(), rank=0, world_size=size)
        try:
            yield
        finally:
            dist.destroy_process_group()
