"""The c10d backend `tpu_dist` (alias `tpu`): PyTorch's distributed layers on tpu tensors."""

import datetime

import torch.distributed as dist

from torch_tpu import _C

_NAMES = ("tpu_dist", "tpu")


def _host_backend(store, rank: int, size: int, timeout: datetime.timedelta):
    """A group of the same ranks for CPU tensors."""
    return dist.ProcessGroupGloo(store, rank, size, timeout)


def _create(options, group_options):
    """Makes the backend of one process group; PyTorch calls this on each of its ranks."""
    timeout = options.timeout
    if not isinstance(timeout, datetime.timedelta):
        timeout = datetime.timedelta(seconds=timeout)
    return _C.ProcessGroup(
        store=options.store,
        rank=options.group_rank,
        size=options.group_size,
        timeout=timeout,
        name=options.group_id,
        global_ranks=list(options.global_ranks_in_group) or list(range(options.group_size)),
        host_backend=_host_backend,
    )


def register() -> None:
    """Makes the backend known to `torch.distributed`, also as the default one for tpu."""
    for name in _NAMES:
        dist.Backend.register_backend(name, _create, extended_api=True, devices=["tpu"])
