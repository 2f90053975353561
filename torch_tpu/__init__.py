"""A native PyTorch device for TPUs. Importing torch is enough: this package registers itself."""

__version__ = "0.1.0"


def _autoload() -> None:
    """Makes the device known to PyTorch, once. PyTorch calls this at the end of `import torch`."""
    from torch_tpu import _registration

    _registration.register()


# `_autoload` stands above this import because a program may import torch_tpu first: torch then
# comes in from here, and on its way looks up the entry point in this half-initialised module.
import torch as _torch  # noqa: E402, F401

# Does the work where TORCH_DEVICE_BACKEND_AUTOLOAD=0 kept torch from doing it.
_autoload()
