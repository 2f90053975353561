"""Errors of elementwise functions in units of the last place: `make numerics`.

Each function is evaluated over a dense sample of its domain, on the device and on the CPU, in
float32 and bfloat16, and compared to the CPU's float64 result for the same operands, rounded to the
dtype. Writes a page, docs/numerics.md by default.
"""

import argparse
import math
import warnings
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

# Half of them log-spaced over all magnitudes of both signs, half near 1.
POINTS = 200_000
DTYPES = (torch.float32, torch.bfloat16)
LARGE = 16.0  # units in the last place beyond which a row is set in bold

ANY = (-math.inf, math.inf)
UNARY = {
    "exp exp2 expm1 sin cos tan atan sinh cosh tanh asinh sigmoid erf erfc": ANY,
    "rad2deg deg2rad sinc square reciprocal": ANY,
    "log log2 log10 sqrt rsqrt": (0.0, math.inf),
    "log1p": (-1.0, math.inf),
    "asin acos atanh erfinv": (-1.0, 1.0),
    "acosh": (1.0, math.inf),
    "logit": (0.0, 1.0),
    "lgamma digamma": ANY,
    "special.i0e special.i1e special.i0 special.i1 special.erfcx special.ndtr": ANY,
    "special.log_ndtr": ANY,
    "special.ndtri": (0.0, 1.0),
    "special.entr": (0.0, math.inf),
    "special.bessel_j0 special.bessel_j1 special.bessel_y0 special.bessel_y1": (0.0, 1e4),
    "special.modified_bessel_k0 special.modified_bessel_k1": (0.0, math.inf),
    "special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1": (0.0, math.inf),
    "special.spherical_bessel_j0": ANY,
    "special.airy_ai": (-20.0, math.inf),
    "nn.functional.silu nn.functional.gelu nn.functional.mish nn.functional.softplus": ANY,
    "nn.functional.elu nn.functional.selu nn.functional.logsigmoid nn.functional.tanhshrink": ANY,
    "nn.functional.softsign nn.functional.hardswish": ANY,
}
BINARY = {
    "add sub mul div hypot logaddexp logaddexp2 atan2": ANY,
    "fmod remainder": (-1e3, 1e3),
    "pow": (0.0, math.inf),
    "xlogy special.xlog1py": (0.0, math.inf),
    "special.zeta": (1.0, 100.0),
}


@dataclass
class Worst:
    """The largest error of a function, and the operands at which it was found."""

    ulps: float
    operands: tuple
    special: int  # results that are infinite or NaN on one side only

    def text(self):
        if self.ulps == 0 and not self.special:
            return "0"
        number = f"{self.ulps:.2f}" if self.ulps < 100 else f"{self.ulps:.2g}"
        if self.ulps > LARGE:
            number = f"**{number}**"
        return f"{number} at {', '.join(f'{x:.8g}' for x in self.operands)}"


def function(name):
    found = torch
    for part in name.split("."):
        found = getattr(found, part)
    return found


