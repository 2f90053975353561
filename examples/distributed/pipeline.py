#!/usr/bin/env python3
"""Pipeline parallel: each rank has some of the model's blocks, and the parts of a batch follow one
another through them (1F1B).

usage: torchrun --nproc-per-node=2 examples/distributed/pipeline.py [--device tpu] [--steps 50]
"""

import argparse

import torch
import torch.distributed as dist
from model import GPT, Text
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional as F


class Part(nn.Module):
    """The blocks of one rank; the first has the embeddings too, the last the head."""

    def __init__(self, gpt: GPT, rank: int, world: int):
        super().__init__()
        self.blocks = nn.ModuleList(
            block for i, block in enumerate(gpt.blocks) if i * world // len(gpt.blocks) == rank
        )
        self.first, self.last = rank == 0, rank == world - 1
        if self.first:
            self.token, self.place = gpt.token, gpt.place
        if self.last:
            self.norm, self.head = gpt.norm, gpt.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From tokens, int64 of shape [rows, length], on the first rank to logits of shape
        [rows, length, vocabulary] on the last; between them [rows, length, width]."""
        if self.first:
            x = self.token(x) + self.place(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) if self.last else x


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="tpu", choices=["tpu", "cpu"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=32, help="rows a step")
    parser.add_argument("--parts", type=int, default=8, help="parts of a batch")
    args = parser.parse_args()

    dist.init_process_group("tpu_dist" if args.device == "tpu" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    text = Text()
    gpt = GPT(text.vocabulary, layers=max(2, world))
    part = Part(gpt, rank, world).to(args.device)
    stage = PipelineStage(part, rank, world, torch.device(args.device))
    schedule = Schedule1F1B(stage, n_microbatches=args.parts, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(part.parameters(), lr=3e-3)
    for step in range(1, args.steps + 1):
        tokens, targets = text.batch(args.batch, gpt.length, step, rank=0, world=1)
        losses = []
        inputs = [tokens.to(args.device)] if part.first else []
        outputs = {"target": targets.to(args.device), "losses": losses} if part.last else {}
        schedule.step(*inputs, **outputs)
        optimizer.step()
        optimizer.zero_grad()
        if part.last and (step == 1 or step % 10 == 0 or step == args.steps):
            print(f"step {step:4d}  loss {torch.stack(losses).mean().item():.4f}", flush=True)
    if part.last:
        here, whole = (sum(p.numel() for p in m.parameters()) for m in (part, gpt))
        print(f"{world} ranks on {args.device}; the last has {here:,} of {whole:,} parameters")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
