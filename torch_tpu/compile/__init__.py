"""`torch.compile` on tpu: a graph becomes one program.

AOTAutograd hands over graphs of ATen operators. Each is run once over placeholders, through the
same kernels and rules as eager code, and what was recorded is kept as one program
(`csrc/aten/graph.cpp`).
"""

__all__ = ["tpu"]


def tpu(module, inputs, **options):
    """The backend "tpu" of `torch.compile`; see `backend.tpu`."""
    # Loaded when something is compiled: it needs a good part of PyTorch that `import torch` leaves.
    from . import backend

    return backend.tpu(module, inputs, **options)
