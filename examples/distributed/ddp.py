#!/usr/bin/env python3
"""Data parallel: every rank has the whole model and its share of each batch.

usage: torchrun --nproc-per-node=2 examples/distributed/ddp.py [--device tpu] [--steps 50]
"""

import argparse

import torch
import torch.distributed as dist
from model import GPT, Text
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="tpu", choices=["tpu", "cpu"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=32, help="rows a step, of all ranks together")
    args = parser.parse_args()

    dist.init_process_group("tpu_dist" if args.device == "tpu" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    text = Text()
    model = DistributedDataParallel(GPT(text.vocabulary).to(args.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(1, args.steps + 1):
        tokens, targets = text.batch(args.batch, model.module.length, step, rank, world)
        loss = model(tokens.to(args.device), targets.to(args.device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1 or step % 10 == 0 or step == args.steps:
            mean = loss.detach()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step:4d}  loss {mean.item() / world:.4f}", flush=True)
    if rank == 0:
        print(f"{world} ranks on {args.device}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
