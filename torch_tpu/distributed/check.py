"""Every collective among the ranks of a job: whether it is right, and how fast it is.

Each is called through `torch.distributed` as a program would, on float32 tensors of tpu that hold
small integers, so that sums are exact and results are compared for equality.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

SIZES = tuple(1024 << shift for shift in range(0, 17, 2))  # 1 KiB to 64 MiB
QUICK_SIZES = (1024, 1024 << 10)


@dataclasses.dataclass
class Collective:
    """`prepare(n)` makes the call for a message of about n elements a rank; the call returns what
    this rank got, and `expected(n)` is what it should be, on the CPU. Of a message's bytes, a link
    carries `factor(world)` times as many at least, if none carries anything twice."""

    name: str
    prepare: Callable[[int], Callable[[], torch.Tensor]]
    expected: Callable[[int], torch.Tensor]
    factor: Callable[[int], float]


@dataclasses.dataclass
class Result:
    """One collective at one size. `bandwidth` is the bus bandwidth, in bytes a second, as NCCL's
    tests define it: the message's bytes times the factor, over the median time of a call."""

    name: str
    bytes: int
    seconds: float
    bandwidth: float
    error: str | None


def _held(rank: int, elements: int, salt: int = 0) -> torch.Tensor:
    """What a rank sends: integers that float32 can add without rounding."""
    return ((torch.arange(elements) * 7 + rank * 13 + salt) % 101).float()


def _ring(world: int) -> float:
    return (world - 1) / world


def collectives() -> list[Collective]:
    """All of them, for the world's group and this rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    root = world - 1
    after, before = (rank + 1) % world, (rank - 1) % world

    def everyone(elements):
        return [_held(r, elements) for r in range(world)]

    def part(elements):
        return max(elements // world, 1)

    def all_reduce(n):
        x = _held(rank, n).to("tpu")

        def call():
            y = x.clone()
            dist.all_reduce(y)
            return y

        return call

    def reduce(n):
        x = _held(rank, n).to("tpu")

        def call():
            y = x.clone()
            dist.reduce(y, root)
            return y if rank == root else x  # elsewhere what is left in it is unspecified

        return call

    def broadcast(n):
        x = _held(rank, n).to("tpu")

        def call():
            y = x.clone()
            dist.broadcast(y, root)
            return y

        return call

    def all_gather(n):
        x = _held(rank, part(n)).to("tpu")
        out = torch.empty(world * part(n), device="tpu")

        def call():
            dist.all_gather_single(out, x)
            return out

        return call

    def reduce_scatter(n):
        x = _held(rank, world * part(n)).to("tpu")
        out = torch.empty(part(n), device="tpu")

        def call():
            dist.reduce_scatter_single(out, x)
            return out

        return call

    def all_to_all(n):
        x = _held(rank, world * part(n)).to("tpu")
        out = torch.empty_like(x)

        def call():
            dist.all_to_all_single(out, x)
            return out

        return call

    def gather(n):
        x = _held(rank, part(n)).to("tpu")
        outs = [torch.empty_like(x) for _ in range(world)] if rank == root else None

        def call():
            dist.gather(x, outs, root)
            return x if outs is None else torch.cat(outs)

        return call

    def scatter(n):
        inputs = None
        if rank == root:
            inputs = [_held(r, part(n), salt=3).to("tpu") for r in range(world)]
        out = torch.empty(part(n), device="tpu")

        def call():
            dist.scatter(out, inputs, root)
            return out

        return call

    def send_recv(n):
        x, out = _held(rank, n).to("tpu"), torch.empty(n, device="tpu")

        def call():
            messages = [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, out, before)]
            for work in dist.batch_isend_irecv(messages):
                work.wait()
            return out

        return call

    def mine(whole, n):
        return whole[rank * part(n) : (rank + 1) * part(n)]

    def one(world):
        return 1.0

    return [
        Collective(
            "all_reduce", all_reduce, lambda n: sum(everyone(n)), lambda world: 2 * _ring(world)
        ),
        Collective(
            "reduce",
            reduce,
            lambda n: sum(everyone(n)) if rank == root else _held(rank, n),
            one,
        ),
        Collective("broadcast", broadcast, lambda n: _held(root, n), one),
        Collective("all_gather", all_gather, lambda n: torch.cat(everyone(part(n))), _ring),
        Collective(
            "reduce_scatter",
            reduce_scatter,
            lambda n: mine(sum(everyone(world * part(n))), n),
            _ring,
        ),
        Collective(
            "all_to_all",
            all_to_all,
            lambda n: torch.cat([mine(x, n) for x in everyone(world * part(n))]),
            _ring,
        ),
        Collective(
            "gather",
            gather,
            lambda n: torch.cat(everyone(part(n))) if rank == root else _held(rank, part(n)),
            _ring,
        ),
        Collective("scatter", scatter, lambda n: _held(rank, part(n), salt=3), _ring),
        Collective("send, recv", send_recv, lambda n: _held(before, n), one),
    ]


def _time(call: Callable[[], torch.Tensor], repeats: int) -> float:
    """The median of what a call takes, the slowest rank's each time."""
    seconds = []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        call()
        torch.tpu.synchronize()
        taken = torch.tensor([time.perf_counter() - start], device="tpu")
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        seconds.append(taken.item())
    return statistics.median(seconds)


def _wrong(got: torch.Tensor, expected: torch.Tensor) -> str | None:
    got = got.cpu()
    if got.shape != expected.shape:
        return f"shape {list(got.shape)} instead of {list(expected.shape)}"
    different = (got != expected).nonzero()
    if not len(different):
        return None
    i = different[0].item()
    return f"element {i} is {got[i].item()} instead of {expected[i].item()}"


def run(
    sizes: tuple[int, ...] = SIZES, repeats: int = 5, corrupt: str | None = None
) -> list[Result]:
    """Runs every collective at every size (bytes a rank), on all ranks of the default group.

    Every rank gets the same results; an error names the ranks it was seen on. `corrupt` names a
    collective whose result the last rank spoils before the comparison: so that a check can be
    checked. A collective that raises ends the run with its exception, since its group is then lost.
    """
    world = dist.get_world_size()
    results = []
    for collective in collectives():
        for size in sizes:
            elements = max(size // 4, world)
            call = collective.prepare(elements)
            got = call()
            if collective.name == corrupt and dist.get_rank() == world - 1:
                got = got + 1
            found = [None] * world
            dist.all_gather_object(found, _wrong(got, collective.expected(elements)))
            errors = [f"rank {rank}: {text}" for rank, text in enumerate(found) if text]
            seconds = _time(call, repeats)
            results.append(
                Result(
                    collective.name,
                    elements * 4,
                    seconds,
                    elements * 4 * collective.factor(world) / seconds,
                    "; ".join(errors) or None,
                )
            )
    return results
