"""What the scripts here share. torchrun runs each on every rank; see tests/python/torchrun.py."""

import os
import sys
import traceback
import warnings

import torch
import torch.distributed as dist

# torch 2.13 calls its own names deprecated, and asks for a device that it knows.
warnings.filterwarnings("ignore", category=FutureWarning)
warnings.filterwarnings("ignore", message="barrier")
warnings.filterwarnings("ignore", message="torch.distributed.*deprecated")

_checks = []


def check(function):
    """Marks a function as one of the script's checks. They run in the order they are written."""
    _checks.append(function)
    return function


def needs_processes(function):
    """Marks a check as one that ranks which are threads cannot pass."""
    function.needs_processes = True
    return function


threads = False  # the ranks are threads; see threads.py


def selected(function) -> bool:
    if threads and hasattr(function, "needs_processes"):
        return False
    return len(sys.argv) < 2 or function.__name__ in sys.argv[1:]


def say(*words: object) -> None:
    """Prints a line at once: `print` writes word by word, and other ranks' lines come between."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def main(**options) -> None:
    """Runs the checks (those named on the command line, if any are). The first failure ends it."""
    dist.init_process_group(**options)
    for function in filter(selected, _checks):
        try:
            function()
        except BaseException:
            traceback.print_exc()
            print(
                f"rank {dist.get_rank()}: {function.__name__} failed", file=sys.stderr, flush=True
            )
            # Not by way of destroying the group: the others are still in it.
            sys.exit(1)
        if dist.get_rank() == 0:
            say("passed", function.__name__)
    dist.barrier()
    dist.destroy_process_group()


def held(rank: int, shape, dtype=torch.float32, salt: int = 0) -> torch.Tensor:
    """What a rank holds, on the CPU: every rank can compute what the others hold."""
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_complex:
        return torch.randn(shape, dtype=torch.complex64, generator=generator).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    low, high = (0, 200) if not dtype.is_signed else (-100, 100)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def same(actual: torch.Tensor, expected: torch.Tensor, what="") -> None:
    """Equal bit for bit (NaN equals NaN), and of the same dtype and shape."""
    assert actual.device.type == "tpu", actual.device
    actual = actual.cpu()
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, (
        what,
        actual.dtype,
        actual.shape,
        expected.dtype,
        expected.shape,
    )
    if actual.dtype in NARROW:
        actual, expected = actual.float(), expected.float()
    if actual.dtype in (torch.uint16, torch.uint32, torch.uint64):
        ok = actual.tolist() == expected.tolist()
    else:
        ok = torch.equal(torch.nan_to_num(actual), torch.nan_to_num(expected)) and torch.equal(
            actual != actual, expected != expected
        )
    assert ok, (what, actual, expected)


NARROW = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
)
DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    *NARROW,
)
