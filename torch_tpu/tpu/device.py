"""Which devices there are, which one is current, and what they are."""

import dataclasses

import torch

from torch_tpu import _C

from ._lazy import _lazy_init
from ._utils import _get_device_index

_device_t = int | str | torch.device | None


def is_available() -> bool:
    """Whether a tpu device can be used. Does not start the client."""
    return _C.is_available()


def device_count() -> int:
    """Number of tpu devices of this process."""
    return _C.device_count()


def current_device() -> int:
    """Index of the current device."""
    _lazy_init()
    return _C.current_device()


def set_device(device: _device_t) -> None:
    """Makes `device` the current one of this thread. A negative index changes nothing."""
    index = _get_device_index(device)
    if index >= 0:
        _lazy_init()
        _C.set_device(index)


def _exchange_device(index: int) -> int:
    if index < 0:
        return -1
    _lazy_init()
    return _C.exchange_device(index)


# PyTorch's device guards restore with a variant that may skip what nothing has used; here both cost
# the same.
_maybe_exchange_device = _exchange_device


class _DeviceGuard:
    def __init__(self, index: int):
        self.idx = index
        self.prev_idx = -1

    def __enter__(self):
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(self, type, value, traceback):
        self.idx = _maybe_exchange_device(self.prev_idx)
        return False


class device(_DeviceGuard):
    """Context manager that makes `device` the current one. None or a negative index: no effect."""

    def __init__(self, device: _device_t):
        super().__init__(_get_device_index(device, optional=True))


class device_of(_DeviceGuard):
    """Context manager that makes a tensor's or storage's device the current one, if a tpu."""

    def __init__(self, obj):
        super().__init__(obj.get_device() if obj.is_tpu else -1)


def synchronize(device: _device_t = None) -> None:
    """Waits until all work on `device` is done, and raises what went wrong in it."""
    _lazy_init()
    _C.synchronize(_get_device_index(device, optional=True))


@dataclasses.dataclass(frozen=True)
class _TpuDeviceProperties:
    name: str
    total_memory: int
    multi_processor_count: int
    platform: str
    platform_version: str
    description: str


def _checked_index(device: _device_t) -> int:
    _lazy_init()
    index = _get_device_index(device, optional=True)
    if not 0 <= index < device_count():
        raise AssertionError("Invalid device id")
    return index


def get_device_properties(device: _device_t = None) -> _TpuDeviceProperties:
    """Name, memory and platform of a device."""
    index = _checked_index(device)
    plugin = _C.plugin_info()
    return _TpuDeviceProperties(
        name=_C.device_kind(index),
        total_memory=_C.memory_info(index)[1],
        multi_processor_count=1,
        platform=plugin["platform"],
        platform_version=plugin["platform_version"],
        description=_C.device_description(index),
    )


def get_device_name(device: _device_t = None) -> str:
    """What the plugin calls this kind of device: "TPU v5 lite", "cpu"."""
    return _C.device_kind(_checked_index(device))


def can_device_access_peer(device: _device_t, peer_device: _device_t) -> bool:
    """Whether one device may address another's memory: PJRT devices never may."""
    if _checked_index(device) == _checked_index(peer_device):
        raise AssertionError("a device is not its own peer")
    return False
