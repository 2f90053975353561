#!/usr/bin/env python3
"""SmolLM2-135M on a device against CPU: greedy tokens in float32, logits in bfloat16.

usage: smollm2_tokens.py [--device tpu] [--tokens 64]
Exits with 1 if a token differs, an operator fell back to the CPU, or bfloat16 is further from
float32 than 1.5 times what it is on the CPU.
"""

import argparse
import time

import models
import torch

PROMPTS = [
    "What is the capital of Morocco?",
    "Write three sentences about the sea.",
    "Explain to a child why the sky is blue.",
]


def generate(model, prompt, tokens: int) -> tuple[list[int], float]:
    prompt = prompt.to(model.device)
    start = time.perf_counter()
    out = model.generate(
        **prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False
    ).cpu()
    seconds = time.perf_counter() - start
    return out[0, prompt["input_ids"].shape[1] :].tolist(), seconds


@torch.no_grad()
def logits(model, prompts) -> list[torch.Tensor]:
    return [model(**prompt.to(model.device)).logits[0].float().cpu() for prompt in prompts]


def distance(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """Root mean square of the difference over that of the exact values."""
    found, exact = torch.cat(found), torch.cat(exact)
    return ((found - exact).square().mean() / exact.square().mean()).sqrt().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    on_tpu = torch.device(args.device).type == "tpu"
    checks = models.Checks()
    if on_tpu:
        torch.tpu.clear_fallbacks()

    tokenizer = models.smollm2_tokenizer()
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        for text in PROMPTS
    ]
    reference = models.smollm2(torch.float32, "cpu")
    model = models.smollm2(torch.float32, args.device)
    for text, prompt in zip(PROMPTS, prompts, strict=True):
        expected, _ = generate(reference, prompt, args.tokens)
        found, seconds = generate(model, prompt, args.tokens)
        same = sum(a == b for a, b in zip(found, expected, strict=True))
        rate = args.tokens / seconds
        what = f'"{text}" ({rate:.1f} tokens/s)'
        checks.add(what, f"{same} of {args.tokens} the same", same == args.tokens)

    exact = logits(reference, prompts)
    error = distance(logits(model, prompts), exact)
    checks.add("float32 logits, relative error", f"{error:.1e}", error < 1e-3)
    del model, reference
    on_cpu = distance(logits(models.smollm2(torch.bfloat16, "cpu"), prompts), exact)
    here = distance(logits(models.smollm2(torch.bfloat16, args.device), prompts), exact)
    checks.add(
        f"bfloat16 logits, relative error {here:.4f} (CPU {on_cpu:.4f})",
        f"ratio {here / on_cpu:.2f}",
        here <= 1.5 * on_cpu,
    )
    if on_tpu:
        checks.add_fallbacks()
    checks.finish()


if __name__ == "__main__":
    main()
