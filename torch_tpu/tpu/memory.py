"""Memory accounting. Counted are the live buffers of this process, by their size on the device."""

import collections
from typing import Any

import torch

from torch_tpu import _C

from ._lazy import _lazy_init, is_initialized
from ._utils import _get_device_index
from .device import _device_t

OutOfMemoryError = torch.OutOfMemoryError


def memory_allocated(device: _device_t = None) -> int:
    """Bytes held by live tensors."""
    return _C.memory_allocated(_get_device_index(device, optional=True))


def max_memory_allocated(device: _device_t = None) -> int:
    """Largest `memory_allocated` since the start or the last `reset_peak_memory_stats`."""
    return _C.max_memory_allocated(_get_device_index(device, optional=True))


# The runtime hands freed memory back at once, so what is reserved is what is allocated.
memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def reset_peak_memory_stats(device: _device_t = None) -> None:
    """Makes the peak the current value."""
    _C.reset_peak_memory_stats(_get_device_index(device, optional=True))


def reset_accumulated_memory_stats(device: _device_t = None) -> None:
    """Starts the counts of what was allocated and freed, and of failures, anew."""
    _C.reset_accumulated_memory_stats(_get_device_index(device, optional=True))


def memory_stats(device: _device_t = None) -> dict[str, Any]:
    """All counters, flat, named as torch.cuda.memory_stats names them; empty before first use."""
    if not is_initialized():
        return {}
    flat: list[tuple[str, Any]] = []

    def flatten(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                flatten(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat.append((prefix, value))

    flatten("", _C.memory_stats(_get_device_index(device, optional=True)))
    return collections.OrderedDict(sorted(flat))


def mem_get_info(device: _device_t = None) -> tuple[int, int]:
    """Bytes (free, total) on the device. On the CPU plugin: of this machine's memory."""
    _lazy_init()
    return _C.memory_info(_get_device_index(device, optional=True))


def empty_cache() -> None:
    """Gives back what is held without being used: cached scalars and the like."""
    if is_initialized():
        _C.empty_cache()


def ipc_collect() -> None:
    """Does nothing: tpu memory is not shared between processes."""


def _readable(size: int) -> str:
    if abs(size) < 1024:
        return f"{size} B"
    value, power = size / 1024, 0
    while abs(value) >= 1024 and power < 3:
        value, power = value / 1024, power + 1
    return f"{value:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power]}"


def memory_summary(device: _device_t = None, abbreviated: bool = False) -> str:
    """A table of the memory counters for people to read."""
    _lazy_init()
    index = _get_device_index(device, optional=True)
    stats = memory_stats(index)
    free, total = mem_get_info(index)
    rows = [
        ("tensors", _readable(memory_allocated(index))),
        ("tensors, at most", _readable(max_memory_allocated(index))),
        ("free on the device", _readable(free)),
        ("total on the device", _readable(total)),
    ]
    if not abbreviated:
        rows += [
            (name, _readable(value) if "bytes" in name else f"{value:,}")
            for name, value in stats.items()
            if isinstance(value, int) and value
        ]
    left = max(len(name) for name, _ in rows)
    right = max(len(value) for _, value in rows)
    title = f"memory of tpu:{index} ({_C.device_kind(index)})"
    width = max(left + right + 2, len(title))
    lines = [title, "-" * width]
    lines += [f"{name:<{width - right - 2}}  {value:>{right}}" for name, value in rows]
    return "\n".join(lines) + "\n"
