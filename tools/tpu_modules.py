#!/usr/bin/env python3
"""Compiles dumped modules for a TPU and writes what came of it, operator by operator.

usage: tpu_modules.py DIRECTORY... [--topology v5e:1x1] [--out docs/tpu_modules.json] [--sample N]
The directories hold what TORCH_TPU_DUMP wrote with TORCH_TPU_DUMP_PLATFORM=tpu. Exits with 1 if
fewer than 97 % of the modules are accepted.
"""

import argparse
import importlib.metadata
import json
import random
import re
import sys
from collections import defaultdict
from pathlib import Path

from rich.progress import track

from torch_tpu.aot import compile_modules

WANTED = 0.97


def operator_of(path: Path) -> str:
    """Dumped modules are named OPERATOR-HASH.mlir."""
    return path.stem.rsplit("-", 1)[0]


def reason_of(message: str) -> str:
    """The compiler's first line without what differs from module to module: addresses, and the
    instruction it stopped at."""
    lines = [line for line in message.splitlines() if line.strip()] or [""]
    line = re.sub(r"0x[0-9a-f]+|\b\d{4,}\b", "N", lines[0].split(": %")[0])
    return line[:300]


def element_types(text: str) -> list[str]:
    """Element types of the parameters of a module's main function."""
    signature = text[text.find("@main") :].split("->", 1)[0]
    return sorted(set(re.findall(r"tensor<(?:\d+x)*([a-zA-Z0-9<>]+)>", signature)))


def main() -> int:
    p = argparse.ArgumentParser()
    p.add_argument("directories", nargs="+", type=Path)
    p.add_argument("--topology", default="v5e:1x1")
    p.add_argument("--out", type=Path)
    p.add_argument("--sample", type=int, help="only so many modules, drawn with --seed")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--jobs", type=int)
    a = p.parse_args()
    # A module dumped for several dtypes' runs has the same name in each directory.
    files = {path.name: path for d in a.directories for path in sorted(d.glob("*.mlir"))}
    paths = [files[name] for name in sorted(files)]
    if a.sample and a.sample < len(paths):
        paths = sorted(random.Random(a.seed).sample(paths, a.sample))
    bar = iter(track(range(len(paths)), f"compiling for {a.topology}"))
    reports = compile_modules(
        paths, a.topology, jobs=a.jobs, timeout=300, on_report=lambda _: next(bar, None)
    )
    operators = defaultdict(lambda: [0, 0])
    refused = []
    for path, report in zip(paths, reports, strict=True):
        operators[operator_of(path)][not report.ok] += 1
        if not report.ok:
            refused.append(
                {
                    "operator": operator_of(path),
                    "types": element_types(path.read_text()),
                    "result": str(report.status),
                    "reason": reason_of(report.message),
                    "module": path.stem.rsplit("-", 1)[1],
                }
            )
    accepted = len(paths) - len(refused)
    result = {
        "compiler": "libtpu " + importlib.metadata.version("libtpu"),
        "topology": a.topology,
        "modules": len(paths),
        "accepted": accepted,
        "operators": {name: operators[name] for name in sorted(operators)},
        "refused": sorted(refused, key=lambda r: (r["operator"], r["module"])),
    }
    if a.out:
        a.out.write_text(json.dumps(result, indent=1) + "\n")
    for r in refused:
        print(f"{r['operator']} ({', '.join(r['types'])}): {r['result']}: {r['reason']}")
    print(f"{accepted} of {len(paths)} modules accepted ({accepted / max(1, len(paths)):.1%})")
    return 0 if paths and accepted >= WANTED * len(paths) else 1


if __name__ == "__main__":
    sys.exit(main())
