"""examples/distributed, as its usage lines say."""

import pathlib
import re

from torchrun import torchrun

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "distributed"


def losses(*arguments):
    out = torchrun(str(EXAMPLES / "ddp.py"), 2, "--steps", "10", *arguments).stdout
    found = [float(x) for x in re.findall(r"loss (\d+\.\d+)", out)]
    assert len(found) == 2, out
    return found


def test_ddp_learns_as_on_cpu():
    on_tpu, on_cpu = losses(), losses("--device", "cpu")
    assert on_tpu[1] < on_tpu[0] - 0.5
    # Ten steps of AdamW in float32: sums in another order, no more.
    assert all(abs(a - b) < 2e-3 for a, b in zip(on_tpu, on_cpu, strict=True)), (on_tpu, on_cpu)
