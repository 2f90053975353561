"""How operators run when they are called."""

from torch_tpu import _C


def eager_mode() -> str:
    """The mode in force: "strict" or "debug". See `set_eager_mode`."""
    return _C.get_eager_mode()


class set_eager_mode:
    """Sets the eager mode; as a context manager, restores the former one at the end.

    "strict": operators run one by one and asynchronously; an error in one of them surfaces at the
    next synchronisation. "debug": each operator is waited for, an error names the Python line that
    called it, and an operator that makes NaN of arguments without NaN is an error.
    """

    def __init__(self, mode: str):
        self._previous = _C.get_eager_mode()
        self.mode = mode
        _C.set_eager_mode(mode)

    def __enter__(self) -> "set_eager_mode":
        return self

    def __exit__(self, type, value, traceback) -> None:
        _C.set_eager_mode(self._previous)

    def __repr__(self) -> str:
        return f"torch.tpu.set_eager_mode({self.mode!r})"
