#!/usr/bin/env python3
"""torch.compile on the tpu device: a model, a training step, a loop whose end depends on data.

usage: compile.py [--device tpu] [--steps 5]
Prints the losses with and without torch.compile, and what was compiled and why.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


def train(step, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        x = torch.randn(64, 32).to(next(model.parameters()).device)
        losses.append(step(model, optimizer, x).item())
    return losses


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), x.flip(-1))
    loss.backward()
    optimizer.step()
    return loss.detach()


def newton(x: torch.Tensor) -> torch.Tensor:
    """Square root of each element, by Newton's method until nothing changes."""

    def unfinished(guess, change):
        return change > 1e-6

    def improve(guess, change):
        better = (guess + x / guess) / 2
        return better, (better - guess).abs().max()

    start = (x.clone(), torch.ones((), device=x.device))
    return torch._higher_order_ops.while_loop(unfinished, improve, start)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--steps", type=int, default=5)
    a = parser.parse_args()

    for name, step in (("eager", training_step), ("compiled", torch.compile(training_step))):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 32))
        model.to(a.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = train(step, model, optimizer, a.steps)
        print(f"{name:9}", " ".join(f"{loss:.6f}" for loss in losses))

    x = torch.tensor([2.0, 9.0, 1234.5], device=a.device)
    print("roots    ", *torch.compile(newton)(x).tolist())
    if a.device.startswith("tpu"):
        for record in torch.tpu.compile_log():
            if record.operation.startswith("compiled"):
                print(record)


if __name__ == "__main__":
    main()
