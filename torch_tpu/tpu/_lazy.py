"""Initialisation on first use. Importing starts no client, so a process may still fork.

Calls that need the client, such as seeding, are remembered until it is up.
"""

import threading
import traceback
from collections.abc import Callable
from typing import NamedTuple

from torch_tpu import _C


class DeferredTpuCallError(Exception):
    """A call remembered from before initialisation failed when its turn came."""


class _Deferred(NamedTuple):
    call: Callable[[], None]
    seeds: bool
    where: traceback.StackSummary


_lock = threading.RLock()
_state = threading.local()
_initialized = False
_deferred: list[_Deferred] = []


def _is_in_bad_fork() -> bool:
    return _C.in_bad_fork()


def is_initialized() -> bool:
    """Whether the device's client is up in this process."""
    return _initialized and not _is_in_bad_fork()


def init() -> None:
    """Starts the client. Never needed: whatever uses the device does so."""
    _lazy_init()


def _lazy_call(call: Callable[[], None], *, seed: bool = False, seed_all: bool = False) -> None:
    """Runs `call` now if the client is up, else once it is."""
    with _lock:
        if is_initialized():
            call()
            return
        # A new seed for all devices makes the seeds before it meaningless, and a program that seeds
        # in a loop on a machine it never computes on must not pile up calls.
        if seed_all:
            _deferred[:] = [entry for entry in _deferred if not entry.seeds]
        where = traceback.extract_stack(limit=16)
        _deferred.append(_Deferred(call, seed or seed_all, where))


def _lazy_init() -> None:
    global _initialized
    if is_initialized() or getattr(_state, "initializing", False):
        return
    with _lock:
        if is_initialized():
            return
        if _is_in_bad_fork():
            raise RuntimeError(
                "Cannot re-initialize TPU in forked subprocess. To use TPU with multiprocessing, "
                "you must use the 'spawn' start method"
            )
        _state.initializing = True
        try:
            # Asking a device what it is starts the client, and says why if it cannot start.
            _C.device_kind(_C.current_device())
            while _deferred:
                entry = _deferred.pop(0)
                try:
                    entry.call()
                except Exception as error:
                    raise DeferredTpuCallError(
                        f"TPU call failed lazily at initialization with error: {error}\n\n"
                        "TPU call was originally invoked at:\n\n"
                        + "".join(traceback.format_list(entry.where))
                    ) from error
        finally:
            _state.initializing = False
        _initialized = True
