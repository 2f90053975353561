"""Ranks that do not call the same: all of them are told, nobody computes, nobody hangs. Each case
has a group of its own, which fails; the world stays sound."""

import datetime
import time

import torch
import torch.distributed as dist
from ranks import check, held, main, same, say


def everyones_errors(call, timeout=60):
    """What `call(group, rank)` raised on each rank, and what the group's next call did."""
    rank, world = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(timeout=datetime.timedelta(seconds=timeout))
    start = time.monotonic()
    errors = []
    for attempt in (lambda: call(group, rank), lambda: dist.barrier(group=group)):
        try:
            attempt()
            errors.append(None)
        except Exception as error:
            errors.append((type(error).__name__, str(error)))
    out = [None] * world
    dist.all_gather_object(out, (*errors, time.monotonic() - start))
    for _, again, seconds in out:
        assert seconds < 40, out
        assert again is not None and again[0] == "DistBackendError", out
    if rank == 0:
        say(out[1][0])
    return [error for error, _, _ in out]


def all_say(errors, *texts):
    for error in errors:
        assert error is not None and error[0] == "DistBackendError", errors
        for text in texts:
            assert text in error[1], (text, error)


@check
def another_collective():
    def call(group, rank):
        x = torch.ones(4, device="tpu")
        dist.broadcast(x, 0, group=group) if rank == 1 else dist.all_reduce(x, group=group)

    all_say(
        everyones_errors(call),
        "ranks 0, 2: all_reduce(SUM, float32[4])",
        "rank 1: broadcast(float32[4], rank 0)",
    )


@check
def another_shape():
    def call(group, rank):
        dist.all_reduce(torch.ones((2, 3) if rank == 1 else (3, 2), device="tpu"), group=group)

    all_say(everyones_errors(call), "float32[2, 3]", "float32[3, 2]")


@check
def another_dtype():
    """Of as many bytes, so that nothing but the check can notice."""

    def call(group, rank):
        x = torch.ones(4, dtype=torch.int32 if rank == 1 else torch.float32, device="tpu")
        dist.all_gather_into_tensor(x.new_empty(12), x, group=group)

    all_say(everyones_errors(call), "all_gather_into_tensor", "float32[4]", "int32[4]")


@check
def another_operation_or_root():
    def operation(group, rank):
        op = dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM
        dist.all_reduce(torch.ones(4, device="tpu"), op, group=group)

    all_say(everyones_errors(operation), "MAX", "SUM")

    def root(group, rank):
        dist.broadcast(torch.ones(4, device="tpu"), rank % 2, group=group)

    all_say(everyones_errors(root), "rank 0)", "rank 1)")


@check
def one_call_more():
    def call(group, rank):
        if rank == 1:
            dist.barrier(group=group)
        dist.all_reduce(torch.ones(4, device="tpu"), group=group)

    all_say(everyones_errors(call), "rank 1: barrier()")


@check
def another_split():
    def call(group, rank):
        sizes = [2] * 3 if rank == 1 else [1] * 3
        x = torch.ones(sum(sizes), device="tpu")
        dist.all_to_all_single(torch.empty_like(x), x, sizes, sizes, group=group)

    all_say(everyones_errors(call), "which expects")


@check
def another_message():
    def call(group, rank):
        if rank == 0:
            dist.send(torch.ones(4, device="tpu"), 1, group=group)
        elif rank == 1:
            dist.recv(torch.ones(8, device="tpu"), 0, group=group)
        dist.barrier(group=group)

    errors = everyones_errors(call)
    assert "rank 0 sends float32[4], but rank 1 receives float32[8]" in errors[1][1], errors
    all_say(errors)


@check
def a_rank_that_does_not_come():
    def call(group, rank):
        if rank == 1:
            time.sleep(5)
            raise RuntimeError("late")
        dist.all_reduce(torch.ones(4, device="tpu"), group=group)

    errors = everyones_errors(call, timeout=2)
    for rank in (0, 2):
        all_say([errors[rank]], "timed out after 2000 ms", "rank 1 has not called it")


@check
def a_message_that_does_not_come():
    def call(group, rank):
        if rank == 0:
            dist.recv(torch.ones(4, device="tpu"), 1, group=group)
        else:
            dist.barrier(group=group)

    all_say(everyones_errors(call, timeout=3))


@check
def waiting_for_less_than_the_timeout():
    group = dist.new_group()
    rank = dist.get_rank()
    if rank == 0:
        work = dist.barrier(group=group, async_op=True)
        try:
            work.wait(datetime.timedelta(milliseconds=100))
        except RuntimeError as error:
            assert "timed out after 100 ms in barrier()" in str(error), error
        else:
            raise AssertionError
        dist.barrier()
        work.wait()  # the collective went on
    else:
        dist.barrier()
        dist.barrier(group=group)


@check
def abort():
    def call(group, rank):
        if rank == 1:
            time.sleep(0.5)
            dist.distributed_c10d._abort_process_group(group)
            raise dist.DistBackendError("aborted by myself")
        dist.barrier(group=group)

    rank, world = dist.get_rank(), dist.get_world_size()
    group = dist.new_group()
    try:
        call(group, rank)
        message = None
    except dist.DistBackendError as error:
        message = str(error)
    out = [None] * world
    dist.all_gather_object(out, message)
    assert all("aborted" in m for m in out), out


@check
def the_world_is_sound():
    x = held(dist.get_rank(), (5,)).to("tpu")
    dist.broadcast(x, 0)
    same(x, held(0, (5,)))


if __name__ == "__main__":
    main()