def sample(dtype, domain, seed=0):
    """Points of a domain: log-spaced over all magnitudes, even near 1, and next to its ends."""
    low, high = domain
    generator = torch.Generator().manual_seed(seed)
    smallest, largest = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max
    magnitudes = torch.rand(POINTS // 4, generator=generator, dtype=torch.float64)
    span = math.log(largest / smallest)
    magnitudes = smallest * torch.exp(magnitudes * span)
    near = (torch.rand(POINTS // 4, generator=generator, dtype=torch.float64) - 0.5) * 40
    edges = [v for v in (low, high, 0.0, 1.0, -1.0) if math.isfinite(v)]
    steps = torch.exp2(-torch.arange(0.0, 40.0, dtype=torch.float64))
    around = [edge + sign * steps for edge in edges for sign in (1, -1)]
    x = torch.cat([magnitudes, -magnitudes, near, near / 10, *around]).to(dtype)
    x = x[torch.isfinite(x) & ((x == 0) | (x.abs() >= smallest))]
    x = x[(x.double() >= low) & (x.double() <= high)]
    if dtype == torch.bfloat16:
        x = x.unique()
    return x[torch.randperm(len(x), generator=generator)]


def ulps(actual, exact, dtype):
    """Distance of `actual` from `exact` in units of the last place of `dtype` at `exact`."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(exact.abs().clamp(min=info.smallest_normal)).exponent - 1
    unit = info.eps * torch.exp2(exponent.double())
    return (actual.double() - exact).abs() / unit


def worst(actual, exact, operands, dtype):
    """Where the result is a finite normal number; what is subnormal, XLA flushes."""
    info = torch.finfo(dtype)
    rounded = exact.to(dtype)
    counted = rounded.isfinite() & (exact.abs() >= info.smallest_normal)
    unlike = counted & ~actual.isfinite()
    error = torch.where(counted & actual.isfinite(), ulps(actual, exact, dtype), 0)
    if error.numel() == 0:
        return Worst(0.0, (), 0)
    at = int(error.argmax())
    return Worst(error[at].item(), tuple(x[at].item() for x in operands), int(unlike.sum()))


def measure(name, operands, dtype):
    """The worst errors of the device and of the CPU; None where the CPU has no such kernel."""
    f = function(name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exact = f(*(x.double() for x in operands))
            here = f(*(x.to("tpu") for x in operands)).cpu()
    except NotImplementedError:
        return None
    ours = worst(here, exact, operands, dtype)
    try:
        theirs = worst(f(*operands), exact, operands, dtype)
    except NotImplementedError:
        theirs = None
    return ours, theirs


def rows(names, domain, dtype, arity, fallbacks):
    for name in names.split():
        first = sample(dtype, domain)
        operands = (first,)
        if arity == 2:
            other = sample(dtype, domain, seed=1)
            count = min(len(first), len(other))
            operands = (first[:count], other[:count])
            if dtype == torch.bfloat16:  # few numbers, many pairs
                repeated = [x.repeat(8)[: count * 8] for x in operands]
                operands = (repeated[0], repeated[1][torch.randperm(len(repeated[1]))])
        before = torch.tpu.fallback_count()
        found = measure(name, operands, dtype)
        if found is None:
            continue
        if torch.tpu.fallback_count() != before:
            fallbacks.append(name)
            continue
        ours, theirs = found
        lost = ours.special, theirs.special if theirs else 0
        note = f"{lost[0]} / {lost[1]}" if any(lost) else ""
        cpu = "no kernel" if theirs is None else theirs.text()
        yield f"| `{name}` | {ours.text()} | {cpu} | {note} |"


HEAD = """# Numerics

Largest errors of elementwise functions, in units of the last place (ulp) of the result's dtype,
against CPU PyTorch's float64 result for the same operands. A correctly rounded result is within
0.5 ulp. Beside each error stand the operands at which it was found, and CPU PyTorch's own error in
the same dtype.

Written by `make numerics` on the plugin {plugin}, with PyTorch {torch}: XLA:CPU,
the stand-in device. XLA expands these functions for each target in its own way, and nothing here
ran on a TPU.

- The sample has {points:,} points: log-spaced over all normal numbers of the dtype, even over
  [-20, 20] and [-2, 2], and towards 0, 1, -1 and the ends of the function's domain. Of bfloat16 it
  has each number once.
- Operands and results that are subnormal are left out. XLA flushes subnormal numbers to zero:
  `x * 1` of a subnormal `x` may be 0, and comparisons take it for 0. CPU PyTorch keeps them. A
  result just above the smallest normal number may be 0 for the same reason, where a step on the way
  to it is subnormal (2^24 ulp of float32, 256 of bfloat16).
- "Lost" counts finite results that are infinite or NaN, on the device / on the CPU: an intermediate
  overflows.
- Errors above {large:.0f} ulp are bold. Near a zero of a function other than at 0 (multiples of pi
  of `sinc`, 1 and 2 of `lgamma`) an error of many units of a tiny result is small in itself.
"""


def page():
    fallbacks = []
    torch.zeros(1, device="tpu")  # loads the plugin
    plugin = torch.tpu.plugin_info()
    head = {"plugin": describe(plugin), "torch": torch.__version__}
    text = [HEAD.format(**head, points=POINTS, large=LARGE)]
    for dtype in DTYPES:
        text.append(f"\n## {str(dtype).removeprefix('torch.')}\n")
        text.append("| function | device, ulp | CPU, ulp | lost |")
        text.append("|---|---|---|---|")
        for arity, table in ((1, UNARY), (2, BINARY)):
            for names, domain in table.items():
                text += rows(names, domain, dtype, arity, fallbacks)
    if fallbacks:
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(fallbacks))
        text.append(f"\nWithout a rule, so that the CPU computes them: {names}.")
    return "\n".join(text) + "\n"


def describe(plugin):
    names = ("fastatomstruct-xla-cpu", "xla-cpu-pjrt", "lammps-jax-pjrt-cpu", "libtpu")
    path = plugin["path"]
    for name in names:
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            continue
        if any(Path(path).name == Path(str(file)).name for file in files):
            return f"`{name}` {metadata.version(name)}"
    return f"`{Path(path).name}`"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parent.parent / "docs" / "numerics.md"
    parser.add_argument("--output", type=Path, default=default)
    arguments = parser.parse_args()
    arguments.output.write_text(page())


if __name__ == "__main__":
    main()
