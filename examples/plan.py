"""Asks the TPU's compiler about a model, without a TPU and without the model's weights.

    python examples/plan.py [--config examples/configs/smollm2-135m.json] [--topology v5e:1x1]

For one decoding step it prints the compiler's report, then how large a batch would still fit by
its memory, as a user would decide which chip to rent.
"""

import argparse
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).resolve().parent


def decode_step(config, batch: int, tokens: int):
    """A model on "meta" and the arguments of a step that decodes one token."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        cache = transformers.StaticCache(config, max_cache_len=tokens)
        width = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        heads = config.num_key_value_heads
        cache.early_initialization(batch, heads, width, torch.bfloat16, torch.device("meta"))
        token = torch.empty(batch, 1, dtype=torch.int64)
    return model, {"input_ids": token, "past_key_values": cache, "use_cache": True}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default=HERE / "configs/smollm2-135m.json")
    parser.add_argument("--topology", default="v5e:1x1")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=2048)
    a = parser.parse_args()
    config = transformers.AutoConfig.from_pretrained(a.config)
    model, kwargs = decode_step(config, a.batch, a.tokens)
    program = torch.tpu.aot.compile(model, (), kwargs, topology=a.topology, name="decode step")
    report = program.report
    print(program)
    if report.fits:
        cache = sum(
            2 * torch.Size(v.shape).numel() for v in report.inputs if "past_key_values" in v.name
        )
        free = report.hbm_bytes - report.required_bytes
        print(f"{free // (cache // a.batch)} more sequences of {a.tokens} tokens would fit")


if __name__ == "__main__":
    main()
