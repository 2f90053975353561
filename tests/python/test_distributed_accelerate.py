"""Accelerate under torchrun."""

import pytest
from torchrun import torchrun

pytest.importorskip("accelerate")


def test_fsdp2(tmp_path):
    out = torchrun("accelerated.py", 2, str(tmp_path)).stdout
    assert out.count("passed") == 1, out
