"""Numbers that a tensor's dtype cannot hold: taken, wrapped or refused as on the CPU."""

import pytest
import torch
from agreement import agree_on

ZEROS = torch.zeros(2)
MASK = torch.tensor([True, False])
FIRST = torch.tensor([0])
CASES = [
    (torch.float32, 1j),
    (torch.float32, 1e300),
    (torch.float32, float("-inf")),
    (torch.float32, float("nan")),
    (torch.float16, 1e9),
    (torch.float16, -65504.0),
    (torch.bfloat16, torch.finfo(torch.float32).min),
    (torch.int32, 1.7),
    (torch.int32, 2**40),
    (torch.uint8, 300),
    (torch.uint8, -1),
    (torch.int64, 2**62),
    (torch.bool, 2),
    (torch.complex64, 1 + 1j),
]


@pytest.mark.parametrize("dtype, value", CASES)
def test_filling(dtype, value):
    x = ZEROS.to(dtype)
    agree_on(lambda x: x.fill_(value), x)
    agree_on(lambda x: torch.full_like(x, value), x)
    agree_on(lambda x, m: x.masked_fill(m, value), x, MASK)
    agree_on(lambda x, m: x.masked_fill_(m, value), x, MASK)
    agree_on(lambda x, i: x.index_fill(0, i, value), x, FIRST)
    agree_on(lambda x, i: x.scatter(0, i, value), x, FIRST)


def test_range_is_checked_on_every_call():
    x = torch.zeros(3, dtype=torch.uint8, device="tpu")
    x.fill_(7)
    with pytest.raises(RuntimeError, match="value cannot be converted to type uint8_t"):
        x.fill_(256)
    assert x.tolist() == [7, 7, 7]


@pytest.mark.parametrize("value", [-1, -1.5, 300, -300, 1.5, 1e10, 1e300, 2**40])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.float16, torch.float32])
def test_factors_and_limits(dtype, value):
    x = torch.tensor([1, 2, 3]).to(dtype)
    agree_on(lambda x: torch.addcmul(x, x, x * 0, value=value), x)
    agree_on(lambda x: torch.addcmul(x, x, (x * 0).long(), value=value), x)
    agree_on(lambda x: torch.add(x, x * 0, alpha=value), x)
    agree_on(lambda x: torch.sub(x, x * 0, alpha=value), x)
    agree_on(lambda x: torch.clamp(x, 0, value), x)
    agree_on(lambda x: torch.clamp_min(x, value), x)
    agree_on(lambda x: torch.nn.functional.hardtanh(x, 0, value), x)
    agree_on(lambda x: torch.nn.functional.hardtanh(x, -abs(value), 2), x)
    agree_on(lambda x: torch.addmm(x[None] * 0, x[None, :1] * 0, x[None], beta=value), x)
    if dtype != torch.float16 or value != 1e300:  # which of two types it overflows
        agree_on(lambda x: torch.nn.functional.threshold(x, value, 1), x)


def test_factors_are_checked_on_every_call():
    x = torch.ones(3, dtype=torch.uint8, device="tpu")
    assert torch.addcmul(x, x, x, value=3).tolist() == [4, 4, 4]
    with pytest.raises(RuntimeError, match="value cannot be converted to type uint8_t"):
        torch.addcmul(x, x, x, value=300)


def test_complex_numbers_into_bool():
    x = torch.tensor([False, True])
    agree_on(lambda x: [x.clone().fill_(1j), x.clone().fill_(0j)], x)
    agree_on(lambda x, i: x.scatter(0, i, 1 + 2j), x, FIRST)
