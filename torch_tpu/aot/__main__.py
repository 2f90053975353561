"""The command line of `torch_tpu.aot`."""

import argparse
import json
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .compiler import compile_modules
from .report import ModuleReport, Status
from .text import format_bytes, format_number
from .topology import resolve_topology


def _table(reports: list[ModuleReport]) -> Table:
    table = Table()
    table.add_column("module", overflow="fold")
    table.add_column("result", overflow="fold")
    for name in ("peak", "flops", "bytes", "cycles", "compiled in"):
        table.add_column(name, justify="right")
    for r in reports:
        result = r.status if r.ok else f"{r.status}: {r.message}"
        table.add_row(
            Path(r.file).name,
            result,
            format_bytes(r.peak_bytes),
            format_number(r.flops),
            format_bytes(r.bytes_accessed),
            format_number(r.estimated_cycles),
            f"{r.seconds:.2f} s",
        )
    return table


def _compile(a: argparse.Namespace) -> int:
    console = Console(stderr=True)
    files = []
    for name in a.files:
        path = Path(name)
        if path.is_dir():
            files += sorted(path.glob("*.mlir"))
        elif path.exists():
            files.append(path)
        else:
            console.print(f"{name}: no such file", style="red", markup=False)
            return 2
    columns = (
        TextColumn("compiling for " + a.topology),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[failed]}"),
    )
    failed = 0
    try:
        with Progress(*columns, console=console, disable=a.quiet) as progress:
            task = progress.add_task("", total=len(files), failed="")

            def on_report(report: ModuleReport) -> None:
                nonlocal failed
                failed += not report.ok
                progress.update(task, advance=1, failed=f"{failed} failed" if failed else "")

            reports = compile_modules(
                files, a.topology, jobs=a.jobs, timeout=a.timeout, on_report=on_report
            )
    except (ValueError, ModuleNotFoundError) as error:
        console.print(str(error), style="red", markup=False)
        return 2
    if a.json:
        json.dump([r.as_dict() for r in reports], sys.stdout, indent=1)
        print()
    else:
        shown = reports if a.all or len(reports) <= 20 else [r for r in reports if not r.ok]
        if shown:
            Console().print(_table(shown))
        counts = Counter(r.status for r in reports)
        print(", ".join(f"{counts[s]} {s}" for s in Status if counts[s]))
    return 0 if all(r.ok for r in reports) else 1


def _plan(a: argparse.Namespace) -> int:
    import torch

    from .model_source import Call, find_model
    from .parallel import distribute
    from .plan import compile
    from .ranks import world
    from .table import renderable

    console = Console(stderr=True)
    dtype = getattr(torch, a.dtype, None)
    if not isinstance(dtype, torch.dtype):
        console.print(f"{a.dtype}: no such dtype", style="red", markup=False)
        return 2
    call = Call(
        batch=a.batch,
        seq=a.seq,
        dtype=dtype,
        train=a.train,
        cache=a.cache if a.decode else None,
        checkpointing=a.checkpointing,
        tensor_parallel=a.tp,
    )
    try:
        resolve_topology(a.topology)
        source = find_model(a.model, call)
        quiet = a.quiet or not console.is_terminal
        ranks = a.fsdp * a.tp
        with (
            nullcontext() if quiet else console.status(f"planning for {a.topology}"),
            nullcontext() if ranks == 1 else world(a.topology, ranks),
        ):
            if ranks != 1:
                distribute(source, fsdp=a.fsdp, tp=a.tp)
            program = compile(
                source.model,
                source.args,
                source.kwargs,
                topology=a.topology,
                train=a.train,
                name=source.name,
                timeout=a.timeout,
                dump_hlo=a.dump_hlo,
                dump_stablehlo=a.dump_stablehlo,
            )
    except (ValueError, ModuleNotFoundError, RuntimeError) as error:
        console.print(str(error), style="red", markup=False)
        return 2
    report = program.report
    if a.html:
        report.html(a.html)
    if a.save and report.status == Status.OK:
        program.save(a.save)
    if a.json:
        print(report.json())
    else:
        Console().print(renderable(report))
    return 0 if report.fits else 1


def _add_plan(commands) -> None:
    p = commands.add_parser(
        "plan",
        help="what a model needs on a chip and what limits it there",
        description="Compiles a model for one chip, or as the part of one rank of several, without "
        "its weights. Exits with 1 if it does not fit or does not compile, with 2 if it could not "
        "be tried.",
    )
    p.add_argument(
        "model",
        metavar="MODEL_CONFIG",
        help="a Transformers configuration file, or module:function that returns "
        "(model, args, kwargs)",
    )
    p.add_argument("--topology", default="v5e:1x1", help="generation and chips (default: v5e:1x1)")
    p.add_argument("--batch", type=int, default=1, help="sequences (default: 1)")
    p.add_argument("--seq", type=int, default=2048, help="tokens a sequence (default: 2048)")
    p.add_argument("--dtype", default="bfloat16", help="of weights and activations")
    kind = p.add_mutually_exclusive_group()
    kind.add_argument("--train", action="store_true", help="forward, backward and AdamW")
    kind.add_argument("--decode", action="store_true", help="one token with a static cache")
    p.add_argument("--cache", type=int, default=2048, help="tokens in the cache (default: 2048)")
    p.add_argument("--checkpointing", action="store_true", help="activation checkpointing")
    p.add_argument("--fsdp", type=int, default=1, metavar="N", help="shard weights over N ranks")
    p.add_argument("--tp", type=int, default=1, metavar="N", help="tensor parallelism of N ranks")
    p.add_argument("--timeout", type=float, default=600.0, help="seconds for the compiler")
    p.add_argument("--json", action="store_true", help="the report as JSON on stdout")
    p.add_argument("--html", metavar="FILE", help="the report as a page, memory over time in it")
    p.add_argument("--save", metavar="FILE", help="the compiled program")
    p.add_argument("--dump-hlo", metavar="FILE", help="the optimized program as text")
    p.add_argument("--dump-stablehlo", metavar="FILE", help="what was compiled")
    p.add_argument("--quiet", action="store_true", help="no sign of life while compiling")
    p.set_defaults(run=_plan)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m torch_tpu.aot", description="Compile for TPUs without one, with libtpu."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    c = commands.add_parser(
        "compile",
        help="compile StableHLO modules and report what they need",
        description="Compiles StableHLO modules, such as TORCH_TPU_DUMP writes. Exits with 1 if "
        "one fails, with 2 if nothing could be tried.",
    )
    c.add_argument("files", nargs="+", metavar="FILE", help="a module, or a directory of *.mlir")
    c.add_argument("--topology", default="v5e:1x1", help="generation and chips (default: v5e:1x1)")
    c.add_argument("--jobs", type=int, help="compiling processes")
    c.add_argument("--timeout", type=float, default=600.0, help="seconds for one module")
    c.add_argument("--json", action="store_true", help="reports as JSON on stdout")
    c.add_argument("--all", action="store_true", help="show all modules, not only failed ones")
    c.add_argument("--quiet", action="store_true", help="no progress bar")
    c.set_defaults(run=_compile)
    _add_plan(commands)
    arguments = parser.parse_args()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
