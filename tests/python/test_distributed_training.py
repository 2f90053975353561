"""PyTorch's own distributed layers on tpu tensors, under torchrun."""

import pytest
from torchrun import torchrun


@pytest.mark.parametrize("ranks", [2, 3])
def test_data_parallel(ranks):
    out = torchrun("training.py", ranks).stdout
    assert out.count("passed ") == 6, out


@pytest.mark.parametrize("ranks", [2, 4])
def test_sharded(ranks):
    out = torchrun("sharded.py", ranks).stdout
    assert out.count("passed ") == 12, out


@pytest.mark.parametrize("ranks", [2, 4])
def test_attention(ranks):
    out = torchrun("attention.py", ranks).stdout
    assert out.count("passed ") == 4, out


def test_checkpoint_of_four_ranks_loads_on_two(tmp_path):
    torchrun("checkpoint.py", 4, "save", str(tmp_path))
    torchrun("checkpoint.py", 2, "load", str(tmp_path))
