"""Figures as people read them."""


def format_bytes(count: float | None) -> str:
    """In binary units with four digits; "-" for None."""
    if count is None:
        return "-"
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def format_number(count: float | None) -> str:
    return "-" if count is None else f"{count:.4g}"


def format_seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{seconds * factor:.4g} {unit}"
    return f"{seconds:.4g} s"
