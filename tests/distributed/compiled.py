"""Collectives in graphs of torch.compile."""

import threading
import warnings

import ranks
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from ranks import check, held, main
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

_compiling = threading.RLock()


def run(function, *args):
    """The compiled function's result, and the warnings that came up."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        compiled = torch.compile(function, fullgraph=True)
        result = compiled(*args)
    return result, [str(w.message) for w in told]


@check
def every_call():
    rank, size = dist.get_rank(), dist.get_world_size()
    everyone = dist.group.WORLD
    x = held(rank, (4 * size, 6))
    all_x = [held(r, (4 * size, 6)) for r in range(size)]

    def f(x):
        x = x * 2
        total = functional.all_reduce(x, "sum", everyone)
        mean = functional.all_reduce(x, "avg", everyone)
        largest = functional.all_reduce(x, "max", everyone)
        gathered = functional.all_gather_tensor(x, 0, everyone)
        part = functional.reduce_scatter_tensor(x, "sum", 0, everyone)
        exchanged = functional.all_to_all_single(x, None, None, everyone)
        first = functional.broadcast(x, 0, everyone)
        return total + 1, mean, largest, gathered * 3, part, exchanged, first

    results, told = run(f, x.to("tpu"))
    doubled = [2 * t for t in all_x]
    total = sum(doubled)
    block = slice(4 * rank, 4 * rank + 4)
    expected = [
        total + 1,
        total / size,
        torch.stack(doubled).amax(0),
        torch.cat(doubled) * 3,
        total[block],
        torch.cat([t[block] for t in doubled]),
        doubled[0],
    ]
    for actual, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(actual.cpu(), wanted)
    if ranks.threads:
        sizes = [e.operations for e in torch.tpu.compile_log() if e.operation == "compiled"]
        assert max(sizes) > 30, sizes  # one program has them all
    else:
        assert any("goes by way of the host" in text for text in told), told


@check
def subgroups():
    size = dist.get_world_size()
    if size % 2:
        return
    mesh = init_device_mesh("tpu", (size // 2, 2), mesh_dim_names=("data", "model"))
    data, model = mesh["data"].get_group(), mesh["model"].get_group()
    rank = dist.get_rank()

    def f(x):
        x = functional.all_reduce(x, "sum", model) * 2
        return functional.all_gather_tensor(x, 0, data)

    result, _ = run(f, held(rank, (2, 3)).to("tpu"))
    pairs = [2 * (held(r, (2, 3)) + held(r + 1, (2, 3))) for r in range(0, size, 2)]
    torch.testing.assert_close(result.cpu(), torch.cat(pairs))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


def _net(seed: int) -> Net:
    with _compiling:
        torch.manual_seed(seed)
        return Net()


@check
def tensor_parallel_training():
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    reference = _net(0)
    net = _net(0).to("tpu")
    parallelize_module(net, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    x = held(0, (5, 8))
    step = torch.compile(lambda x: net(x).square().mean(), fullgraph=True)
    for _ in range(3):
        loss = step(x.to("tpu"))
        loss.backward()
        expected = reference(x).square().mean()
        expected.backward()
        torch.testing.assert_close(loss.detach().cpu(), expected.detach())
        with torch.no_grad():
            for p, q in zip(net.parameters(), reference.parameters(), strict=True):
                torch.testing.assert_close(p.grad.full_tensor().cpu(), q.grad)
                p -= 0.1 * p.grad
                q -= 0.1 * q.grad
                p.grad = q.grad = None


@check
def ranks_that_differ():
    rank, size = dist.get_rank(), dist.get_world_size()
    own = float(rank)

    def f(x):
        return functional.all_reduce(x * own, "sum", dist.group.WORLD) + own

    result, _ = run(f, torch.ones(3).to("tpu"))
    torch.testing.assert_close(result.cpu(), torch.full((3,), sum(range(size)) + own))


if __name__ == "__main__":
    main()
