#!/usr/bin/env python3
"""What several ranks cost and gain; every comparison is of calls that take turns in one run.

usage: torchrun --standalone --nproc-per-node=2 bench_distributed.py [transport] [overlap] [link]

`transport`: all-reduce of float32 tensors on tpu, against Gloo's own of CPU tensors.
`overlap`: a step of the small GPT of bench_training.py under DDP, with gradients that travel while
    backward computes, against one bucket that holds all of them. `reduce` is what their all-reduce
    takes alone, and so all that there is to gain; `busy` is the part of the machine's processors
    that the ranks used: between ranks of one machine the transport is work for them as well.
`link`: the same with a link between the ranks of --link megabytes a second, simulated: each bucket
    arrives that much later, one after another. Time that passes without work can be overlapped.

Rank 0 prints a JSON line for each. Times are medians, in milliseconds, of the slowest rank.
"""

import argparse
import json
import os
import statistics
import threading
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from small_gpt import GPT
from torch.nn.parallel import DistributedDataParallel


def take_turns(calls: dict, repeats: int, warm: int = 2) -> dict:
    """{name: (median milliseconds, processor seconds of this rank over seconds)} of the calls."""
    walls, shares = ({name: [] for name in calls} for _ in range(2))
    for i in range(warm + repeats):
        for name, call in calls.items():
            dist.barrier(device_ids=None)
            start, used = time.perf_counter(), time.process_time()
            call()
            torch.tpu.synchronize()
            taken, used = time.perf_counter() - start, time.process_time() - used
            slowest = torch.tensor([taken, used], dtype=torch.float64)
            dist.all_reduce(slowest[:1], dist.ReduceOp.MAX)
            dist.all_reduce(slowest[1:])
            if i >= warm:
                walls[name].append(1e3 * slowest[0].item())
                shares[name].append((slowest[1] / slowest[0]).item())
    return {n: (statistics.median(walls[n]), statistics.median(shares[n])) for n in calls}


def report(**what) -> None:
    if dist.get_rank() == 0:
        print(json.dumps(what), flush=True)


def transport(a) -> None:
    for mib in (1 / 1024, 1 / 16, 1, 4, 16, 64):
        n = int(mib * (1 << 18))
        on_tpu, on_cpu = torch.zeros(n, device="tpu"), torch.zeros(n)
        times = take_turns(
            {
                "tpu": lambda x=on_tpu: dist.all_reduce(x),
                "gloo": lambda x=on_cpu: dist.all_reduce(x),
            },
            a.repeats if mib > 1 else 5 * a.repeats,
        )
        (tpu, busy), (gloo, _) = times["tpu"], times["gloo"]
        report(
            what="all_reduce",
            KiB=mib * 1024,
            tpu=round(tpu, 3),
            gloo=round(gloo, 3),
            ratio=round(tpu / gloo, 2),
            busy=round(busy / os.cpu_count(), 2),
        )


def over_link(megabytes_per_second: float):
    """A DDP hook: the mean of the gradients, at the speed of a link that carries one bucket at a
    time."""
    taken = threading.Lock()

    def hook(state, bucket):
        def arrive(future):
            with taken:
                time.sleep(bucket.buffer().nbytes / (1e6 * megabytes_per_second))
            return future.value()[0]

        work = dist.all_reduce(bucket.buffer(), dist.ReduceOp.AVG, async_op=True)
        return work.get_future().then(arrive)

    return hook


def overlap(a, hook=None) -> None:
    def trainer(bucket_cap_mb):
        torch.manual_seed(0)
        model = GPT(a.vocabulary, a.length, a.layers, a.width).to("tpu")
        model = DistributedDataParallel(
            model, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=True
        )
        if hook is not None:
            model.register_comm_hook(None, hook)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        ids = torch.randint(a.vocabulary, (a.batch, a.length + 1)).to("tpu")

        def step():
            optimizer.zero_grad()
            logits = model(ids[:, :-1])
            F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
            optimizer.step()

        return step, sum(p.numel() for p in model.parameters())

    # PyTorch's default is 25 MiB, after a first one of 1 MiB: this model has hardly more.
    caps = {"default": None, "4 MiB": 4, "1 MiB": 1, "none": 4096}
    calls = {name: trainer(cap) for name, cap in caps.items()}
    gradients = torch.zeros(calls["none"][1], device="tpu")
    steps = {name: step for name, (step, _) in calls.items()}
    steps["reduce"] = lambda: dist.all_reduce(gradients)
    times = take_turns(steps, a.repeats, warm=6)
    reduce = times.pop("reduce")[0]
    none = times["none"][0]
    for name, (step, busy) in times.items():
        report(
            what="DDP step" if hook is None else f"DDP step, link of {a.link:g} MB/s",
            buckets=name,
            step=round(step, 1),
            gain=round(none / step, 3),
            reduce=round(reduce, 1),
            busy=round(busy / os.cpu_count(), 2),
        )


def link(a) -> None:
    overlap(a, over_link(a.link))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["transport", "overlap", "link"])
    parser.add_argument("--link", type=float, default=100)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=1024)
    a = parser.parse_args()
    dist.init_process_group("cpu:gloo,tpu:tpu_dist")
    for what in a.what:
        {"transport": transport, "overlap": overlap, "link": link}[what](a)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
