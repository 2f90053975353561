"""A small GPT and the text it learns, for the examples beside it."""

from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, length=32, width=64, layers=2, heads=4):
        super().__init__()
        self.length = length
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss. `tokens` and `targets` are int64 of shape [batch, length]."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.place(places)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Text:
    """The help texts of the Python language, a letter a token."""

    def __init__(self):
        text = "\n".join(topics.values())
        numbers = {letter: i for i, letter in enumerate(sorted(set(text)))}
        self.vocabulary = len(numbers)
        self.data = torch.tensor([numbers[letter] for letter in text])

    def batch(self, size: int, length: int, step: int, rank: int, world: int):
        """This rank's share of the batch of one step, `size` rows of all ranks together."""
        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(len(self.data) - length - 1, (size,), generator=generator)
        rows = self.data[starts.chunk(world)[rank][:, None] + torch.arange(length + 1)]
        return rows[:, :-1], rows[:, 1:]
