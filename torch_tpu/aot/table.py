"""The report as tables on a terminal."""

import io

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from .plan_report import PlanReport
from .report import Status
from .text import format_bytes, format_number, format_seconds

SHOWN_BUFFERS = 10


def verdict(report: PlanReport) -> str:
    if report.status == Status.OK:
        return "fits"
    if report.status == Status.OUT_OF_MEMORY:
        return "does not fit: out of memory"
    if report.status == Status.TIMEOUT and report.fits is not None:
        fits = "fits" if report.fits else "does not fit"
        return f"{fits} by its buffers; the compiler was stopped before it made the program"
    return str(report.status)


def _share(count: int | None, of: int | None) -> str:
    return f"{100 * count / of:.1f} %" if count is not None and of else ""


def figures(report: PlanReport) -> list[tuple[str, str, str]]:
    """Name, figure and remark of what the report says in numbers."""
    chip, hbm = report.chip, report.hbm_bytes
    rows: list[tuple[str, str, str]] = []
    if report.required_bytes is not None:
        roles = ", ".join(
            f"{role} {format_bytes(size)}" for role, size in report.argument_bytes_by_role.items()
        )
        reserved = report.required_bytes - (report.generated_code_bytes or 0)
        idle = reserved - (report.peak_bytes or reserved)
        rows += [
            ("memory of the device", format_bytes(hbm), "what a program may use"),
            (
                "memory needed",
                format_bytes(report.required_bytes),
                _share(report.required_bytes, hbm),
            ),
            ("  arguments", format_bytes(report.argument_bytes), roles),
            ("  outputs", format_bytes(report.output_bytes), ""),
            ("  aliased", format_bytes(report.alias_bytes), "outputs in place of arguments"),
            ("  temporaries", format_bytes(report.temporary_bytes), ""),
            ("  program", format_bytes(report.generated_code_bytes), ""),
            (
                "live at the peak",
                format_bytes(report.peak_bytes),
                f"{format_bytes(idle)} less than is reserved: gaps, and outputs not yet written",
            ),
        ]
    if report.compiler_peak_bytes is not None:
        rows.append(("  the compiler's peak", format_bytes(report.compiler_peak_bytes), ""))
    if report.flops is not None:
        loops = (
            f"; {report.unknown_loops} loops counted once, their trip count being unknown"
            if report.unknown_loops
            else ""
        )
        rows += [
            ("operations", format_number(report.flops), ""),
            (
                "bytes accessed",
                format_bytes(report.bytes_accessed),
                "the compiler's count: by all instructions, in all memories",
            ),
            ("  of the device's memory", format_bytes(report.hbm_traffic), "read and written"),
            (
                "arithmetic intensity",
                format_number(report.arithmetic_intensity),
                f"operations a byte; {chip.generation} is balanced at {chip.ridge:.0f}",
            ),
        ]
        if report.devices > 1:
            rate = f"{chip.ici_bandwidth / 1e9:.0f} GB/s over all links"
            rows.append(
                (
                    "from other devices",
                    format_bytes(report.exchanged_bytes),
                    f"at least, to each of {report.devices}; {rate}",
                )
            )
        rows += [
            ("bound by", report.bound or "-", ""),
            (
                "at the published rates",
                format_seconds(report.roofline_seconds),
                f"{chip.peak_flops / 1e12:.0f} Tflop/s in bfloat16, "
                f"{chip.hbm_bandwidth / 1e9:.0f} GB/s",
            ),
            (
                "estimated cycles",
                format_number(report.estimated_cycles),
                "the compiler's, without copies between memories" + loops,
            ),
            (
                "  at the clock",
                format_seconds(report.estimated_seconds),
                f"{chip.clock / 1e9:.2f} GHz",
            ),
        ]
    if report.trace_seconds is not None:
        rows.append(("traced in", format_seconds(report.trace_seconds), ""))
    cpu = report.compile_cpu_seconds
    spent = "" if cpu is None else f"{format_seconds(cpu)} of a processor; "
    rows.append(("compiled in", format_seconds(report.compile_seconds), spent + report.compiler))
    if report.host_bytes:
        hosts = ", ".join(f"{name} {format_bytes(n)}" for name, n in report.host_bytes.items())
        rows.append(("host memory", format_bytes(max(report.host_bytes.values())), hosts))
    return rows


def render(report: PlanReport, width: int = 110, color: bool = False) -> str:
    """The report as text."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="auto" if color else None,
    )
    console.print(renderable(report))
    return console.file.getvalue().rstrip("\n")


def renderable(report: PlanReport) -> Group:
    """What rich prints: the figures, the largest buffers, advice."""
    style = {True: "green", False: "red", None: "yellow"}[report.fits]
    parts = [Text(f"{report.program} on {report.topology}: {verdict(report)}", style=style)]
    if report.message:
        parts.append(Text(report.message))
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for row in figures(report):
        table.add_row(*(Text(cell) for cell in row))
    parts.append(table)
    if report.buffers:
        buffers = Table(title="largest buffers at the peak", title_justify="left", box=None)
        for name in ("bytes", "buffers"):
            buffers.add_column(name, justify="right", no_wrap=True)
        for name in ("kind", "shape", "what", "line"):
            buffers.add_column(name, overflow="fold")
        for b in report.buffers[:SHOWN_BUFFERS]:
            padding = f" ({b.padding:.1f}x padded)" if (b.padding or 1) >= 1.5 else ""
            what = b.name if b.category == "argument" else b.operator or b.name
            total, count = format_bytes(b.total), str(b.count)
            cells = (total, count, b.category, b.shape + padding, what, b.source)
            buffers.add_row(*(Text(cell) for cell in cells))
        parts.append(buffers)
    parts += [Text("→ " + sentence, style="bold") for sentence in report.advice]
    return Group(*parts)
