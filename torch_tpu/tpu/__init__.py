"""`torch.tpu`: what `torch.cuda` has and a TPU can mean, and how this backend sees itself."""

from . import _utils, amp, cache, diagnostics, eager, memory, random, streams
from ._lazy import (
    DeferredTpuCallError,
    _is_in_bad_fork,
    _lazy_call,
    _lazy_init,
    init,
    is_initialized,
)
from .amp import get_amp_supported_dtype, is_bf16_supported
from .compile_log import CompileRecord, compile_log
from .device import (
    _device_t,
    _DeviceGuard,
    _exchange_device,
    _maybe_exchange_device,
    _TpuDeviceProperties,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_device_name,
    get_device_properties,
    is_available,
    set_device,
    synchronize,
)
from .diagnostics import (
    clear_fallbacks,
    compilations,
    fallback_count,
    fallbacks,
    get_fallback_policy,
    plugin_info,
    set_fallback_policy,
)
from .eager import eager_mode, set_eager_mode
from .memory import (
    OutOfMemoryError,
    empty_cache,
    ipc_collect,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from .random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from .streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

__all__ = [
    "CompileRecord",
    "DeferredTpuCallError",
    "Event",
    "OutOfMemoryError",
    "Stream",
    "StreamContext",
    "can_device_access_peer",
    "clear_fallbacks",
    "compilations",
    "compile_log",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "eager_mode",
    "empty_cache",
    "fallback_count",
    "fallbacks",
    "get_amp_supported_dtype",
    "get_device_name",
    "get_device_properties",
    "get_fallback_policy",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "plugin_info",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_eager_mode",
    "set_fallback_policy",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]


def __getattr__(name: str):
    # Computed on demand: how many generators there are is known only once the client is up.
    if name == "default_generators":
        return random._default_generators()
    # Activation checkpointing saves the generator's state only of a module that says so.
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
