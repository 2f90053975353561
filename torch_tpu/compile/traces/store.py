"""Where traces are kept, and how Dynamo comes to use them."""

import contextlib
import functools
import gc
import logging
import os
import pickle
import sys
import threading
import types
from collections.abc import Callable

import torch
from torch._dynamo import convert_frame
from torch._dynamo.eval_frame import innermost_backend

from torch_tpu import _C

from ..fingerprint import fingerprint
from ..inference import Program
from . import entry as entries
from .facts import NoFact, code_digest, digest, state
from .pickling import dumps

log = logging.getLogger(__name__)

_enabled = os.environ.get("TORCH_TPU_TRACE_CACHE") != "0"
# Traces of one frame in one state of the process, for arguments that differ.
_KEPT = 8


class _Compiled(threading.local):
    """The programs made while a frame is traced, on this thread."""

    def __init__(self) -> None:
        self.programs: list[Program] | None = None


_compiled = _Compiled()


def note(program: Program | None) -> None:
    """Told by the backend of each graph it compiles; None for one that is not kept."""
    if _compiled.programs is not None:
        _compiled.programs.append(program)


# What PyTorch prints only while it traces.
_PRINTED = ("graph", "graph_code", "graph_sizes", "bytecode", "trace_source", "trace_call")


def _watched() -> bool:
    """Whether somebody wants to see how a frame is traced."""
    if any(os.environ.get(name) for name in ("TORCH_TRACE", "TORCH_COMPILE_DEBUG")):
        return True
    enabled = torch._logging._internal.log_state.is_artifact_enabled
    tracing = logging.getLogger("torch._dynamo").isEnabledFor(logging.DEBUG)
    return tracing or any(map(enabled, _PRINTED))


def _serves(compiler_fn: Callable) -> bool:
    from ..backend import tpu

    backend = innermost_backend(compiler_fn)
    if type(backend) is torch._TorchCompileInductorWrapper:
        return True
    return getattr(backend, "compiler_fn", backend) is tpu


def _key(code: types.CodeType, global_scope: dict, one_graph: bool) -> bytes:
    key = digest(
        fingerprint(),
        torch.__version__,
        sys.version,
        code_digest(code),
        code.co_filename,
        code.co_firstlineno,
        code.co_qualname,
        global_scope.get("__name__"),
        one_graph,
        state(),
    )
    return f"torch_tpu trace {key}".encode()


def _stored(key: bytes) -> list[bytes]:
    stored = _C.load_cached(key)
    return pickle.loads(stored) if stored is not None else []


@contextlib.contextmanager
def _without_collections():
    """Many objects are made here, none of them garbage; looking for some among them, and among
    those of the whole program, would take longer than making them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_without_collections()
def _find(key: bytes, code: types.CodeType, global_scope: dict, local_scope: dict, closure):
    """A stored trace that is this frame's, or None."""
    for stored in _stored(key):
        try:
            entry = pickle.loads(stored)
            found = entries.restored(entry, code, global_scope, local_scope, closure)
            log.debug("%s: its trace is read from disk", code.co_qualname)
            return found
        except NoFact as reason:
            log.debug("%s: a stored trace is another: %s", code.co_qualname, reason)
        except Exception:
            # Whatever is wrong with it, the frame can be traced.
            log.debug("%s: a stored trace cannot be used", code.co_qualname, exc_info=True)
    return None


def _keep(key: bytes, traced, code: types.CodeType, before: set[str], seen: dict) -> None:
    programs = _compiled.programs
    if not programs or programs[-1] is None:
        return
    entry = dumps(entries.written(traced, programs[-1], before, seen))
    others = [s for s in _stored(key) if s != entry]
    _C.store_cached(key, pickle.dumps([entry, *others[: _KEPT - 1]]))
    log.debug("%s: its trace is stored (%d bytes)", code.co_qualname, len(entry))


@functools.cache
def install() -> None:
    """Lets Dynamo look for a frame's trace on disk before it makes one.

    PyTorch's own store of traces (`caching_precompile`) is written by hand and drops what guards
    check by identity, here and in later processes; and there is no door for another one. Hence
    this one function is replaced. Frames for other backends, exports and packages pass through.
    """
    trace = convert_frame.compile_frame

    @functools.wraps(trace)
    def compile_frame(
        code, globals, locals, builtins, closure, compiler_fn, one_graph, *rest, **options
    ):
        def make():
            return trace(
                code, globals, locals, builtins, closure, compiler_fn, one_graph, *rest, **options
            )

        if (
            not _enabled
            # Before anything is on tpu; and the key would start it.
            or not torch.tpu.is_initialized()
            or any(options.get(k) for k in ("export", "package", "distributed_state"))
            or torch.compiler.config.force_disable_caches
            or not _serves(compiler_fn)
        ):
            return make()
        try:
            key = _key(code, globals, one_graph)
        except NoFact as reason:
            log.debug("%s: traces are not stored: %s", code.co_qualname, reason)
            return make()
        if not _watched():
            found = _find(key, code, globals, locals, closure)
            if found is not None:
                return found
        before, seen = set(globals), entries.observed()
        outer, _compiled.programs = _compiled.programs, []
        try:
            traced = make()
            try:
                _keep(key, traced, code, before, seen)
            except NoFact as reason:
                log.debug("%s: its trace is not stored: %s", code.co_qualname, reason)
            return traced
        finally:
            _compiled.programs = outer

    convert_frame.compile_frame = compile_frame
