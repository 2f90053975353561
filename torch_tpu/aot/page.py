"""The report as one HTML page that loads nothing."""

from html import escape

from .plan_report import PlanReport, Timeline
from .table import figures, verdict
from .text import format_bytes

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 960, 320, 80, 30, 16
COLORS = {"argument": "#4c78a8", "output": "#72b7b2", "temporary": "#f58518"}

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 62em; padding: 0 1em;
  color: #1b1b1b; background: #fff }
h1 { font-size: 1.4em } h2 { font-size: 1.1em; margin-top: 1.6em }
table { border-collapse: collapse; width: 100% }
td, th { padding: .2em .6em; text-align: left; border-bottom: 1px solid #e4e4e4;
  vertical-align: top; overflow-wrap: anywhere }
td.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
.yes { color: #1a7f37 } .no { color: #b42318 } .note { color: #666 }
svg { width: 100%; height: auto } svg text { font: 12px system-ui, sans-serif; fill: #444 }
code { font-size: .92em }
"""


def _polygon(lower: list[float], upper: list[float], x: list[float], color: str, name: str) -> str:
    points = [*zip(x, upper, strict=True), *reversed([*zip(x, lower, strict=True)])]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    return f'<polygon points="{path}" fill="{color}"><title>{name}</title></polygon>'


def timeline_svg(timeline: Timeline, hbm_bytes: int | None) -> str:
    """Live bytes over the schedule: arguments, outputs and temporaries on top of one another, the
    device's memory as a line where it is near, the peak marked."""
    series = {name: getattr(timeline, name) for name in COLORS}
    totals = [sum(values) for values in zip(*series.values(), strict=True)]
    top = max([*totals, 1])
    if hbm_bytes is not None and hbm_bytes < 3 * top:
        top = max(top, hbm_bytes)
    top *= 1.05
    points = len(totals)

    def x_of(step: float) -> float:
        return LEFT + (WIDTH - LEFT - 10) * step / max(1, timeline.steps)

    def y_of(count: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - count / top)

    # Each point stands for a stretch of the schedule: drawn as a step.
    x: list[float] = []
    for i in range(points):
        x += [x_of(i * timeline.stride), x_of(min((i + 1) * timeline.stride, timeline.steps))]
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="memory over the schedule">'
    ]
    base = [0] * points
    for name, values in series.items():
        above = [a + b for a, b in zip(base, values, strict=True)]
        lower = [y_of(v) for v in base for _ in range(2)]
        upper = [y_of(v) for v in above for _ in range(2)]
        parts.append(_polygon(lower, upper, x, COLORS[name], name))
        base = above
    for i in range(5):
        count = top * i / 4
        y = y_of(count)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        )
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{format_bytes(count)}</text>'
        )
    if hbm_bytes is not None and hbm_bytes <= top:
        y = y_of(hbm_bytes)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#b42318" '
            f'stroke-dasharray="6 4"/><text x="{WIDTH - 14}" y="{y - 5:.1f}" text-anchor="end">'
            f"memory of the device, {format_bytes(hbm_bytes)}</text>"
        )
    peak = x_of(timeline.peak_step + 0.5)
    parts.append(
        f'<line x1="{peak:.1f}" x2="{peak:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#1b1b1b" '
        f'stroke-dasharray="2 3"><title>peak: {escape(timeline.peak_instruction)}</title></line>'
    )
    parts.append(
        f'<text x="{LEFT}" y="{HEIGHT - 8}">instruction 0</text>'
        f'<text x="{WIDTH - 10}" y="{HEIGHT - 8}" text-anchor="end">{timeline.steps}</text>'
    )
    for i, (name, color) in enumerate(COLORS.items()):
        left = 320 + 130 * i
        parts.append(
            f'<rect x="{left}" y="{HEIGHT - 18}" width="12" height="12" fill="{color}"/>'
            f'<text x="{left + 17}" y="{HEIGHT - 8}">{name}</text>'
        )
    return "".join(parts) + "</svg>"


def page(report: PlanReport) -> str:
    title = escape(f"{report.program} on {report.topology}")
    kind = {True: "yes", False: "no", None: "note"}[report.fits]
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f"<style>{_STYLE}</style></head><body>",
        f'<h1>{title}: <span class="{kind}">{escape(verdict(report))}</span></h1>',
    ]
    if report.message:
        parts.append(f"<p><code>{escape(report.message)}</code></p>")
    if report.advice:
        parts.append("<h2>What to change</h2><ul>")
        parts += [f"<li>{escape(sentence)}</li>" for sentence in report.advice]
        parts.append("</ul>")
    if report.timeline is not None:
        parts.append("<h2>Memory over the schedule</h2>")
        parts.append(timeline_svg(report.timeline, report.hbm_bytes))
    parts.append("<h2>Figures, for one device</h2><table>")
    for name, figure, remark in figures(report):
        parts.append(
            f'<tr><td>{escape(name)}</td><td class="n">{escape(figure)}</td>'
            f'<td class="note">{escape(remark)}</td></tr>'
        )
    parts.append("</table>")
    if report.buffers:
        parts.append(
            "<h2>Largest buffers at the peak</h2><table><tr><th>bytes</th>"
            "<th>buffers</th><th>kind</th><th>shape</th><th>name</th><th>operator</th><th>line</th></tr>"
        )
        for b in report.buffers:
            padding = f"; {b.padding:.1f}x padded" if (b.padding or 1) >= 1.5 else ""
            parts.append(
                f'<tr><td class="n">{format_bytes(b.total)}</td>'
                f'<td class="n">{b.count}</td><td>{escape(b.category)}</td>'
                f"<td><code>{escape(b.shape)}</code>"
                f'<span class="note"> {escape(b.layout + padding)}</span></td>'
                f"<td>{escape(b.name)}</td><td>{escape(b.operator)}</td>"
                f"<td><code>{escape(b.source)}</code></td></tr>"
            )
        parts.append("</table>")
    return "".join(parts) + "</body></html>\n"
