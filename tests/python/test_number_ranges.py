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
