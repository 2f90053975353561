"""A mesh in the order of a topology: its groups are made of those ranks."""

import torch
import torch.distributed as dist
from ranks import check, main


@check
def in_the_order_of_the_chips():
    mesh = torch.tpu.distributed.topology_aware_mesh((2, 2), ("dp", "tp"), "v5e:2x2")
    assert mesh.mesh_dim_names == ("dp", "tp")
    rank = dist.get_rank()
    x = torch.tensor([float(rank)], device="tpu")
    for name in ("dp", "tp"):
        column = mesh.mesh[:, rank % 2] if name == "dp" else mesh.mesh[rank // 2]
        gathered = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(gathered, x, group=mesh.get_group(name))
        assert [t.item() for t in gathered] == column.tolist()
        assert column[mesh.get_local_rank(name)] == rank


@check
def without_a_topology():
    mesh = torch.tpu.distributed.topology_aware_mesh((2, 2))
    assert mesh.mesh.tolist() == [[0, 1], [2, 3]]


@check
def that_does_not_fit():
    for arguments in [((3,),), ((4,), None, "v5e:2x4")]:
        try:
            torch.tpu.distributed.topology_aware_mesh(*arguments)
        except ValueError:
            continue
        raise AssertionError(arguments)


main()
