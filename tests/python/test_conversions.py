"""Conversions between all dtypes, by the bits, against CPU PyTorch."""

import pytest
import torch
from agreement import agree

FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]
FLOATS = FLOAT8 + [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64]
INTEGERS += [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
DTYPES = FLOATS + COMPLEX + INTEGERS + [torch.bool]


def numbers():
    """Dense where narrow floats are, with the ends of their ranges and halves between numbers."""
    powers = torch.logspace(-26, 20, 231, base=2, dtype=torch.float64)
    ends = [448, 464, 465, 240, 248, 57344, 61440, 61441, 65504, 65520, 1e30]
    halves = [2.0**-10, 1.5 * 2**-10, 2.0**-11, 1.01 * 2**-11, 2.0**-17, 2.0**-18, 2.0**-25]
    special = torch.tensor([0.0, *ends, *halves, float("inf")], dtype=torch.float64)
    x = torch.cat([torch.linspace(0, 500, 501, dtype=torch.float64), powers, special])
    return torch.cat([x, -x, torch.tensor([float("nan")], dtype=torch.float64)])


def bits(x):
    return x.view(torch.uint8).reshape(x.numel(), x.element_size())


def is_nan(x):
    if x.is_complex():
        return torch.view_as_real(x).isnan().any(-1)
    return x.double().isnan() if x.is_floating_point() else torch.zeros(x.shape, dtype=torch.bool)


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("to", DTYPES, ids=str)
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_conversion(source, to):
    x = numbers().to(source)
    if to in INTEGERS and (source in FLOATS or source in COMPLEX):
        # What does not fit has no defined value in C++.
        real = (x.real if x.is_complex() else x).double().trunc()
        limits = torch.iinfo(to)
        x = x[(real >= limits.min) & (real <= limits.max) & (real < 2.0**62)]
    expected, actual = x.to(to), x.to("tpu").to(to).cpu()
    assert actual.dtype is to
    both_nan = is_nan(expected) & is_nan(actual)  # whose payloads may differ
    different = (bits(expected) != bits(actual)).any(-1) & ~both_nan
    assert not different.any(), (x[different], actual[different], expected[different])


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("number", [500.0, -1e6, float("inf"), 1e-9, -1e-9, -0.0, 3.3])
def test_numbers_become_float8(number, dtype):
    makers = [
        lambda d: torch.full((2,), number, dtype=dtype, device=d),
        lambda d: torch.full((2,), number, device=d).to(dtype),
        lambda d: torch.zeros(2, dtype=dtype, device=d).fill_(number),
        lambda d: torch.zeros(2, dtype=dtype, device=d).copy_(torch.tensor(number)),
    ]
    for make in makers:  # some refuse numbers out of range
        agree(lambda d, make=make: bits(make(torch.device(d)).cpu()))
