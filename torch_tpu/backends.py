"""`torch.backends.tpu`."""

from torch_tpu import _C


def is_built() -> bool:
    """Whether this build of PyTorch can use a `tpu` device at all."""
    return True


def is_available() -> bool:
    """Whether a `tpu` device can be used now."""
    return _C.is_available()
