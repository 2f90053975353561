#!/usr/bin/env python3
"""MiniLM sentence embeddings on a device against CPU: cosine similarity of 20 sentences.

usage: minilm_cosine.py [--device tpu]
Exits with 1 if a similarity is not above 0.9999 or an operator fell back to the CPU.
"""

import argparse

import models
import torch

SENTENCES = [
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sun.",
    "Rain fell all night.",
    "The stock market fell sharply on Monday, after a week in which nobody had expected it to.",
    "Shares lost much of their value.",
    "She plays the violin in an orchestra.",
    "He practises the piano every evening when the neighbours are out.",
    "Matrix products run fast on systolic arrays.",
    "Tensor processing units multiply matrices quickly.",
    "Yes.",
    "Where is the nearest railway station?",
    "The train to Casablanca leaves at nine.",
    "Bread needs flour, water, salt and time.",
    "Proofs by induction have a base case and a step.",
    "An integer is prime if it has exactly two divisors.",
    "The river froze for the first time in forty years.",
    "Voters went to the polls on Sunday.",
    "Déjà vu is a feeling of having lived through the present situation before.",
    "import torch; x = torch.ones(3, device='tpu')",
    "A very long sentence that goes on and on, with clause after clause, comma after comma, until "
    "the reader has forgotten how it began and can only hope that it will come to an end soon.",
]


@torch.no_grad()
def embed(device: str) -> torch.Tensor:
    model, tokenizer = models.minilm(device)
    batch = tokenizer(SENTENCES, padding=True, truncation=True, return_tensors="pt").to(device)
    hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    return ((hidden * mask).sum(1) / mask.sum(1)).cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="tpu")
    args = parser.parse_args()
    on_tpu = torch.device(args.device).type == "tpu"
    checks = models.Checks()
    if on_tpu:
        torch.tpu.clear_fallbacks()
    expected, found = embed("cpu").double(), embed(args.device).double()
    least = torch.nn.functional.cosine_similarity(expected, found).min().item()
    checks.add(
        f"least cosine similarity of {len(SENTENCES)} sentences", f"{least:.7f}", least > 0.9999
    )
    if on_tpu:
        checks.add_fallbacks()
    checks.finish()


if __name__ == "__main__":
    main()
