"""The backend tpu_dist: collectives and messages, on two, three and four ranks under torchrun."""

import pytest
from torchrun import torchrun


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_collectives(ranks):
    out = torchrun("collectives.py", ranks).stdout
    assert out.count("passed ") == 22, out


def test_collectives_through_copies():
    """As where device memory is not host memory."""
    torchrun(
        "collectives.py",
        2,
        *("movements", "large", "views", "messages"),
        TORCH_TPU_DIRECT_READ="0",
    )


@pytest.mark.parametrize("backend", ["tpu", "cpu:gloo,tpu:tpu_dist", "device_id"])
def test_initialization(backend):
    torchrun("initialization.py", 3, backend)


def test_debug_level_detail():
    torchrun("initialization.py", 2, "tpu_dist", TORCH_DISTRIBUTED_DEBUG="DETAIL")
