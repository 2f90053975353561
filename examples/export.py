#!/usr/bin/env python3
"""A model leaves PyTorch and comes back: exported as StableHLO, saved, loaded and run.

usage: export.py [DIRECTORY] [--device tpu]
Writes classifier.zip, which `torch.tpu.export.load` reads, and classifier.mlir, its StableHLO text,
which every compiler that takes StableHLO reads, here also into a callable.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn


class Classifier(nn.Module):
    """Digits from 8 x 8 images. It counts the images that it has seen."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
        )
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """`images`: float32 [batch, 1, 8, 8]."""
        self.seen += images.shape[0]
        scores = self.layers(images)
        return {"scores": scores, "digits": scores.argmax(dim=-1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", type=Path)
    parser.add_argument("--device", default="tpu")
    args = parser.parse_args()
    directory = args.directory or Path(tempfile.mkdtemp())
    torch.manual_seed(0)
    model, images = Classifier().eval(), torch.randn(4, 1, 8, 8)

    exported = torch.tpu.export.export(model, (images,))
    exported.save(directory / "classifier.zip")
    (directory / "classifier.mlir").write_text(exported.text)
    print(f"{exported} in {directory}")

    # Called like the model. What the model changes is kept, and can be looked at.
    loaded = torch.tpu.export.load(directory / "classifier.zip", device=args.device)
    for _ in range(2):
        found = loaded(images.to(args.device))
    print("digits", found["digits"].tolist(), "of", loaded.state_dict()["seen"].item(), "images")

    # Text knows nothing of the model: all that it needs is an argument, all that it gives a result.
    function = torch.tpu.export.load(directory / "classifier.mlir", device=args.device)
    arguments = [
        (exported.state_dict[slot.name] if slot.kind == "state" else images).to(args.device)
        for slot in exported.signature.parameters
    ]
    results = function(*arguments)
    print("the text gives", [f"{r.dtype} {list(r.shape)}" for r in results])

    expected = model(images)["scores"]
    difference = (found["scores"].cpu() - expected).abs().max().item()
    print(f"largest difference from PyTorch on the CPU: {difference:.1e}")
    if difference > 1e-5:
        raise SystemExit("the exported program computes something else")


if __name__ == "__main__":
    main()
