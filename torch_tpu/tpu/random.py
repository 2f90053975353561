"""Random numbers: one default generator a device, with a state of 16 bytes (seed and offset)."""

from collections.abc import Iterable

import torch

from torch_tpu import _C

from ._lazy import _lazy_call, _lazy_init, is_initialized
from ._utils import _get_device_index
from .device import _device_t


def _default_generators() -> tuple[torch.Generator, ...]:
    _lazy_init()
    return tuple(_C.default_generator(i) for i in range(_C.device_count()))


def get_rng_state(device: _device_t = "tpu") -> torch.Tensor:
    """State of a device's generator as a ByteTensor."""
    _lazy_init()
    return _C.default_generator(_get_device_index(device, optional=True)).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators."""
    _lazy_init()
    return [get_rng_state(i) for i in range(_C.device_count())]


def set_rng_state(new_state: torch.Tensor, device: _device_t = "tpu") -> None:
    """Sets the state of a device's generator."""
    if not is_initialized():
        # The caller may change its tensor before the state is set.
        new_state = new_state.clone(memory_format=torch.contiguous_format)

    def call() -> None:
        _C.default_generator(_get_device_index(device, optional=True)).set_state(new_state)

    _lazy_call(call)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of all devices' generators."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    seed = int(seed)
    _lazy_call(lambda: _seed_device(_C.current_device(), seed), seed=True)


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices."""
    seed = int(seed)

    def call() -> None:
        for index in range(_C.device_count()):
            _seed_device(index, seed)

    _lazy_call(call, seed_all=True)


def _seed_device(index: int, seed: int) -> None:
    _C.default_generator(index).manual_seed(seed)


def seed() -> None:
    """Seeds the current device's generator with a number nobody chose."""

    def call() -> None:
        _C.default_generator(_C.current_device()).seed()

    _lazy_call(call, seed=True)


def seed_all() -> None:
    """Seeds the generators of all devices with one number nobody chose."""

    def call() -> None:
        drawn = _C.default_generator(0).seed()
        for index in range(1, _C.device_count()):
            _seed_device(index, drawn)

    _lazy_call(call, seed_all=True)


def initial_seed() -> int:
    """The seed of the current device's generator."""
    _lazy_init()
    return _C.default_generator(_C.current_device()).initial_seed()
