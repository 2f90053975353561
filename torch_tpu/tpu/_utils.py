"""Device arguments: what every function of `torch.tpu` accepts for `device`."""

import os

import torch

from torch_tpu import _C


def _meant(index: int) -> int:
    """The device that an index means: see DeviceMeant in csrc/aten/guard.h, which this follows."""
    if index > 0 and os.environ.get("LOCAL_RANK") == str(index) and _C.device_count() == 1:
        return 0
    return index


def _get_device_index(device, optional: bool = False, allow_cpu: bool = False) -> int:
    """Index of `device`: an integer, a string, a torch.device, a device guard or None.

    None, and a device without index, mean the current device if `optional` is true and are an error
    otherwise. With `allow_cpu` a CPU device gives -1. torch.load calls this by name.
    """
    if isinstance(device, int):
        return _meant(device)
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if allow_cpu and device.type == "cpu":
            return -1
        if device.type != "tpu":
            expected = "tpu or cpu" if allow_cpu else "tpu"
            raise ValueError(f"Expected a {expected} device, but got: {device}")
        index = device.index
    elif device is None:
        index = None
    elif isinstance(index := getattr(device, "idx", None), int):
        pass
    else:
        raise TypeError(
            "Expected an int, a str, a torch.device or None as a tpu device, "
            f"but got: {type(device).__name__}"
        )
    if index is not None:
        return _meant(index)
    if optional:
        return _C.current_device()
    raise ValueError(
        f"Expected a torch.device with a specified index or an integer, but got:{device}"
    )
