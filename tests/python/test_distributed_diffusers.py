"""Diffusers' tensor parallelism, under torchrun."""

import pytest
from torchrun import torchrun

pytest.importorskip("diffusers")


def test_tensor_parallel(tmp_path):
    out = torchrun("diffusion.py", 2, str(tmp_path), HF_HUB_OFFLINE="1").stdout
    assert out.count("passed ") == 2, out
