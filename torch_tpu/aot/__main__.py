"""The command line of `torch_tpu.aot`."""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .compiler import compile_modules
from .report import ModuleReport, Status
from .text import format_bytes, format_number


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
    return _compile(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
