"""Plans the models of examples/configs for single chips and writes docs/plans.md.

Results are kept in docs/plans.json, one entry a plan, so that a run may be interrupted: plans that
are there are not made again unless --again names them.
"""

import argparse
import fnmatch
import json
import time
from pathlib import Path

import torch

from torch_tpu.aot import Status
from torch_tpu.aot.model_source import Call, from_config
from torch_tpu.aot.plan import compile_lowered, lower
from torch_tpu.aot.plan_report import PlanReport
from torch_tpu.aot.text import format_bytes, format_number, format_seconds

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "docs/plans.json", ROOT / "docs/plans.md"
MODELS = ("smollm2-135m", "llama-3.2-1b", "llama-3.1-8b")
TOPOLOGIES = ("v5e:1x1", "v5p:1x1x1", "v6e:1x1")
KINDS = {
    "decode": Call(cache=2048),
    "forward": Call(seq=2048),
    "train": Call(seq=2048, train=True),
}
KEPT = 5  # buffers of each plan in the page


def make(kind: str, model: str, topologies: list[str], timeout: float, results: dict) -> None:
    start = time.monotonic()
    call = KINDS[kind]
    source = from_config(ROOT / f"examples/configs/{model}.json", call)
    lowered = lower(source.model, source.args, source.kwargs, train=call.train, name=source.name)
    seconds = time.monotonic() - start
    for topology in topologies:
        report = compile_lowered(lowered, topology, trace_seconds=seconds, timeout=timeout).report
        report.inputs, report.outputs, report.timeline = [], [], None
        del report.buffers[KEPT:]
        results[f"{model} {kind} {topology}"] = report.as_dict()
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        print(model, kind, topology, report.status, f"{report.compile_seconds:.0f} s", flush=True)


HEAD = """# Plans of real models for single chips

Made by `make plans` (`tools/plans.py`) from the configurations in `examples/configs`: batch 1,
2,048 tokens, bfloat16; a decode step has a static cache of 2,048 tokens; a training step is
forward, backward and AdamW in one program, its states in bfloat16. No weights exist, nothing has
run on a chip: figures are libtpu's, from compiling. Where "code not finished" the compiler was
stopped, on a busy machine; what memory is needed was known by then. Times are of the machine that
made this page. "needed" is what must be free on the device: arguments,
outputs that take no argument's place, temporaries, the program. "at the clock" are the compiler's
estimated cycles, copies between memories not among them; "at published rates" is the larger of
operations at the chip's peak and traffic at its memory's bandwidth, a lower bound.
"""


def _row(key: str, r: PlanReport) -> str:
    model, kind, topology = key.split()
    if r.status == Status.OK:
        verdict = "fits"
    elif r.fits is None:
        verdict = str(r.status)
    elif r.status == Status.TIMEOUT:
        verdict = ("fits" if r.fits else "too large") + ", code not finished"
    else:
        verdict = str(r.status)
    cells = [
        model,
        kind,
        topology,
        verdict,
        f"{format_bytes(r.required_bytes)} of {format_bytes(r.hbm_bytes)}",
        format_bytes(r.argument_bytes),
        format_bytes(r.temporary_bytes),
        format_number(r.flops),
        format_bytes(r.hbm_traffic),
        format_number(r.arithmetic_intensity),
        r.bound or "-",
        format_seconds(r.estimated_seconds),
        format_seconds(r.roofline_seconds),
        f"{r.trace_seconds:.0f} + {r.compile_seconds:.0f} s",
        format_seconds(r.compile_cpu_seconds),
        format_bytes(max(r.host_bytes.values(), default=None)),
    ]
    return "| " + " | ".join(cells) + " |"


COLUMNS = [
    "model",
    "step",
    "chip",
    "result",
    "needed",
    "arguments",
    "temporaries",
    "operations",
    "traffic",
    "operations a byte",
    "bound by",
    "at the clock",
    "at published rates",
    "trace + compile",
    "processor time of the compiler",
    "host memory",
]


def page(results: dict) -> str:
    order = [f"{m} {k} {t}" for m in MODELS for k in KINDS for t in TOPOLOGIES]
    reports = {k: PlanReport.from_dict(results[k]) for k in order if k in results}
    lines = [HEAD, "| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    lines += [_row(key, report) for key, report in reports.items()]
    lines += ["", "## What memory is needed for", ""]
    for key, report in reports.items():
        if "v5e" not in key:
            continue
        lines += [f"### {key}", ""]
        for b in report.buffers:
            what = b.name if b.category == "argument" else b.operator or b.name
            where = f", `{b.source}`" if b.source else ""
            times = f"{b.count} x " if b.count > 1 else ""
            lines.append(
                f"- {format_bytes(b.total)}: {b.category} {times}`{b.shape}` {what}{where}"
            )
        lines += [f"- **{sentence}**" for sentence in report.advice]
        lines.append("")
    absent = [key for key in order if key not in results]
    if absent:
        lines += ["Not planned yet: " + ", ".join(absent) + ".", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help='pattern of "MODEL KIND TOPOLOGY"')
    parser.add_argument("--again", action="store_true", help="also those that have been made")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for the compiler")
    parser.add_argument("--page", action="store_true", help="only the page, from plans.json")
    a = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for kind in () if a.page else KINDS:
        for model in MODELS:
            wanted = [
                t
                for t in TOPOLOGIES
                if fnmatch.fnmatch(f"{model} {kind} {t}", a.only)
                and (a.again or f"{model} {kind} {t}" not in results)
            ]
            if wanted:
                make(kind, model, wanted, a.timeout, results)
    PAGE.write_text(page(results))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
