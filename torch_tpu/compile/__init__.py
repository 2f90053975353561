"""`torch.compile` on tpu: a graph becomes one program.

AOTAutograd hands over graphs of ATen operators. Each is run once over placeholders, through the
same kernels and rules as eager code, and what was recorded is kept as one program
(`csrc/aten/graph.cpp`).
"""

__all__ = ["tpu"]


def __getattr__(name: str):
    # Loaded when something is compiled: it needs a good part of PyTorch that `import torch` leaves.
    if name == "tpu":
        from .backend import tpu

        return tpu
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
