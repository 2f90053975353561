"""What tests of compiled graphs share."""

import torch
from torch._dynamo.utils import counters

from torch_tpu.compile import executable


def forget() -> None:
    """What was compiled, counted and said before."""
    torch._dynamo.reset()
    counters.clear()
    torch.tpu.clear_fallbacks()
    executable._told.clear()
