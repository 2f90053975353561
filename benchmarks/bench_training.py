#!/usr/bin/env python3
"""Training steps of a small GPT compiled as a whole (forward, backward, AdamW): seconds a step.

usage: bench_training.py [--device tpu|cpu] [--boot MODULE] [--mode step|model|eager]
                         [--backend NAME] [--steps 10] [--layers 6] [--width 256] [--batch 8]
                         [--length 128]

Prints one JSON line. `step` compiles forward, backward and optimizer in one function, `model` the
model alone, with the optimizer compiled by itself; `eager` compiles nothing. Run it for each of the
devices to be compared, one after another on a machine that does nothing else.
"""

import argparse
import importlib
import json
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--boot", default="torch")
    parser.add_argument("--backend")
    parser.add_argument("--mode", default="step", choices=["step", "model", "eager"])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=1024)
    a = parser.parse_args()
    importlib.import_module(a.boot)
    import torch
    from small_gpt import GPT
    from torch.nn import functional as F

    torch.manual_seed(0)
    model = GPT(a.vocabulary, a.length, a.layers, a.width).to(a.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    data = torch.randint(a.vocabulary, (a.steps + 3, a.batch, a.length + 1)).to(a.device)
    options = {"backend": a.backend} if a.backend else {}

    def loss_of(ids):
        logits = forward(ids[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def step(ids):
        optimizer.zero_grad()
        loss = loss_of(ids)
        loss.backward()
        update()
        return loss.detach()

    forward, update = model, optimizer.step
    if a.mode == "model":
        forward = torch.compile(model, **options)
        update = torch.compile(optimizer.step, **options)
    elif a.mode == "step":
        step = torch.compile(step, **options)

    seconds, losses = [], []
    for ids in data:
        start = time.perf_counter()
        losses.append(step(ids).item())
        seconds.append(round(time.perf_counter() - start, 4))
    later = sorted(seconds[3:])
    print(
        json.dumps(
            {
                "device": a.device,
                "boot": a.boot,
                "mode": a.mode,
                "backend": a.backend,
                "first": seconds[:3],
                "median": later[len(later) // 2],
                "fastest": later[0],
                "losses": [round(x, 5) for x in losses],
            }
        )
    )


if __name__ == "__main__":
    main()
