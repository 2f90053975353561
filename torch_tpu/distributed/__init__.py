"""The c10d backend `tpu_dist` (alias `tpu`): PyTorch's distributed layers on tpu tensors."""

import contextlib
import datetime
import os
import sys

import torch.distributed as dist

from torch_tpu import _C

from . import bootstrap, session
from .mesh import rank_order, topology_aware_mesh

__all__ = ["rank_order", "register", "topology_aware_mesh"]

_NAMES = ("tpu_dist", "tpu")


# Whether the ranks of groups that are made now do not exist (`torch.tpu.aot.world`).
_described = False


@contextlib.contextmanager
def described():
    """Groups that are made inside have other ranks only in name."""
    global _described
    before, _described = _described, True
    try:
        yield
    finally:
        _described = before


def _host_backend(store, rank: int, size: int, timeout: datetime.timedelta):
    """A group of the same ranks for CPU tensors."""
    return dist.ProcessGroupGloo(store, rank, size, timeout)


def _make_default(frame) -> None:
    """Makes ours the default backend of a process group for which the program has not named one.

    Where no backend is named, or one for each device ("cpu:gloo,tpu:tpu_dist"), PyTorch looks for
    the default among its own and misses ours; then whatever asks a group for its default backend
    fails (DDP) or warns. Neither the group nor what was named is among what a backend is told, but
    both are in the frame that calls it.
    """
    group, named = frame.f_locals.get("pg"), str(frame.f_locals.get("backend"))
    if isinstance(group, dist.ProcessGroup) and (named == "undefined" or ":" in named):
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)


def _create(options, group_options):
    """Makes the backend of one process group; PyTorch calls this on each of its ranks."""
    from . import attention  # and with it DTensor: not with every `import torch`

    _make_default(sys._getframe(1))
    attention.register()
    timeout = options.timeout
    if not isinstance(timeout, datetime.timedelta):
        timeout = datetime.timedelta(seconds=timeout)
    store, size = options.store, options.group_size
    if size > 1 and not _described:
        life = session.agree(store, options.group_rank, size, timeout.total_seconds())
        store = dist.PrefixStore(f"{life}/", store)
    return _C.ProcessGroup(
        store=store,
        rank=options.group_rank,
        size=size,
        timeout=timeout,
        name=options.group_id,
        global_ranks=list(options.global_ranks_in_group) or list(range(options.group_size)),
        host_backend=_host_backend,
        is_world=not dist.is_initialized(),
        described=_described,
    )


def register() -> None:
    """Makes the backend known to `torch.distributed`, also as the default one for tpu, and tells
    libtpu of the other ranks while no client exists."""
    bootstrap.prepare()
    # DDP's copies of its inputs need no stream of their own here, and it finds none for a device
    # that a program names by LOCAL_RANK.
    os.environ.setdefault("PYTORCH_DDP_USE_SIDE_STREAM", "0")
    for name in _NAMES:
        dist.Backend.register_backend(name, _create, extended_api=True, devices=["tpu"])
