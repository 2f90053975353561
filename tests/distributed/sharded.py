"""FSDP2, FSDP1, HSDP, DTensor, tensor and sequence parallel, loss_parallel, pipelines: five steps
equal a single process's."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from problem import ROWS, adamw, batch, close, mine, net, reference, seeded
from ranks import check, held, main, needs_processes, same
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor import parallel as tp


def full(model: nn.Module) -> nn.Module:
    """The same with whole parameters."""
    whole = net()
    with torch.no_grad():
        for p, q in zip(whole.parameters(), model.parameters(), strict=True):
            p.copy_(q.full_tensor() if isinstance(q, DTensor) else q)
    return whole


def train(model, steps=5, clip=None):
    opt = adamw(model.parameters())
    for step in range(steps):
        x, y = batch(step)
        F.mse_loss(model(mine(x), step), mine(y)).backward()
        if clip is not None:
            norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
            assert isinstance(norm, DTensor)
        opt.step()
        opt.zero_grad()
    return model


def sharded(model, mesh, **options):
    for layer in (model.first, model.second, model.extra, model.last):
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


@check
def fsdp2():
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    model = train(sharded(net(), mesh), clip=0.5)
    assert model.second.weight.to_local().shape[0] == 32 // dist.get_world_size()
    close(full(model), reference(clip=0.5))


@check
def fsdp2_mixed_precision():
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = train(sharded(net(), mesh, mp_policy=policy, reshard_after_forward=False))
    assert model.first.weight.dtype == torch.float32
    # Autocast computes as a single process would with bfloat16 parameters.
    close(full(model), reference(), rtol=0.1, atol=0.02)


@check
def hsdp():
    world = dist.get_world_size()
    if world % 2 == 0:
        mesh = init_device_mesh("tpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
        model = train(sharded(net(), mesh))
        close(full(model), reference())


@check
def fsdp1():
    # All parameters are pieces of one: those not used get zeros, which a single process does not.
    for options in (
        {"sharding_strategy": ShardingStrategy.FULL_SHARD},
        {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
        {"mixed_precision": MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16)},
    ):
        model = FullyShardedDataParallel(
            net(), device_id=torch.tpu.current_device(), use_orig_params=True, **options
        )
        opt = adamw(model.parameters())
        for step in range(5):
            x, y = batch(step)
            F.mse_loss(model(mine(x)), mine(y)).backward()
            if "mixed_precision" not in options:
                model.clip_grad_norm_(0.5)
            opt.step()
            opt.zero_grad()
        tolerance = {}
        expected = reference(clip=0.5, unused=False)
        if "mixed_precision" in options:
            tolerance, expected = {"rtol": 0.1, "atol": 0.02}, reference(unused=False)
        with FullyShardedDataParallel.summon_full_params(model):
            close(model.module, expected, **tolerance)


@check
def placements():
    """Every change of placement on one dimension, and some on two."""
    world, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("tpu", (world,))
    for shape in ((world * 2, world * 4), (world + 1, 2 * world + 1)):
        whole = held(7, shape)
        kinds = (Shard(0), Shard(1), Replicate(), Partial())
        for source in kinds:
            if source == Partial():
                d = DTensor.from_local((whole / world).to("tpu"), mesh, [Partial()])
            else:
                d = distribute_tensor(whole.to("tpu"), mesh, [source])
            for target in kinds[:3]:
                r = d.redistribute(mesh, [target])
                torch.testing.assert_close(r.full_tensor().cpu(), whole)
                if target == Shard(0):
                    piece = whole.chunk(world, 0)
                    expected = piece[rank] if rank < len(piece) else whole[:0]
                    torch.testing.assert_close(r.to_local().cpu(), expected)
    if world == 4:
        mesh = init_device_mesh("tpu", (2, 2), mesh_dim_names=("a", "b"))
        whole = held(7, (8, 12))
        d = distribute_tensor(whole.to("tpu"), mesh, [Shard(0), Replicate()])
        for target in ([Shard(0), Shard(1)], [Replicate(), Shard(0)], [Shard(1), Shard(1)]):
            d = d.redistribute(mesh, target)
            torch.testing.assert_close(d.full_tensor().cpu(), whole)


@check
def operators_on_dtensors():
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    world = dist.get_world_size()
    a, b = held(1, (4 * world, 8)), held(2, (8, 4 * world))
    x = distribute_tensor(a.to("tpu"), mesh, [Shard(0)])
    y = distribute_tensor(b.to("tpu"), mesh, [Replicate()])
    torch.testing.assert_close((x @ y).full_tensor().cpu(), a @ b, rtol=1e-4, atol=1e-4)
    x = distribute_tensor(a.to("tpu"), mesh, [Shard(1)])
    torch.testing.assert_close(x.sum().full_tensor().cpu(), a.sum(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        torch.softmax(x, 1).full_tensor().cpu(), torch.softmax(a, 1), rtol=1e-4, atol=1e-5
    )


@check
@needs_processes  # PyTorch keeps one tracker of their generators for all threads
def random_numbers_of_dtensors():
    """A sharded draw is the draw of one process, whatever the sharding."""
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    wholes = []
    for placement in (Replicate(), Shard(0), Shard(1)):
        torch.manual_seed(3)
        d = torch.distributed.tensor.rand(8, 12, device_mesh=mesh, placements=[placement])
        wholes.append(d.full_tensor().cpu())
    everyones = [torch.empty(8, 12, device="tpu") for _ in range(dist.get_world_size())]
    for whole in wholes:
        dist.all_gather(everyones, whole.to("tpu"))
        for other in everyones:
            same(other, whole)
        assert whole.unique().numel() > 90  # the shards are not the same numbers again
    torch.manual_seed(3)
    x = torch.distributed.tensor.ones(8, 12, device_mesh=mesh, placements=[Shard(0)])
    dropped = F.dropout(x, 0.5).full_tensor().cpu()
    assert 0.2 < (dropped == 0).float().mean() < 0.8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 48)
        self.down = nn.Linear(48, 16)
        self.head = nn.Linear(16, 24)

    def forward(self, x):
        x = self.norm(x)
        return self.head(x + self.down(F.gelu(self.up(x))))


def block():
    torch.manual_seed(1)
    return Block().to("tpu")


@check
@needs_processes  # loss_parallel() changes a table of all threads
def tensor_and_sequence_parallel():
    """With loss_parallel: the logits stay sharded."""
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    plan = {
        "norm": tp.SequenceParallel(),
        "up": tp.ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        "down": tp.RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "head": tp.ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        ),
    }
    single, parallel = block(), tp.parallelize_module(block(), mesh, plan)
    opts = [adamw(m.parameters()) for m in (single, parallel)]
    for step in range(5):
        x = held(step, (2, 12, 16)).to("tpu")
        y = (torch.arange(24) * 7 % 24).reshape(2, 12).to("tpu")
        loss = F.cross_entropy(single(x).flatten(0, 1), y.flatten())
        loss.backward()
        logits = parallel(distribute_tensor(x, mesh, [Shard(1)]))
        assert logits.placements == (Shard(2),)
        with tp.loss_parallel():
            sharded_loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
            sharded_loss.backward()
        torch.testing.assert_close(
            sharded_loss.full_tensor().cpu(), loss.detach().cpu(), rtol=1e-4, atol=1e-5
        )
        norms = [nn.utils.clip_grad_norm_(m.parameters(), 0.3) for m in (single, parallel)]
        torch.testing.assert_close(
            norms[1].full_tensor().cpu(), norms[0].cpu(), rtol=1e-3, atol=1e-5
        )
        for opt in opts:
            opt.step()
            opt.zero_grad()
    for p, q in zip(parallel.parameters(), single.parameters(), strict=True):
        whole = p.full_tensor() if isinstance(p, DTensor) else p
        torch.testing.assert_close(whole.cpu(), q.cpu(), rtol=2e-3, atol=2e-4)


@check
def data_and_tensor_parallel():
    """FSDP2 over tensor parallel, on a mesh of two dimensions."""
    if dist.get_world_size() != 4:
        return
    mesh = init_device_mesh("tpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = net()
    tp.parallelize_module(
        model,
        mesh["tensor"],
        {"first": tp.ColwiseParallel(), "second": tp.RowwiseParallel()},
    )
    fully_shard(model, mesh=mesh["data"])
    opt = adamw(model.parameters())
    half = mesh["data"].get_local_rank()
    for step in range(5):
        x, y = (t[2 * ROWS * half : 2 * ROWS * (half + 1)] for t in batch(step))
        F.mse_loss(model(x, step), y).backward()
        opt.step()
        opt.zero_grad()
    close(full(model), reference())


@check
def pipelines():
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

    world, rank = dist.get_world_size(), dist.get_rank()
    device = torch.device("tpu", torch.tpu.current_device())

    def layers(count):
        with seeded(2):
            made = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(count)]
        return [layer.to("tpu") for layer in made]

    for per_rank in (1, 2):
        count = world * per_rank
        single = nn.Sequential(*layers(count))
        own = [i for i in range(count) if i % world == rank]
        parts = layers(count)
        stages = [PipelineStage(parts[i], i, count, device) for i in own]
        if per_rank == 1:
            schedule = Schedule1F1B(stages[0], n_microbatches=2 * world, loss_fn=F.mse_loss)
        else:
            schedule = ScheduleInterleaved1F1B(stages, n_microbatches=2 * world, loss_fn=F.mse_loss)
        opts = [
            torch.optim.SGD(m.parameters(), lr=0.1)
            for m in (single, nn.ModuleList(parts[i] for i in own))
        ]
        for step in range(5):
            x, y = held(step, (4 * world, 16)).to("tpu"), held(step, (4 * world, 16), salt=9)
            y = y.to("tpu")
            F.mse_loss(single(x), y).backward()
            if rank == 0 and world > 1:
                schedule.step(x)
            elif rank == world - 1:
                schedule.step(target=y, losses=[])
            else:
                schedule.step()
            for opt in opts:
                opt.step()
                opt.zero_grad()
        for i in own:
            for p, q in zip(parts[i].parameters(), single[i].parameters(), strict=True):
                torch.testing.assert_close(p.cpu(), q.cpu(), rtol=1e-3, atol=1e-4)


@check
def offload():
    """FSDP2 with parameters kept on the host."""
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    model = net().cpu()
    fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    model = train(model)
    assert model.first.weight.device.type == "cpu"


@check
def distributed_module():
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    model = distribute_module(net(), mesh)
    x, y = batch(0)
    sharded_x, sharded_y = (distribute_tensor(t, mesh, [Shard(0)]) for t in (x, y))
    # PyTorch's own mse_loss of DTensors has too large a gradient, on the CPU as well.
    ((model(sharded_x) - sharded_y) ** 2).mean().backward()
    single = net()
    F.mse_loss(single(x), y).backward()
    for p, q in zip(model.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(p.grad.full_tensor().cpu(), q.grad.cpu(), rtol=1e-3, atol=1e-5)


if __name__ == "__main__":
    main()
