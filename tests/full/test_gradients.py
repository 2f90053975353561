"""Gradients of all operators that have some on the CPU; see opinfo_gradients.py."""

import pytest
import torch
from opinfo_gradients import KINDS, differentiable, verdict

CASES = [
    pytest.param(op, kind, dtype, id=f"{op.full_name}-{kind}-{str(dtype)[6:]}")
    for dtype in (torch.float64, torch.complex128)
    for kind in KINDS
    for op in differentiable(dtype, kind)
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op,kind,dtype", CASES)
def test_gradients(op, kind, dtype):
    reason = verdict(op, "tpu", kind, dtype)
    if reason:
        pytest.skip(reason)
