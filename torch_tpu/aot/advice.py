"""What to change about a program that needs more memory than the chip has."""

import math

from .chips import CHIPS
from .plan_report import PlanReport
from .report import Status
from .text import format_bytes

# A device is never filled by arguments alone.
USABLE_BY_ARGUMENTS = 0.8


def _chips_for(total: int, hbm: int) -> int:
    """Chips that hold `total` evenly sharded, rounded up to a power of two as slices are."""
    return 2 ** math.ceil(math.log2(max(1.0, total / hbm)))


def _roles(report: PlanReport) -> str:
    shares = sorted(report.argument_bytes_by_role.items(), key=lambda item: -item[1])
    return ", ".join(f"{format_bytes(size)} {role}" for role, size in shares if size)


def advise(report: PlanReport) -> list[str]:
    """Sentences, the most effective change first; none for a program that fits."""
    if report.status != Status.OUT_OF_MEMORY or report.required_bytes is None:
        return []
    hbm = report.hbm_bytes or report.chip.hbm_bytes
    required, arguments = report.required_bytes, report.argument_bytes or 0
    results = (report.output_bytes or 0) - (report.alias_bytes or 0)
    temporary = report.temporary_bytes or 0
    training = "optimizer state" in report.argument_bytes_by_role
    advice = []
    roles = f" ({_roles(report)})" if report.argument_bytes_by_role else ""
    if arguments > hbm:
        chips = _chips_for(arguments, int(hbm * USABLE_BY_ARGUMENTS))
        advice.append(
            f"The arguments alone are {format_bytes(arguments)}{roles}, the device has "
            f"{format_bytes(hbm)}: shard them over at least {chips} chips (FSDP or tensor "
            f"parallelism: plan --fsdp {chips} or --tp {chips})"
            + (
                ", or train fewer parameters (LoRA)."
                if training
                else ", or use a smaller dtype (int8 weights take half of bfloat16's)."
            )
        )
    largest = max(
        ("arguments", arguments),
        ("temporaries", temporary),
        ("outputs", results),
        key=lambda x: x[1],
    )[0]
    if largest == "temporaries":
        excess = required - hbm
        advice.append(
            f"Temporaries are the largest part, {format_bytes(temporary)}, and "
            f"{format_bytes(excess)} too much: a smaller batch or a shorter sequence shrinks them"
            + (
                "; so does activation checkpointing "
                "(model.gradient_checkpointing_enable(), plan --checkpointing)."
                if training
                else "."
            )
        )
    elif arguments <= hbm and largest == "arguments":
        chips = _chips_for(required, int(hbm * USABLE_BY_ARGUMENTS))
        advice.append(
            f"Arguments are the largest part, {format_bytes(arguments)}{roles}: use a smaller "
            f"dtype or shard them over {chips} chips."
        )
    elif largest == "outputs":
        advice.append(
            f"Outputs that take no argument's place are the largest part, {format_bytes(results)}: "
            "donate the arguments they replace (donate=...), or return less."
        )
    padded = [b for b in report.buffers if (b.padding or 1) >= 2 and b.total >= 0.05 * hbm]
    if padded:
        worst = max(padded, key=lambda b: b.total)
        advice.append(
            f"{worst.name} {worst.shape} takes {worst.padding:.1f} times the memory of its "
            f"elements ({format_bytes(worst.total)}): the last two dimensions are padded to whole "
            "tiles, keep small ones out of the last place."
        )
    larger = [c.generation for c in CHIPS.values() if c.hbm_bytes >= required and c.hbm_bytes > hbm]
    if larger:
        advice.append(f"One chip of {' or '.join(larger)} has room for it.")
    return advice
