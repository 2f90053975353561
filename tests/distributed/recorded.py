"""Training steps as torch.tpu.aot records them for slices, run here, against eager ones."""

import threading

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import check, held, main
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from torch_tpu.aot.trace import AdamW, record_training_step
from torch_tpu.compile.executable import Executable

# Tracing patches modules and the generator of random numbers for the whole process.
_one_at_a_time = threading.Lock()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 8)

    def forward(self, x, labels):
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).float(), labels)


def _net() -> Net:
    with _one_at_a_time:
        torch.manual_seed(0)
        return Net().to("tpu")


def _batch(index: int):
    return held(index, (12, 16)).to("tpu"), (torch.arange(12) % 8).to("tpu")


def _compare(make, batch, rtol=1e-5, atol=1e-4):
    """Two steps of what `make` gives, in one program and by PyTorch's optimizer. Weights may differ
    by a hundredth of an update."""
    eager, model = make(), make()
    settings = {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-3}
    optimizer = torch.optim.AdamW(eager.parameters(), foreach=False, **settings)
    with _one_at_a_time:
        recorded = record_training_step(model, batch, {}, optimizer=AdamW(**settings))
    step = Executable(recorded.module, "step")
    values = {n: p.to_local().detach() for n, p in model.named_parameters()}
    held_by = list(values.values())
    states = [torch.zeros_like(p) for _ in range(2) for p in held_by]
    counter = torch.zeros((), device="tpu")
    for _ in range(2):
        expected = eager(*batch)
        expected.backward()
        optimizer.step()
        optimizer.zero_grad()
        (loss,) = step([*held_by, *states, counter, *batch])
        torch.testing.assert_close(loss.cpu(), expected.detach().cpu(), rtol=rtol, atol=rtol)
    for (name, parameter), value in zip(eager.named_parameters(), held_by, strict=True):
        wanted = parameter.detach().to_local().cpu()
        message = f"{name}: {{}}".format
        torch.testing.assert_close(value.cpu(), wanted, rtol=rtol, atol=atol, msg=message)
    return recorded


def _targets(recorded) -> list[str]:
    return [str(node.target) for node in recorded.module.graph.nodes]


def _sharded(mesh, **options):
    net = _net()
    for block in net.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(net, mesh=mesh, **options)


@check
def fsdp():
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    recorded = _compare(lambda: _sharded(mesh), _batch(dist.get_rank()))
    # 6 parameters a block are gathered again for the backward pass, the root's 2 are not.
    gathers = sum("all_gather" in target for target in _targets(recorded))
    assert gathers > 20, gathers
    kept = _compare(lambda: _sharded(mesh, reshard_after_forward=False), _batch(dist.get_rank()))
    assert sum("all_gather" in target for target in _targets(kept)) == 20


@check
def mixed_precision():
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    make = lambda: _sharded(mesh, mp_policy=policy)  # noqa: E731
    # Where products are rounded differs between programs; a step of AdamW is 0.01 long.
    _compare(make, _batch(dist.get_rank()), rtol=0.02, atol=0.02)


@check
def hsdp():
    size = dist.get_world_size()
    if size % 2:
        return
    mesh = init_device_mesh("tpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    _compare(lambda: _sharded(mesh), _batch(dist.get_rank()))


@check
def tensor_parallel_fsdp():
    size = dist.get_world_size()
    if size % 2:
        return
    mesh = init_device_mesh("tpu", (size // 2, 2), mesh_dim_names=("data", "model"))

    def make():
        net = _net()
        for block in net.blocks:
            parallelize_module(
                block, mesh["model"], {"up": ColwiseParallel(), "down": RowwiseParallel()}
            )
            fully_shard(block, mesh=mesh["data"])
        return fully_shard(net, mesh=mesh["data"])

    _compare(make, _batch(dist.get_rank() // 2))


if __name__ == "__main__":
    main()
