"""The command line of `torch_tpu.distributed`, one copy of it on each rank:

torchrun --nproc-per-node=4 -m torch_tpu.distributed check
"""

import argparse
import os
import sys
import warnings

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from rich.text import Text

from torch_tpu.aot.text import format_bytes, format_seconds

from . import check


def _table(results: list[check.Result], quick: bool) -> Table:
    info = torch.tpu.plugin_info()
    table = Table(
        title=f"{dist.get_world_size()} ranks on {info['platform']}"
        + (" (quick: times are rough)" if quick else "")
    )
    table.add_column("collective", no_wrap=True)
    for name in ("message", "time", "bus bandwidth"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("result", overflow="fold")
    previous = None
    for r in results:
        if previous not in (None, r.name):
            table.add_section()
        table.add_row(
            "" if previous == r.name else r.name,
            format_bytes(r.bytes),
            format_seconds(r.seconds),
            format_bytes(r.bandwidth) + "/s",
            Text("right", style="green") if r.error is None else Text(r.error, style="red"),
        )
        previous = r.name
    return table


def _check(a: argparse.Namespace) -> int:
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        print("this needs two ranks: " + __doc__.strip().splitlines()[-1], file=sys.stderr)
        return 2
    # PyTorch asks for a device_id, which each of our processes has only one of.
    warnings.filterwarnings("ignore", message="barrier")
    dist.init_process_group("tpu_dist")
    sizes = check.QUICK_SIZES if a.quick else check.SIZES
    results = check.run(sizes, repeats=3 if a.quick else 5, corrupt=a.corrupt)
    wrong = [r for r in results if r.error]
    if dist.get_rank() == 0:
        console = Console(width=None if sys.stdout.isatty() else 110)
        console.print(_table(results, a.quick))
        console.print(
            f"{len(wrong)} of {len(results)} results are wrong" if wrong else "all results right"
        )
    dist.barrier()
    dist.destroy_process_group()
    return 1 if wrong else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_tpu.distributed")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("check", help="run every collective among the ranks")
    command.add_argument("--quick", action="store_true", help="two sizes instead of nine")
    command.add_argument(
        "--corrupt", metavar="COLLECTIVE", help="spoil one result, to see the check fail"
    )
    command.set_defaults(run=_check)
    a = parser.parse_args(arguments)
    return a.run(a)


if __name__ == "__main__":
    sys.exit(main())
