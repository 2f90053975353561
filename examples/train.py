#!/usr/bin/env python3
"""Trains a small GPT on the tpu device, letter by letter, on a text that ships with Python.

usage: train.py [--device tpu] [--steps 300] [--checkpoint checkpoint.pt]
Halfway the state is saved, everything is thrown away, and training goes on from the file.
"""

import argparse
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(
        self, vocabulary: int, length=64, width=128, layers=3, heads=4, dropout: float = 0.1
    ):
        super().__init__()
        self.length = length
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight  # tied, as GPT-2's
        for embedding in (self.token, self.place):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        logits = self.head(self.norm(self.blocks(self.token(tokens) + self.place(places))))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def continue_text(self, tokens: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            logits = self(tokens[:, -self.length :])[:, -1]
            drawn = torch.multinomial((logits / 0.7).softmax(-1), 1)
            tokens = torch.cat([tokens, drawn], dim=1)
        return tokens


class Text:
    """The help texts of the Python language, as numbers."""

    def __init__(self):
        self.text = "\n".join(topics.values())
        self.letters = sorted(set(self.text))
        numbers = {letter: number for number, letter in enumerate(self.letters)}
        self.data = torch.tensor([numbers[letter] for letter in self.text])
        self.numbers = numbers

    def batch(self, size: int, length: int, generator: torch.Generator):
        starts = torch.randint(len(self.data) - length - 1, (size,), generator=generator)
        rows = starts[:, None] + torch.arange(length + 1)
        rows = self.data[rows]
        return rows[:, :-1], rows[:, 1:]

    def decode(self, tokens: torch.Tensor) -> str:
        return "".join(self.letters[number] for number in tokens.tolist())


class Training:
    """Everything that has to be the same again after a resume."""

    def __init__(self, text: Text, device: str, steps: int, seed: int = 0):
        torch.manual_seed(seed)
        self.text, self.device = text, device
        self.model = GPT(len(text.letters)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.1)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=4e-3, total_steps=steps, pct_start=0.1
        )
        self.draws = torch.Generator().manual_seed(seed)
        self.step = 0

    def advance(self) -> torch.Tensor:
        tokens, targets = self.text.batch(32, self.model.length, self.draws)
        loss = self.model(tokens.to(self.device), targets.to(self.device))
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.step += 1
        return loss.detach()

    PARTS = ("model", "optimizer", "schedule")

    def random(self):
        """The module that keeps the generator dropout draws from."""
        return torch if self.device == "cpu" else torch.get_device_module(self.device)

    def save(self, path: Path) -> None:
        state = {part: getattr(self, part).state_dict() for part in self.PARTS}
        state["dropout"] = self.random().get_rng_state()
        state["draws"] = self.draws.get_state()
        state["step"] = self.step
        torch.save(state, path)

    def resume(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device, weights_only=True)
        for part in self.PARTS:
            getattr(self, part).load_state_dict(state[part])
        self.random().set_rng_state(state["dropout"].cpu())
        self.draws.set_state(state["draws"].cpu())
        self.step = state["step"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    args = parser.parse_args()

    text = Text()
    training = Training(text, args.device, args.steps)
    size = sum(parameter.numel() for parameter in training.model.parameters())
    print(f"{size:,} parameters, {len(text.data):,} letters, on {args.device}")

    start = time.perf_counter()
    every = max(1, args.steps // 20)
    half = args.steps // 2
    losses: list[torch.Tensor] = []
    while training.step < args.steps:
        losses.append(training.advance())
        if training.step == 1 or training.step % every == 0:
            value = torch.stack(losses).mean().item()  # of the steps since the last line
            losses.clear()
            seconds = time.perf_counter() - start
            bar = "#" * round(value * 12)
            print(f"step {training.step:5d}  loss {value:.3f}  {seconds:6.1f} s  {bar}")
        if training.step == half:
            training.save(args.checkpoint)
            training = Training(text, args.device, args.steps, seed=1)
            training.resume(args.checkpoint)
            print(f"saved {args.checkpoint} and resumed from it at step {training.step}")

    training.model.eval()
    first = torch.tensor([[text.numbers[letter] for letter in "The "]], device=args.device)
    print("what it has learned to write:")
    print(text.decode(training.model.continue_text(first, 150)[0].cpu()))


if __name__ == "__main__":
    main()
