"""Programs of several ranks, compiled for slices of TPUs that are not here."""

import re

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from torch_tpu import aot
from torch_tpu.aot.topology import device_count

SLICES = ("v5e:2x2", "v6e:2x2", "v5p:2x2x1", "v4:2x2x1", "2*v5e:2x2")
WIDTH = 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 16)

    def forward(self, x, labels):
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x), labels)


PARAMETERS = 2 * (8 * WIDTH * WIDTH + 5 * WIDTH) + 16 * WIDTH + 16


def net() -> Net:
    with torch.device("meta"):
        return Net()


def batch() -> tuple:
    x = torch.empty(64, WIDTH, device="meta")
    return x, torch.empty(64, dtype=torch.long, device="meta")


def fsdp(mesh) -> nn.Module:
    model = net()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(model, mesh) -> nn.Module:
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def groups_in(text: str, call: str) -> set[str]:
    # Those of an operation with a body come after it, on another line.
    found = re.findall(rf'"stablehlo.{call}".*?replica_groups = dense<(\[\[.*?\]\])>', text, re.S)
    return set(found)


@pytest.mark.parametrize("topology", SLICES)
def test_fsdp_step(topology, tmp_path):
    with aot.world(topology):
        size = dist.get_world_size()
        model = fsdp(init_device_mesh("tpu", (size,)))
        program = aot.compile(
            model, batch(), topology=topology, train=True, dump_stablehlo=tmp_path / "step.mlir"
        )
    report = program.report
    assert report.status == aot.Status.OK, report.message
    text = (tmp_path / "step.mlir").read_text()
    assert f"mhlo.num_partitions = {size} : i32" in text
    everyone = str([list(range(size))])
    assert groups_in(text, "all_gather") == groups_in(text, "reduce_scatter") == {everyone}
    # Weights, two moments each, on one of the ranks.
    state = sum(
        size
        for role, size in report.argument_bytes_by_role.items()
        if role in ("parameter", "optimizer state")
    )
    assert state == pytest.approx(3 * 4 * PARAMETERS / size, rel=0.1)


