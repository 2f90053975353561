"""What the backend did: fallbacks to CPU, compilations, and the plugin it runs on."""

from typing import Any

from torch_tpu import _C


def fallbacks() -> list[dict[str, Any]]:
    """Operators that ran on the CPU for want of a rule: `op`, `count`, and `where` first called."""
    return _C.fallbacks()


def fallback_count() -> int:
    """Calls that ran on the CPU since counting began."""
    return sum(record["count"] for record in fallbacks())


def clear_fallbacks() -> None:
    """Starts counting fallbacks anew."""
    _C.clear_fallbacks()


def get_fallback_policy() -> str:
    """What happens at a fallback: "warn" once an operator, "error", or "silent"."""
    return _C.get_fallback_policy()


def set_fallback_policy(policy: str) -> None:
    """Sets what happens at a fallback. TORCH_TPU_FALLBACK does so from the start."""
    _C.set_fallback_policy(policy)


def compilations() -> dict[str, Any]:
    """Programs asked for so far: `count`, of which `from_disk` and `from_memory` (another operation
    had the same program), and the `seconds` that took; how many are `loaded` now and how many were
    `unloaded` to make room; the `hits` and `misses` of operator calls in the cache of programs in
    memory. `compile_log()` tells of each."""
    return _C.compilations()


def plugin_info() -> dict[str, Any]:
    """The PJRT plugin in use: `path`, `source` (what chose it), `api_version`, `platform`,
    `platform_version`, `attributes`, `devices`, and whether it is `loaded` yet."""
    return _C.plugin_info()
