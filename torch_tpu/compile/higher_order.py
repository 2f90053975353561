"""Higher-order operators: control flow, and random numbers that are drawn again."""

from collections.abc import Callable

import torch

from torch_tpu import _C

_rules: dict[str, Callable] = {}


def rule(name: str) -> Callable[[Callable], Callable]:
    """Registers how the higher-order operator `name` runs on tpu."""

    def register(function: Callable) -> Callable:
        _rules[name] = function
        return function

    return register


def run(operator: torch._ops.HigherOrderOperator, args: tuple, kwargs: dict) -> object:
    """Runs a higher-order operator; one without a rule here does what PyTorch makes of it.

    Bodies among the arguments are functions.
    """
    found = _rules.get(operator.name())
    if found is None:
        return operator(*args, **kwargs)
    return found(*args, **kwargs)


# A saved state is seed and offset, int64[2] on the device.


@rule("run_and_save_rng_state")
def _run_and_save(operator, *args, **kwargs):
    if _C.capturing():
        state = _C.capture_random_state()
    else:
        state = torch.tpu.get_rng_state().view(torch.int64).to("tpu")
    return state, operator(*args, **kwargs)


@rule("run_with_rng_state")
def _run_with(state, operator, *args, **kwargs):
    if not _C.capturing():
        before = torch.tpu.get_rng_state()
        torch.tpu.set_rng_state(state.cpu().view(torch.uint8))
        try:
            return operator(*args, **kwargs)
        finally:
            torch.tpu.set_rng_state(before)
    _C.set_capture_random_state(state)
    try:
        return operator(*args, **kwargs)
    finally:
        _C.set_capture_random_state(None)