@pytest.mark.parametrize("topology", SLICES)
def test_tensor_parallel_fsdp_step(topology, tmp_path):
    with aot.world(topology):
        size = dist.get_world_size()
        mesh = init_device_mesh("tpu", (size // 2, 2), mesh_dim_names=("data", "model"))
        model = tensor_parallel(net(), mesh["model"])
        for block in model.blocks:
            fully_shard(block, mesh=mesh["data"])
        fully_shard(model, mesh=mesh["data"])
        program = aot.compile(
            model, batch(), topology=topology, train=True, dump_stablehlo=tmp_path / "step.mlir"
        )
    assert program.report.status == aot.Status.OK, program.report.message
    text = (tmp_path / "step.mlir").read_text()
    pairs = str([[i, i + 1] for i in range(0, size, 2)])
    columns = str([list(range(0, size, 2)), list(range(1, size, 2))])
    assert groups_in(text, "all_reduce") == {pairs}
    assert groups_in(text, "all_gather") == groups_in(text, "reduce_scatter") == {columns}


def test_generation_with_a_sharded_model(tmp_path):
    with aot.world("v5e:2x2"):
        model = tensor_parallel(net(), init_device_mesh("tpu", (4,)))
        program = aot.compile(
            model, batch(), topology="v5e:2x2", dump_stablehlo=tmp_path / "call.mlir"
        )
    assert program.report.status == aot.Status.OK
    shapes = {v.name: tuple(v.shape) for v in program.report.inputs}
    assert shapes["blocks.0.up.weight"] == (WIDTH, WIDTH)
    assert shapes["blocks.0.down.weight"] == (WIDTH, WIDTH)
    assert groups_in((tmp_path / "call.mlir").read_text(), "all_reduce") == {"[[0, 1, 2, 3]]"}


def test_resharding_saves_memory():
    """What a block gathers for the forward pass is gone when the backward pass begins."""

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(2048, 2048, bias=False) for _ in range(12))

        def forward(self, x):
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return x.square().mean()

    peaks = {}
    for reshards in (True, False):
        with aot.world("v5e:2x2"):
            with torch.device("meta"):
                model = Deep()
            mesh = init_device_mesh("tpu", (4,))
            for layer in model.layers:
                fully_shard(layer, mesh=mesh, reshard_after_forward=reshards)
            fully_shard(model, mesh=mesh, reshard_after_forward=reshards)
            x = torch.empty(16, 2048, device="meta")
            report = aot.compile(model, (x,), topology="v5e:2x2", train=True).report
        assert report.status == aot.Status.OK
        peaks[reshards] = report.temporary_bytes
    whole = 12 * 2048 * 2048 * 4
    assert peaks[False] > 0.7 * whole, peaks
    assert peaks[True] < 0.4 * whole, peaks


def test_groups_that_are_no_mesh():
    with aot.world("v5e:2x4"):
        odd = dist.new_group([0, 3, 5])

        def f(x):
            import torch.distributed._functional_collectives as functional

            x = functional.all_reduce(x, "sum", odd)
            return functional.all_reduce(x, "sum", dist.group.WORLD)

        module = nn.Module()
        module.forward = f
        with pytest.raises(RuntimeError, match="not a mesh of ranks in order"):
            aot.compile(module, (torch.empty(4, device="meta"),), topology="v5e:2x4")


def test_a_program_of_described_ranks_does_not_run():
    import torch.distributed._functional_collectives as functional

    with aot.world("v5e:2x2"):
        compiled = torch.compile(lambda x: functional.all_reduce(x, "sum", dist.group.WORLD) + 1)
        with pytest.raises(RuntimeError, match="only described"):
            compiled(torch.ones(3, device="tpu"))


def test_calls_outside_of_programs():
    with aot.world("v5e:2x2"):
        assert (dist.get_rank(), dist.get_world_size()) == (0, 4)
        x = torch.arange(4.0, device="tpu")
        gathered = torch.empty(16, device="tpu")
        dist.all_gather_into_tensor(gathered, x)
        assert gathered.tolist() == [0.0, 1, 2, 3] * 4
        part = torch.empty(1, device="tpu")
        dist.reduce_scatter_tensor(part, x)
        assert part.tolist() == [0.0]
        dist.all_reduce(x)
        dist.barrier()
        assert x.tolist() == [0.0, 1, 2, 3]
        another = aot.world("v5e:2x2")
        with pytest.raises(RuntimeError, match="in a process group already"):
            another.__enter__()
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    "topology, devices", [("v5e:1x1", 1), ("v4:2x2x1", 8), ("3*v6e:2x4", 24), ("tpu7x:2x2x1", 8)]
)
def test_device_count(topology, devices):
    assert device_count(topology) == devices


def test_bytes_from_other_devices():
    from torch_tpu import _C
    from torch_tpu.aot.exchange import exchanged_bytes, partitions

    def module(call: str, dtype: str = "float32") -> str:
        return _C.collective_module(call, "SUM", dtype, [8, 16], 4)

    size = 8 * 16 * 4
    assert partitions(module("all_reduce")) == 4
    assert exchanged_bytes(module("all_reduce")) == 2 * size * 3 / 4
    assert exchanged_bytes(module("all_reduce", "bfloat16")) == size * 3 / 4
    assert exchanged_bytes(module("all_gather")) == 4 * size * 3 / 4
    assert exchanged_bytes(module("reduce_scatter")) == size * 3 / 4
    assert exchanged_bytes(module("all_to_all")) == size * 3 / 4


def test_more_ranks_than_devices():
    with pytest.raises(ValueError, match="5 ranks on v5e:2x2, which has 4 devices"):
        aot.world("v5e:2x2", ranks=5).__enter__()


def test_a_topology_that_does_not_exist():
    with pytest.raises(ValueError, match="expected a generation"), aot.world("v9:2x2"):
        pass
