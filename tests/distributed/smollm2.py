"""SmolLM2-135M from its checkpoint, by the example of tensor-parallel generation: 32 greedy tokens.

usage: smollm2.py alone|auto|mlp DIRECTORY

One process ("alone") writes the checkpoint to DIRECTORY and what it makes of it to a file beside;
several compare themselves with that. "auto" shards as the model says, "mlp" leaves attention whole.
"""

import json
import pathlib
import sys

import reads
import torch
import torch.distributed as dist
from ranks import say
from torch.distributed.tensor import DTensor

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "distributed"
sys.path.insert(0, str(EXAMPLES))
import tensor_parallel  # noqa: E402

# What a plan does not name is as the model says.
WHOLE_ATTENTION = {f"model.layers.*.self_attn.{name}_proj": "replicate" for name in "qkvo"}


def compare(model, plan: str, found: dict, expected: dict) -> None:
    world, layer = dist.get_world_size(), model.model.layers[0]
    assert isinstance(layer.self_attn.q_proj.weight, DTensor) == (plan == "auto")
    assert layer.mlp.up_proj.weight.to_local().shape == (1536 // world, 576)
    assert len(found["tokens"]) == 32 and found["tokens"] == expected["tokens"], (found, expected)
    # Its share, and all of the norms.
    whole = 0 if plan == "auto" else 30 * sum(p.nbytes for p in layer.self_attn.parameters())
    share = whole + (expected["read"] - whole) / world
    assert share <= found["read"] < share + 2**18, (found, share)
    assert found["peak"] < share + 2**23, (found, share)
    assert plan != "auto" or found["peak"] < 0.5 * expected["peak"], (found, expected)
    if dist.get_rank() == 0:
        memory, read = (found[x] / expected[x] for x in ("peak", "read"))
        say(f"32 tokens identical; {memory:.3f} of the memory, {read:.3f} of the reads")


def main() -> None:
    plan, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    alone = directory.with_name("alone.json")
    dist.init_process_group("tpu_dist")
    reads.watch()
    model, tokens = tensor_parallel.chat(
        tensor_parallel.QUESTION, directory, 32, WHOLE_ATTENTION if plan == "mlp" else "auto"
    )
    found = {"tokens": tokens, "read": reads.count, "peak": torch.tpu.max_memory_allocated()}
    if plan == "alone":
        alone.write_text(json.dumps(found))
    else:
        compare(model, plan, found, json.loads(alone.read_text()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
