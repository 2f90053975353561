"""Streams and events, as torch.cuda has them. Both are PyTorch's generic ones with our defaults."""

import torch
from torch._C._autograd import DeviceType

from torch_tpu import _C

from ._lazy import _lazy_init
from ._utils import _get_device_index
from .device import _device_t

_DEVICE_TYPE = int(DeviceType.PrivateUse1)
# The stream that a device has from the start.
_DEFAULT_STREAM_ID = 0


class _EventType(type):
    def __instancecheck__(cls, instance) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "tpu"


class Event(metaclass=_EventType):
    """A mark in a stream that other streams and the host can wait for.

    Makes a torch.Event: PyTorch takes exactly these where it compares or records events.
    """

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        _lazy_init()
        return torch.Event(
            "tpu", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )


class Stream(torch.Stream):
    """A queue of work on one device: done in order, and beside that of other streams."""

    def __new__(cls, device: _device_t = None, priority: int = 0, **identity: int):
        _lazy_init()
        if identity:
            return super().__new__(cls, priority=priority, **identity)
        index = _get_device_index(device, optional=True)
        return super().__new__(cls, torch.device("tpu", index), priority=priority)

    def __repr__(self) -> str:
        return f"torch.tpu.Stream(device={self.device}, stream_id={self.stream_id})"


def _stream(stream_id: int, index: int) -> Stream:
    return Stream(stream_id=stream_id, device_index=index, device_type=_DEVICE_TYPE)


def current_stream(device: _device_t = None) -> Stream:
    """The stream that work on `device` goes to now."""
    _lazy_init()
    index = _get_device_index(device, optional=True)
    return _stream(torch.accelerator.current_stream(index).stream_id, index)


def default_stream(device: _device_t = None) -> Stream:
    """The stream that work on `device` goes to unless told otherwise."""
    _lazy_init()
    return _stream(_DEFAULT_STREAM_ID, _get_device_index(device, optional=True))


def set_stream(stream: torch.Stream | None) -> None:
    """Makes `stream` and its device the current ones. None: no effect."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


class StreamContext:
    """Context manager that makes a stream and its device the current ones. None: no effect."""

    def __init__(self, stream: torch.Stream | None):
        self.stream = stream
        self._restore: list[tuple[torch.Stream, int]] = []

    def __enter__(self):
        if self.stream is not None:
            previous = current_stream(self.stream.device)
            self._restore.append((previous, _C.current_device()))
            set_stream(self.stream)
        return self.stream

    def __exit__(self, type, value, traceback):
        if self.stream is not None:
            previous, device = self._restore.pop()
            set_stream(previous)
            _C.set_device(device)
        return False


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager that makes `stream` the current one."""
    return StreamContext(stream)
