"""examples/distributed, as its usage lines say."""

import importlib.util
import pathlib
import re

import pytest
import torch
from torchrun import torchrun

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "distributed"


def losses(script: str, *arguments: str):
    out = torchrun(str(EXAMPLES / script), 2, "--steps", "10", *arguments).stdout
    found = [float(x) for x in re.findall(r"loss (\d+\.\d+)", out)]
    assert len(found) == 2 and "2 ranks on" in out, out
    return found


@pytest.fixture(scope="module")
def on_cpu():
    """The first and the tenth loss of one process."""
    spec = importlib.util.spec_from_file_location("distributed_model", EXAMPLES / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    text = module.Text()
    model = module.GPT(text.vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(1, 11):
        loss = model(*text.batch(32, model.length, step, rank=0, world=1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses[0], losses[-1]


@pytest.mark.parametrize("script", ["ddp.py", "fsdp2.py", "pipeline.py"])
def test_learns_as_on_cpu(script, on_cpu):
    """However the model is divided, it is the same model and learns from the same batches."""
    on_tpu = losses(script)
    assert on_tpu[1] < on_tpu[0] - 0.5
    # Ten steps of AdamW in float32: sums in another order, no more.
    assert all(abs(a - b) < 2e-3 for a, b in zip(on_tpu, on_cpu, strict=True)), (on_tpu, on_cpu)
