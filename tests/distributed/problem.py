"""A small regression problem, and what a single process makes of it."""

import contextlib
import functools
import threading

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

ROWS = 4  # of each rank

# With AdamW's own epsilon gradients that are nothing but rounding make steps of full length.
adamw = functools.partial(torch.optim.AdamW, lr=1e-2, eps=1e-3)


class Net(nn.Module):
    """`extra` is not used in the forward pass of even steps."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.second = nn.Linear(32, 32)
        self.extra = nn.Linear(32, 32)
        self.last = nn.Linear(32, 4)

    def forward(self, x, step=1):
        x = F.gelu(self.second(F.gelu(self.first(x))))
        if step % 2 == 1:
            x = x + self.extra(x)
        return self.last(x)


_generator_in_use = threading.Lock()


@contextlib.contextmanager
def seeded(seed: int = 0):
    """For random numbers that all ranks draw alike. Ranks may be threads, which have one generator
    between them."""
    with _generator_in_use:
        torch.manual_seed(seed)
        yield


def net() -> nn.Module:
    with seeded():
        model = Net()
    return model.to("tpu")


def batch(step: int):
    """Of all ranks."""
    generator = torch.Generator().manual_seed(step)
    rows = ROWS * dist.get_world_size()
    x = torch.randn(rows, 8, generator=generator)
    return x.to("tpu"), torch.sin(x[:, :4] * 3).to("tpu")


def mine(tensor):
    rank = dist.get_rank()
    return tensor[ROWS * rank : ROWS * (rank + 1)]


def reference(steps=5, accumulate=1, clip=None, unused=True):
    model = net()
    opt = adamw(model.parameters())
    for step in range(steps):
        x, y = batch(step)
        F.mse_loss(model(x, step if unused else 1), y).backward()
        if (step + 1) % accumulate == 0:
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            opt.step()
            opt.zero_grad()
    return model


def close(model, expected, rtol=2e-4, atol=2e-5):
    for (name, p), (_, q) in zip(
        model.named_parameters(), expected.named_parameters(), strict=True
    ):
        torch.testing.assert_close(
            p.cpu(), q.cpu(), rtol=rtol, atol=atol, msg=lambda m, n=name: n + m
        )
