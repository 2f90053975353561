"""Every collective and message, dtypes and reduce operations, against what the ranks hold."""

import itertools
import os
import threading

import torch
import torch.distributed as dist
from ranks import DTYPES, check, held, main, needs_processes, same

OPS = {
    name: getattr(dist.ReduceOp, name)
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}


parts = threading.local()


def groups():
    """(group, its ranks): the world, and a part of it that leaves out every second rank."""
    world = dist.get_world_size()
    yield None, list(range(world))
    if world > 2:
        if not hasattr(parts, "part"):
            parts.part = dist.new_group(list(range(0, world, 2)))
        yield parts.part, list(range(0, world, 2))


def applies(op: str, dtype: torch.dtype) -> bool:
    if op in ("BAND", "BOR", "BXOR"):
        return not (dtype.is_floating_point or dtype.is_complex)
    if dtype.is_complex:
        return op in ("SUM", "AVG")  # PyTorch refuses the others
    return not (op == "AVG" and dtype == torch.bool)


def reduced(tensors, op: str) -> torch.Tensor:
    """In the order of the ranks, in float32 or wider, rounded once; integers wrap."""
    dtype = tensors[0].dtype
    if dtype == torch.bool:
        wide = [t.to(torch.int64) for t in tensors]
        op = {"SUM": "MAX", "PRODUCT": "MIN"}.get(op, op)
    elif dtype.is_complex or dtype == torch.float64:
        wide = list(tensors)
    elif dtype.is_floating_point:
        wide = [t.float() for t in tensors]
    else:
        wide = [t.to(torch.int64) for t in tensors]
    result = wide[0]
    for t in wide[1:]:
        if op in ("SUM", "AVG"):
            result = result + t
        elif op == "PRODUCT":
            result = result * t
        elif op == "MIN":
            result = torch.minimum(result, t)
        elif op == "MAX":
            result = torch.maximum(result, t)
        elif op == "BAND":
            result = result & t
        elif op == "BOR":
            result = result | t
        elif op == "BXOR":
            result = result ^ t
    if op == "AVG":
        if result.is_complex():
            result = torch.view_as_complex(torch.view_as_real(result) / len(tensors))
        elif result.is_floating_point():
            result = result / len(tensors)
        else:
            result = torch.div(result, len(tensors), rounding_mode="trunc")
    return result.to(dtype)


def finish(work, synchronous: bool) -> None:
    if synchronous:
        assert work is None
    else:
        work.wait()
        assert work.is_completed()


def reductions():
    """Every dtype and reduction in every group that this rank is in, the former two counted."""
    rank = dist.get_rank()
    for count, (dtype, op) in enumerate(itertools.product(DTYPES, OPS)):
        if not applies(op, dtype):
            continue
        for group, ranks in groups():
            if rank in ranks:
                yield count, dtype, op, group, ranks


@check
def all_reduce():
    rank = dist.get_rank()
    for _, dtype, op, group, ranks in reductions():
        expected = reduced([held(r, (3, 5), dtype) for r in ranks], op)
        for synchronous in (True, False):
            x = held(rank, (3, 5), dtype).to("tpu")
            finish(dist.all_reduce(x, OPS[op], group=group, async_op=not synchronous), synchronous)
            same(x, expected, (dtype, op))


@check
def reduce():
    rank = dist.get_rank()
    for count, dtype, op, group, ranks in reductions():
        root = ranks[count % len(ranks)]
        x = held(rank, (7,), dtype).to("tpu")
        synchronous = count % 2 == 0
        finish(dist.reduce(x, root, OPS[op], group=group, async_op=not synchronous), synchronous)
        if rank == root:
            same(x, reduced([held(r, (7,), dtype) for r in ranks], op), (dtype, op))
        else:
            same(x, held(rank, (7,), dtype))


@check
def reduce_scatter():
    rank = dist.get_rank()
    for count, dtype, op, group, ranks in reductions():
        n, me = len(ranks), ranks.index(rank)
        expected = reduced([held(r, (n, 2, 3), dtype)[me] for r in ranks], op)
        mine = held(rank, (n, 2, 3), dtype).to("tpu")
        synchronous = count % 2 == 0
        out = torch.empty(2, 3, dtype=dtype, device="tpu")
        if not dtype.is_complex:  # PyTorch passes lists of these on as they are
            work = dist.reduce_scatter(
                out, list(mine), OPS[op], group=group, async_op=not synchronous
            )
            finish(work, synchronous)
            same(out, expected, ("list", dtype, op))
            out = torch.empty(2, 3, dtype=dtype, device="tpu")
        work = dist.reduce_scatter_tensor(
            out, mine.reshape(2 * n, 3), OPS[op], group=group, async_op=not synchronous
        )
        finish(work, synchronous)
        same(out, expected, (dtype, op))


