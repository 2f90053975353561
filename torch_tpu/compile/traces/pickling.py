"""Pickles of what means the same in another process."""

import io
import pickle

import torch

from .facts import NoFact


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: object) -> object:
        # Values belong to a call, not to a trace.
        if isinstance(value, (torch.Tensor, torch.nn.Module)):
            raise NoFact(f"a {type(value).__qualname__} in it")
        return NotImplemented


def dumps(value: object) -> bytes:
    """Raises NoFact for what cannot be pickled, and for tensors and modules."""
    written = io.BytesIO()
    try:
        _Pickler(written, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise NoFact(f"something that cannot be stored ({error})") from error
    return written.getvalue()
