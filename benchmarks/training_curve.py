#!/usr/bin/env python3
"""Training on a device against CPU: every loss of 50 AdamW steps from the same weights and data.

usage: training_curve.py [--device tpu] [--steps 50]
Exits with 1 if a loss differs by more than 1e-3, an operator fell back to the CPU, or a program was
compiled after the second step although the learning rate changes at each.
"""

import argparse
import copy
import sys
from pathlib import Path

import models
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from train import GPT, Text


def losses(model: GPT, batches, device: str) -> tuple[list[float], int]:
    """The losses, and how many programs were compiled after the second step."""
    on_tpu = torch.device(device).type == "tpu"
    model = copy.deepcopy(model).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(batches))
    found, early = [], 0
    for step, (tokens, targets) in enumerate(batches):
        loss = model(tokens.to(device), targets.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        found.append(loss.item())
        if on_tpu and step == 1:
            early = torch.tpu.compilations()["count"]
    return found, torch.tpu.compilations()["count"] - early if on_tpu else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    on_tpu = torch.device(args.device).type == "tpu"
    checks = models.Checks()
    if on_tpu:
        torch.tpu.clear_fallbacks()

    torch.manual_seed(0)
    text = Text()
    model = GPT(len(text.letters), dropout=0.0)
    draws = torch.Generator().manual_seed(0)
    batches = [text.batch(16, model.length, draws) for _ in range(args.steps)]
    expected, _ = losses(model, batches, "cpu")
    found, late = losses(model, batches, args.device)

    worst = max(abs(a - b) for a, b in zip(found, expected, strict=True))
    fell = f"loss {expected[0]:.3f} to {expected[-1]:.3f}"
    checks.add(f"largest difference of {args.steps} losses ({fell})", f"{worst:.1e}", worst <= 1e-3)
    if on_tpu:
        checks.add("programs compiled after the second step", str(late), late == 0)
        checks.add_fallbacks()
    checks.finish()


if __name__ == "__main__":
    main()
