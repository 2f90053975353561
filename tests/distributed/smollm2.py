"""SmolLM2-135M from its checkpoint: 32 greedy tokens, by one process or tensor parallel.

usage: smollm2.py alone DIRECTORY       what one process makes of the checkpoint, into alone.json
       smollm2.py auto|mlp DIRECTORY    the same by all ranks, compared with that

"auto" shards as the model says, "mlp" leaves attention whole.
"""

import json
import pathlib
import sys

import reads
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, logging

# <|im_start|>user, What is the capital of Morocco?<|im_end|>, <|im_start|>assistant
PROMPT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 23513, 47, 2, 198, 1, 520, 9531, 198]
PLANS = {
    "auto": "auto",
    # What a plan does not name is as the model says.
    "mlp": {f"model.layers.*.self_attn.{name}_proj": "replicate" for name in "qkvo"},
}


def load(directory: str, **placement):
    """The model, and what it does: its tokens, the bytes read of its file, the most bytes held."""
    reads.watch()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **placement)
    read = reads.count
    prompt = torch.tensor([PROMPT]).to(model.device)
    # With a cache of fixed size the programs of the first token serve all of them.
    out = model.generate(
        prompt,
        max_new_tokens=32,
        min_new_tokens=32,
        do_sample=False,
        cache_implementation="static",
        disable_compile=True,
    )
    tokens = out[0, len(PROMPT) :].tolist()
    return model, {"tokens": tokens, "read": read, "peak": torch.tpu.max_memory_allocated()}


def alone(directory: str) -> None:
    _, found = load(directory, device_map="tpu")
    pathlib.Path(directory, "alone.json").write_text(json.dumps(found))


def parallel(plan: str, directory: str) -> None:
    model, found = load(directory, tp_plan=PLANS[plan])
    expected = json.loads(pathlib.Path(directory, "alone.json").read_text())
    world, attention = dist.get_world_size(), model.model.layers[0].self_attn
    assert dist.get_backend() == "tpu_dist"
    assert isinstance(attention.q_proj.weight, DTensor) == (plan == "auto")
    assert model.model.layers[0].mlp.up_proj.weight.to_local().shape == (1536 // world, 576)
    assert found["tokens"] == expected["tokens"], (found, expected)
    # Its share, and all of the norms.
    attention = 0 if plan == "auto" else 30 * sum(p.nbytes for p in attention.parameters())
    share = attention + (expected["read"] - attention) / world
    assert share <= found["read"] < share + 2**18, (found, share)
    assert found["peak"] < share + 2**23, (found, share)
    assert plan != "auto" or found["peak"] < 0.5 * expected["peak"], (found, expected)
    if dist.get_rank() == 0:
        memory, read = (found[x] / expected[x] for x in ("peak", "read"))
        print(f"32 tokens identical; {memory:.3f} of the memory, {read:.3f} of the reads")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    logging.disable_progress_bar()
    command, directory = sys.argv[1:]
    if command == "alone":
        alone(directory)
    else:
        parallel(command, directory)