@check
def movements():
    """broadcast, all_gather, gather, scatter, all_to_all."""
    rank = dist.get_rank()
    for count, dtype in enumerate(DTYPES):
        for (group, ranks), synchronous in itertools.product(groups(), (True, False)):
            if rank not in ranks:
                continue
            n, me = len(ranks), ranks.index(rank)
            root = ranks[count % n]
            how = {"group": group, "async_op": not synchronous}
            mine = held(rank, (2, 3), dtype).to("tpu")
            everyones = [held(r, (2, 3), dtype) for r in ranks]

            x = mine.clone()
            finish(dist.broadcast(x, root, **how), synchronous)
            same(x, held(root, (2, 3), dtype), "broadcast")

            out = [torch.empty(2, 3, dtype=dtype, device="tpu") for _ in ranks]
            finish(dist.all_gather(out, mine, **how), synchronous)
            for got, expected in zip(out, everyones, strict=True):
                same(got, expected, "all_gather")
            whole = torch.empty(2 * n, 3, dtype=dtype, device="tpu")
            finish(dist.all_gather_into_tensor(whole, mine, **how), synchronous)
            same(whole, torch.cat(everyones), "all_gather_into_tensor")

            out = [torch.empty(2, 3, dtype=dtype, device="tpu") for _ in ranks]
            finish(dist.gather(mine, out if rank == root else None, root, **how), synchronous)
            if rank == root:
                for got, expected in zip(out, everyones, strict=True):
                    same(got, expected, "gather")

            given = [held(root, (2, 3), dtype, salt=i + 1) for i in range(n)]
            x = torch.empty(2, 3, dtype=dtype, device="tpu")
            lists = [g.to("tpu") for g in given] if rank == root else None
            finish(dist.scatter(x, lists, root, **how), synchronous)
            same(x, given[me], "scatter")

            sent = [held(rank, (2, 3), dtype, salt=i + 1).to("tpu") for i in range(n)]
            out = [torch.empty(2, 3, dtype=dtype, device="tpu") for _ in ranks]
            expected = [held(r, (2, 3), dtype, salt=me + 1) for r in ranks]
            finish(dist.all_to_all(out, sent, **how), synchronous)
            for got, right in zip(out, expected, strict=True):
                same(got, right, "all_to_all")
            whole = torch.empty(2 * n, 3, dtype=dtype, device="tpu")
            finish(dist.all_to_all_single(whole, torch.cat(sent), **how), synchronous)
            same(whole, torch.cat(expected), "all_to_all_single")


@check
def uneven_all_to_all():
    rank, world = dist.get_rank(), dist.get_world_size()

    def rows(source, target):  # some are zero
        return (source + 2 * target) % 3

    sent = [held(rank, (rows(rank, r), 2), salt=r) for r in range(world)]
    expected = [held(r, (rows(r, rank), 2), salt=rank) for r in range(world)]
    out = torch.empty(sum(len(t) for t in expected), 2, device="tpu")
    dist.all_to_all_single(
        out, torch.cat(sent).to("tpu"), [len(t) for t in expected], [len(t) for t in sent]
    )
    same(out, torch.cat(expected))


