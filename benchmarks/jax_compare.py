#!/usr/bin/env python3
"""Our programs against JAX's, by the TPU's own compiler: a Llama layer and a training step.

usage: jax_compare.py --jax PYTHON [--topology v5e:1x1 ...] [--small] [--page docs/jax.md]
PYTHON is an interpreter that has jax; jax_models.py runs there and holds the same models. Both
sides' modules are compiled by libtpu, without a TPU. Exits with 1 if bytes accessed, peak memory or
estimated cycles of ours are more than 1.05 times JAX's.
"""

import argparse
import dataclasses
import hashlib
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import jax_models
import torch
import torch.nn.functional as F
from jax_models import OPTIMIZER, Sizes
from torch import nn
from torch.optim.adamw import adamw

from torch_tpu import _C
from torch_tpu.aot import ModuleReport, Status, compile_modules

LIMIT = 1.05
# Precision of float32 matrix products: JAX's name and PyTorch's.
PRECISIONS = {"highest": "highest", "default": "medium"}
MEASURES = {
    "bytes_accessed": "bytes accessed",
    "peak_bytes": "peak memory",
    "estimated_cycles": "estimated cycles",
}


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x: [batch, length, heads, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]


class Layer(nn.Module):
    def __init__(self, s: Sizes):
        super().__init__()
        self.s = s
        self.input_norm = nn.RMSNorm(s.hidden, s.eps)
        self.q = nn.Linear(s.hidden, s.heads * s.head_dim, bias=False)
        self.k = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.v = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.o = nn.Linear(s.heads * s.head_dim, s.hidden, bias=False)
        self.post_norm = nn.RMSNorm(s.hidden, s.eps)
        self.gate = nn.Linear(s.hidden, s.intermediate, bias=False)
        self.up = nn.Linear(s.hidden, s.intermediate, bias=False)
        self.down = nn.Linear(s.intermediate, s.hidden, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        h = self.input_norm(x)
        q, k, v = (f(h).view(batch, length, -1, self.s.head_dim) for f in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(batch, length, -1))
        h = self.post_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, s: Sizes):
        super().__init__()
        self.s = s
        self.embedding = nn.Embedding(s.vocabulary, s.hidden)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.hidden, s.eps)
        self.head = nn.Linear(s.hidden, s.vocabulary, bias=False)

    def forward(self, tokens, targets):
        s, device = self.s, tokens.device
        x = self.embedding(tokens)
        steps = torch.arange(0, s.head_dim, 2, dtype=torch.float32, device=device) / s.head_dim
        angles = torch.outer(
            torch.arange(s.length, dtype=torch.float32, device=device), s.theta**-steps
        )
        angles = torch.cat([angles, angles], dim=-1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def write_layer(s: Sizes, dtype: torch.dtype) -> str:
    with torch.device("meta"):
        model = Layer(s).to(dtype)
    names = list(model.state_dict())

    def body(inputs):
        state, (x, cos, sin) = inputs[: len(names)], inputs[len(names) :]
        parameters = dict(zip(names, state, strict=True))
        return [torch.func.functional_call(model, parameters, (x, cos, sin))]

    shapes = [p.shape for p in model.state_dict().values()]
    shapes += [(s.batch, s.length, s.hidden), (s.length, s.head_dim), (s.length, s.head_dim)]
    inputs = [torch.empty(shape, dtype=dtype, device="tpu") for shape in shapes]
    with torch.no_grad():
        return _C.Graph("layer", body).write(inputs, "tpu")["module"]


def write_step(s: Sizes, dtype: torch.dtype) -> str:
    with torch.device("meta"):
        model = Llama(s).to(dtype)
    names = [name for name, _ in model.named_parameters()]
    n = len(names)

    def body(inputs):
        params, means, squares, steps = (inputs[i * n : (i + 1) * n] for i in range(4))
        tokens, targets = inputs[4 * n :]
        with torch.enable_grad():
            leaves = [p.detach().requires_grad_() for p in params]
            named = dict(zip(names, leaves, strict=True))
            loss = torch.func.functional_call(model, named, (tokens, targets))
            grads = torch.autograd.grad(loss, leaves)
        adamw(
            params,
            list(grads),
            means,
            squares,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=OPTIMIZER.beta1,
            beta2=OPTIMIZER.beta2,
            lr=OPTIMIZER.rate,
            weight_decay=OPTIMIZER.decay,
            eps=OPTIMIZER.eps,
            maximize=False,
        )
        return [loss.detach()]

    def empty(*shape, of=dtype):
        return torch.empty(shape, dtype=of, device="tpu")

    inputs = [empty(*p.shape) for _ in range(3) for p in model.parameters()]
    inputs += [empty(of=torch.float32) for _ in names]
    inputs += [empty(s.batch, s.length, of=torch.int64) for _ in range(2)]
    with torch.no_grad():
        return _C.Graph("step", body).write(inputs, "tpu")["module"]


def write_ours(directory: Path, small: bool) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for dtype, precision in jax_models.VARIANTS:
        torch.set_float32_matmul_precision(PRECISIONS[precision])
        for case, write in (("layer", write_layer), ("step", write_step)):
            text = write(jax_models.sizes_of(case, small), getattr(torch, dtype))
            (directory / jax_models.file_name(case, dtype, precision)).write_text(text)


@dataclasses.dataclass
class Line:
    """One module of each side, compiled for one topology."""

    topology: str
    case: str
    dtype: str
    precision: str
    ours: ModuleReport
    theirs: ModuleReport

    @property
    def name(self) -> str:
        precision = f", {PRECISIONS[self.precision]} precision" if self.dtype == "float32" else ""
        return f"{self.case}, {self.dtype}{precision}, {self.topology}"

    def figures(self, measure: str) -> tuple[float | None, float | None]:
        """Ours and JAX's; None where the module does not compile."""
        return getattr(self.ours, measure), getattr(self.theirs, measure)

    def ratio(self, measure: str) -> float:
        ours, theirs = self.figures(measure)
        return ours / theirs if ours is not None and theirs else math.inf


class Results:
    """Reports that are kept, so that a run may be interrupted: a module of the same text is not
    compiled again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept = json.loads(path.read_text()) if path.exists() else {}

    @staticmethod
    def _key(file: Path, topology: str) -> str:
        return f"{topology} {hashlib.sha256(file.read_bytes()).hexdigest()}"

    def find(self, file: Path, topology: str) -> ModuleReport | None:
        kept = self.kept.get(self._key(file, topology))
        return kept and ModuleReport(**{**kept, "status": Status(kept["status"])})

    def add(self, report: ModuleReport) -> None:
        self.kept[self._key(Path(report.file), report.topology)] = report.as_dict()
        self.path.write_text(json.dumps(self.kept, indent=1) + "\n")


def compare(directory: Path, topologies: list[str], results: Results) -> list[Line]:
    lines = []
    for topology in topologies:
        names = [
            (case, dtype, precision)
            for case in jax_models.CASES
            for dtype, precision in jax_models.VARIANTS
        ]
        files = [
            directory / side / jax_models.file_name(*name)
            for name in names
            for side in ("ours", "jax")
        ]

        def show(report: ModuleReport) -> None:
            path = Path(report.file)
            result = (
                f"in {report.seconds:.0f} s" if report.ok else f"{report.status}: {report.message}"
            )
            print(f"{path.parent.name} {path.stem} {report.topology} {result}", flush=True)
            results.add(report)

        # Float32 products of highest precision take the compiler minutes.
        missing = [file for file in files if results.find(file, topology) is None]
        compile_modules(missing, topology, timeout=3600, on_report=show)
        for i, name in enumerate(names):
            ours, theirs = (results.find(file, topology) for file in files[2 * i : 2 * i + 2])
            lines.append(Line(topology, *name, ours, theirs))
    return lines


def table(lines: list[Line]) -> str:
    """A Markdown table, also fit to be read as it is."""
    rows = [("", *(f"{name}: ours / JAX" for name in MEASURES.values()))]
    for line in lines:
        cells = [line.name]
        for measure in MEASURES:
            ours, theirs = line.figures(measure)
            cells.append(f"{ours or 0:.4g} / {theirs or 0:.4g} = {line.ratio(measure):.3f}")
        rows.append(tuple(cells))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    texts = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    texts.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(texts)


PAGE = """# Our programs and JAX's, by the TPU's compiler

Written by `make jax-compare` (`benchmarks/jax_compare.py`). The same models in PyTorch, traced by
this package, and in plain JAX {jax} (`benchmarks/jax_models.py`), both compiled by libtpu for chips
that are only described: nothing ran on a TPU. Bytes are of one device. Estimated cycles are the
compiler's estimates for single instructions, added up as they are; that of a scatter, which it
does not estimate, is left out on both sides.

- **layer**: forward of one decoder layer in the sizes of Llama-3.2-1B, batch 1, 2,048 tokens
- **step**: forward, backward and AdamW of a Llama of 4 layers, width 512, vocabulary 8,192, batch
  8 x 256 tokens, parameters and optimizer states donated
- precision: `torch.set_float32_matmul_precision("highest")`, the default, is compared with JAX's
  `jax_default_matmul_precision` "highest", and "medium" with JAX's default

{table}

{verdict}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jax", required=True, metavar="PYTHON", help="an interpreter with jax")
    parser.add_argument("--topology", nargs="+", default=["v5e:1x1", "v6e:1x1"])
    parser.add_argument("--small", action="store_true", help="sizes for a quick check")
    parser.add_argument("--modules", type=Path, help="keep the modules in this directory")
    parser.add_argument("--page", type=Path, help="Markdown page to write")
    parser.add_argument("--results", type=Path, help="keep what was compiled in this file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = args.modules or Path(temporary)
        script = Path(jax_models.__file__)
        command = [args.jax, script, directory / "jax", *(["--small"] if args.small else [])]
        jax_version = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()
        write_ours(directory / "ours", args.small)
        results = Results(args.results or directory / "results.json")
        lines = compare(directory, args.topology, results)
    print(table(lines))
    over = [
        f"{line.name}: {what} {line.ratio(measure):.3f}"
        for line in lines
        for measure, what in MEASURES.items()
        if not line.ratio(measure) <= LIMIT
    ]
    verdict = f"Every ratio is at most {LIMIT}."
    if over:
        verdict = f"Over {LIMIT}:\n\n" + "\n".join(f"- {text}" for text in over)
    print(verdict)
    if args.page:
        args.page.write_text(PAGE.format(jax=jax_version, table=table(lines), verdict=verdict))
    sys.exit(1 if over else 0)


if __name__ == "__main__":
    main()
