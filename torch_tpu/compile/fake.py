"""What operators return for fake tensors on tpu, where PyTorch's Meta kernel knows CUDA alone."""

import torch
from torch._subclasses.fake_impls import register_op_impl


def register() -> None:
    register_op_impl(torch.ops.aten._grouped_mm.default)(_grouped_mm)


def _grouped_mm(mode, operator, a, b, offs=None, bias=None, out_dtype=None):
    """Any dtype and stride will do here; the Meta kernel wants bfloat16, aligned."""
    if a.device.type != "tpu":
        return NotImplemented
    torch._check(a.dtype == b.dtype, lambda: f"dtypes of a grouped product: {a.dtype}, {b.dtype}")
    torch._check(
        a.shape[-1] == b.shape[-2], lambda: "contraction dimension of mat_a and mat_b must match"
    )
    if a.dim() == 3 and b.dim() == 3:
        groups = (a.shape[0],)
    else:
        groups = (offs.shape[0],) if a.dim() == b.dim() == 2 else ()
    return a.new_empty((*groups, a.shape[-2], b.shape[-1]))