@check
def large():
    """Through several chunks, the last of them odd."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for dtype, count in ((torch.float32, (5 << 20) // 2 + 13), (torch.bfloat16, (4 << 20) + 7)):
        x = held(rank, (count,), dtype).to("tpu")
        expected = reduced([held(r, (count,), dtype) for r in range(world)], "SUM")
        y = x.clone()
        dist.all_reduce(x)
        if dtype == torch.float32:  # in an order of the ranks of its own, but the same everywhere
            torch.testing.assert_close(x.cpu(), expected, rtol=1e-5, atol=1e-5)
            first = x.clone()
            dist.broadcast(first, 0)
            same(x, first.cpu())
        else:
            same(x, expected)
        dist.reduce(y, world - 1)
        if rank == world - 1:
            same(y, expected)


@check
def views():
    """Inputs and outputs with strides; what else the storage holds stays, also what is written
    while the collective is under way."""
    rank, world = dist.get_rank(), dist.get_world_size()
    total = reduced([held(r, (4, 6)).t() for r in range(world)], "SUM")
    x = held(rank, (4, 6)).to("tpu").t()
    dist.all_reduce(x)
    same(x, total)

    flat = torch.zeros(64, device="tpu")
    flat[8:32] = held(rank, (24,)).to("tpu")
    work = dist.all_reduce(flat[8:32], async_op=True)
    flat[40] = 5
    flat[:8] = 7
    work.wait()
    expected = torch.zeros(64)
    expected[8:32] = reduced([held(r, (24,)) for r in range(world)], "SUM")
    expected[40] = 5
    expected[:8] = 7
    same(flat, expected)

    # As FSDP does it: the input is a piece of the output.
    whole = torch.zeros(world, 5, device="tpu")
    whole[rank] = held(rank, (5,)).to("tpu")
    dist.all_gather_into_tensor(whole, whole[rank])
    same(whole, torch.stack([held(r, (5,)) for r in range(world)]))

    # Outputs that are pieces of one storage.
    whole = torch.zeros(world + 1, 5, device="tpu")
    dist.all_gather(list(whole[:world]), held(rank, (5,)).to("tpu"))
    same(whole[:world], torch.stack([held(r, (5,)) for r in range(world)]))


@check
def inputs_are_taken_at_the_call():
    rank, world = dist.get_rank(), dist.get_world_size()
    x = held(rank, (1000,)).to("tpu")
    out = torch.empty(world * 1000, device="tpu")
    work = dist.all_gather_into_tensor(out, x, async_op=True)
    x.zero_()
    work.wait()
    same(out, torch.cat([held(r, (1000,)) for r in range(world)]))
    same(x, torch.zeros(1000))


@check
def many_at_once():
    """Works may be waited for in any order, or not at all before a later one."""
    rank, world = dist.get_rank(), dist.get_world_size()
    tensors = [held(rank, (50,), salt=i).to("tpu") for i in range(20)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    for work in reversed(works):
        work.wait()
    for i, t in enumerate(tensors):
        same(t, reduced([held(r, (50,), salt=i) for r in range(world)], "SUM"))
    # Never waited for by itself: the barrier comes after it.
    x = torch.ones(3, device="tpu")
    dist.all_reduce(x, async_op=True)
    dist.barrier()
    same(x, torch.full((3,), float(world)))


@check
def empty_and_scalar():
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.empty(0, 3, device="tpu")
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    dist.all_gather_into_tensor(torch.empty(0, 3, device="tpu"), x)
    dist.all_to_all_single(torch.empty(0, device="tpu"), torch.empty(0, device="tpu"))
    x = torch.tensor(rank + 1.0, device="tpu")
    dist.all_reduce(x)
    same(x, torch.tensor(world * (world + 1) / 2))


@check
def premultiplied_sum():
    rank, world = dist.get_rank(), dist.get_world_size()
    for factor in (0.5, torch.tensor(0.25)):
        x = held(rank, (6,)).to("tpu")
        op = dist._make_nccl_premul_sum(
            factor.to("tpu") if isinstance(factor, torch.Tensor) else factor
        )
        dist.all_reduce(x, op)
        same(x, reduced([held(r, (6,)) * factor for r in range(world)], "SUM"))


@check
def refusals():
    """Before anything is sent, on every rank, and the group goes on."""
    x = torch.ones(4, device="tpu")

    def raises(kind, text, call):
        try:
            call()
        except kind as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"no {kind.__name__}")

    raises(ValueError, "BAND needs integers", lambda: dist.all_reduce(x, dist.ReduceOp.BAND))
    raises(ValueError, "bool", lambda: dist.all_reduce(x > 0, dist.ReduceOp.AVG))
    raises(
        ValueError, "elements", lambda: dist.all_gather_into_tensor(torch.empty(5, device="tpu"), x)
    )
    raises(RuntimeError, "cpu", lambda: dist.all_reduce(torch.ones(2)))
    dist.all_reduce(x)
    same(x, torch.full((4,), float(dist.get_world_size())))


@check
@needs_processes  # callbacks run on a thread that is no rank
def futures():
    rank, world = dist.get_rank(), dist.get_world_size()
    total = reduced([held(r, (8,)) for r in range(world)], "SUM")
    x = held(rank, (8,)).to("tpu")
    future = dist.all_reduce(x, async_op=True).get_future()
    doubled = future.then(lambda f: f.value()[0] * 2)
    same(doubled.wait(), total * 2)
    same(future.wait()[0], total)
    # A callback may wait for another collective of the same group, as PowerSGD's do.
    x, y = held(rank, (8,)).to("tpu"), held(rank, (8,), salt=1).to("tpu")

    def again(f):
        z = f.value()[0] + y
        return dist.all_reduce(z, async_op=True).get_future().wait()[0]

    z = dist.all_reduce(x, async_op=True).get_future().then(again).wait()
    same(z, reduced([total + held(r, (8,), salt=1) for r in range(world)], "SUM"))
    work = dist.all_reduce(x, async_op=True)
    work.synchronize()
    assert work.is_success() and work.exception() is None
    assert [t.data_ptr() for t in work.result()] == [x.data_ptr()]
    assert work.get_future_result().wait() is not None


@check
def coalesced():
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("tpu")
    shapes = ((4,), (3, 2), (5,))

    def mine(dtype=torch.float32):
        return [held(rank, s, dtype).to("tpu") for s in shapes]

    def totals(dtype=torch.float32):
        return [reduced([held(r, s, dtype) for r in range(world)], "SUM") for s in shapes]

    a, b, c = mine()
    c = c.to(torch.float64)
    dist.group.WORLD.allreduce_coalesced([a, c, b], dist.AllreduceCoalescedOptions()).wait()
    for got, expected in zip((a, b), totals(), strict=False):
        same(got, expected)
    same(c, reduced([held(r, shapes[2]).double() for r in range(world)], "SUM"))

    tensors = mine()
    with dist._coalescing_manager():
        for t in tensors:
            dist.all_reduce(t)
    for got, expected in zip(tensors, totals(), strict=True):
        same(got, expected)

    outs = [torch.empty(world * s[0], *s[1:], device="tpu") for s in shapes]
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        for out, t in zip(outs, mine(), strict=True):
            dist.all_gather_into_tensor(out, t)
    manager.wait()
    for out, s in zip(outs, shapes, strict=True):
        same(out, torch.cat([held(r, s) for r in range(world)]))

    back = [torch.empty(s, device="tpu") for s in shapes]
    with dist._coalescing_manager(async_ops=True) as manager:
        for t, out in zip(back, outs, strict=True):
            dist.reduce_scatter_tensor(t, out)
    manager.wait()
    for t, s in zip(back, shapes, strict=True):
        same(t, held(rank, s) * world)


@check
def messages():
    rank, world = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % world, (rank - 1) % world
    for dtype in DTYPES:
        x, y = held(rank, (4, 2), dtype).to("tpu"), torch.empty(4, 2, dtype=dtype, device="tpu")
        works = [dist.isend(x, after), dist.irecv(y, before)]
        for work in works:
            work.wait()
        same(y, held(before, (4, 2), dtype))
    # Both first receive, then send: a receive must not hold up what comes after it.
    y = torch.empty(6, device="tpu")
    work = dist.irecv(y, before)
    total = torch.ones(2, device="tpu")
    dist.all_reduce(total)
    dist.send(held(rank, (6,)).to("tpu"), after)
    work.wait()
    same(y, held(before, (6,)))
    # In order for each tag, in any order among tags.
    outs = [torch.empty(2, device="tpu") for _ in range(6)]
    works = [dist.irecv(outs[i], before, tag=i % 2) for i in (1, 3, 5, 0, 2, 4)]
    for i in range(6):
        works.append(dist.isend(held(rank, (2,), salt=i).to("tpu"), after, tag=i % 2))
    for work in works:
        work.wait()
    for i in range(6):
        same(outs[i], held(before, (2,), salt=i), i)
    # In batches, both directions at once.
    y, z = torch.empty(3, device="tpu"), torch.empty(3, device="tpu")
    x = held(rank, (3,)).to("tpu")
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, y, before, tag=1),
            dist.P2POp(dist.irecv, z, after, tag=2),
            dist.P2POp(dist.isend, x, after, tag=1),
            dist.P2POp(dist.isend, x, before, tag=2),
        ]
    )
    for work in works:
        work.wait()
    same(y, held(before, (3,)))
    same(z, held(after, (3,)))
    # Pieces of one tensor, large enough for several packets; and nothing at all.
    whole = torch.zeros(2, 1 << 20, device="tpu")
    big = held(rank, (1 << 20,)).to("tpu")
    works = [dist.irecv(whole[1], before), dist.isend(big, after)]
    for work in works:
        work.wait()
    same(whole, torch.stack([torch.zeros(1 << 20), held(before, (1 << 20,))]))
    works = [dist.irecv(torch.empty(0, device="tpu"), before)]
    works.append(dist.isend(torch.empty(0, device="tpu"), after))
    for work in works:
        work.wait()


@check
@needs_processes  # nobody's call says from whom a message will come
def from_anywhere():
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        seen = set()
        for _ in range(world - 1):
            y = torch.empty(3, device="tpu")
            source = dist.recv(y)
            same(y, held(source, (3,)))
            seen.add(source)
        assert seen == set(range(1, world))
    else:
        dist.send(held(rank, (3,)).to("tpu"), 0)


@check
def objects():
    rank, world = dist.get_rank(), dist.get_world_size()
    out = [None] * world
    dist.all_gather_object(out, {"rank": rank, "text": "x" * rank})
    assert out == [{"rank": r, "text": "x" * r} for r in range(world)]
    values = [rank, "a"] if rank == 0 else [None, None]
    dist.broadcast_object_list(values, 0)
    assert values == [0, "a"]


@check
def functional():
    import torch.distributed._functional_collectives as fc

    rank, world = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    x = held(rank, (4, 2 * world)).to("tpu")
    everyones = [held(r, (4, 2 * world)) for r in range(world)]
    same(fc.all_reduce(x, "sum", group) + 0, reduced(everyones, "SUM"))
    same(fc.all_reduce(x, "avg", group) + 0, reduced(everyones, "AVG"))
    same(x, everyones[rank])
    same(fc.all_gather_tensor(x, 0, group) + 0, torch.cat(everyones))
    same(fc.all_gather_tensor(x, 1, group) + 0, torch.cat(everyones, 1))
    mine = reduced(everyones, "SUM").chunk(world, 1)[rank]
    same(fc.reduce_scatter_tensor(x, "sum", 1, group) + 0, mine.contiguous())
    same(fc.broadcast(x, 0, group) + 0, everyones[0])
    parts = [held(r, (4, 2 * world)).t().contiguous().chunk(world)[rank] for r in range(world)]
    same(fc.all_to_all_single(x.t().contiguous(), None, None, group) + 0, torch.cat(parts))
    a, b = fc.all_reduce_coalesced([x, x * 2], "sum", group)
    same(a + 0, reduced(everyones, "SUM"))
    same(b + 0, reduced([e * 2 for e in everyones], "SUM"))


@check
def sequence_numbers():
    group = dist.group.WORLD._get_backend(torch.device("tpu"))
    before = group._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1, device="tpu"))
    dist.barrier()
    assert group._get_sequence_number_for_group() == before + 2


@check
def new_groups():
    """Of few ranks without the others, of one rank, several over the same ranks."""
    rank, world = dist.get_rank(), dist.get_world_size()
    alone = dist.new_group([rank], use_local_synchronization=True)
    x = held(rank, (3,)).to("tpu")
    dist.all_reduce(x, dist.ReduceOp.AVG, group=alone)
    same(x, held(rank, (3,)))
    out = torch.empty(3, device="tpu")
    dist.all_gather_into_tensor(out, x, group=alone)
    dist.reduce_scatter(out, [out * 2], group=alone)
    same(out, held(rank, (3,)) * 2)
    dist.barrier(group=alone)

    # PyTorch names a group that only its ranks make by how many groups they are in: equally many.
    ends = [0, min(world - 1, 2)]
    if rank in ends:  # the others do not call
        group = dist.new_group(ends, use_local_synchronization=True)
        x = torch.tensor([rank + 1.0], device="tpu")
        dist.all_reduce(x, group=group)
        same(x, torch.tensor([2.0 + ends[1]]))
    group = dist.new_group(ends)
    if rank in ends:
        x = torch.tensor([rank + 1.0], device="tpu")
        dist.broadcast(x, ends[1], group=group)
        same(x, torch.tensor([1.0 + ends[1]]))
        assert dist.get_rank(group) == ends.index(rank)
    else:
        assert group is dist.GroupMember.NON_GROUP_MEMBER
    many = [dist.new_group(list(range(world))) for _ in range(6)]
    works = []
    tensors = [torch.full((2,), float(i), device="tpu") for i in range(6)]
    for g, t in zip(many, tensors, strict=True):
        works.append(dist.all_reduce(t, group=g, async_op=True))
    for i, work in enumerate(works):
        work.wait()
        same(tensors[i], torch.full((2,), float(i * world)))
    for g in many:
        dist.destroy_process_group(g)


@check
@needs_processes
def device_of_this_process():
    """Scripts for GPUs select their device by LOCAL_RANK; here each process has one."""
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.accelerator.set_device_index(local_rank)
    torch.tpu.set_device(local_rank)
    assert torch.tpu.current_device() == 0 and torch.accelerator.device_count() == 1
    for other in (local_rank + 1, 7):
        try:
            torch.tpu.set_device(other)
        except RuntimeError as error:
            assert "available" in str(error)
        else:
            raise AssertionError(other)


@check
def monitored():
    dist.barrier(async_op=True).wait()
    dist.barrier(device_ids=[0])


if __name__ == "__main__":
    main()
