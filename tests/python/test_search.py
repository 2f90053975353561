"""searchsorted, bucketize and isin against CPU PyTorch."""

import pytest
import torch
from agreement import agree_on

SEQUENCE = torch.tensor([-2.0, 0.0, 1.0, 1.0, 1.0, 3.5, 9.0])
VALUES = torch.tensor([[1.0, -5.0, 0.5, 9.0], [12.0, -2.0, 3.5, float("nan")]])
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8]


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_searchsorted(dtype, right):
    sequence = SEQUENCE.abs().sort().values.to(dtype)
    values = VALUES.nan_to_num().abs().to(dtype)
    agree_on(lambda s, v: torch.searchsorted(s, v, right=right), sequence, values)
    agree_on(lambda s, v: torch.searchsorted(s, v, right=right, out_int32=True), sequence, values)
    agree_on(lambda v, s: torch.bucketize(v, s, right=right), values, sequence)
    for size in range(5):
        agree_on(lambda s, v: torch.searchsorted(s, v, right=right), sequence[:size], values)


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted_special(right):
    agree_on(lambda s, v: torch.searchsorted(s, v, right=right), SEQUENCE, VALUES)
    agree_on(lambda s, v: torch.searchsorted(s, v, right=right), SEQUENCE, VALUES.t())
    agree_on(lambda s: torch.searchsorted(s, 1, right=right), SEQUENCE)
    agree_on(lambda s: torch.bucketize(0.5, s, right=right), SEQUENCE)
    agree_on(lambda s, v: torch.searchsorted(s, v, right=right), SEQUENCE, torch.tensor(1))
    agree_on(lambda s, v: torch.searchsorted(s, v, right=right), SEQUENCE.long(), VALUES)
    rows = torch.stack([SEQUENCE, SEQUENCE * 2])
    agree_on(lambda s, v: torch.searchsorted(s, v, right=right), rows, VALUES)
    agree_on(lambda s, v: torch.searchsorted(s, v, side="right"), rows, VALUES)
    order = torch.tensor([3, 1, 0, 2])
    shuffled = torch.tensor([2.0, 1.0, 3.0, 0.0])
    agree_on(lambda s, o, v: torch.searchsorted(s, v, sorter=o), shuffled, order, VALUES)


def test_searchsorted_errors():
    rows = torch.stack([SEQUENCE, SEQUENCE])
    agree_on(torch.searchsorted, rows, VALUES[0])
    agree_on(torch.searchsorted, rows, VALUES[:1])
    agree_on(torch.searchsorted, rows, torch.tensor(2.0))
    agree_on(lambda s: torch.searchsorted(s, 2.0), rows)
    agree_on(lambda s, v: torch.searchsorted(s, v, right=True, side="left"), SEQUENCE, VALUES)
    agree_on(lambda s, v: torch.searchsorted(s, v, side="up"), SEQUENCE, VALUES)
    agree_on(lambda s, v, o: torch.searchsorted(s, v, sorter=o), SEQUENCE, VALUES, VALUES[0])
    agree_on(lambda s, v, o: torch.searchsorted(s, v, sorter=o), SEQUENCE, VALUES, SEQUENCE)
    agree_on(torch.searchsorted, SEQUENCE > 0, VALUES > 0)
    agree_on(torch.bucketize, VALUES, rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("count", [0, 1, 7, 1000])
def test_isin(count, invert, dtype):
    elements = ((torch.arange(24) * 7) % 50).reshape(2, 3, 4).to(dtype)
    candidates = (torch.arange(count) * 3 % 40).to(dtype)
    agree_on(lambda e, c: torch.isin(e, c, invert=invert), elements, candidates)


def test_isin_special():
    nan = torch.tensor([float("nan"), 1.0, -0.0])
    agree_on(torch.isin, nan, nan)
    agree_on(torch.isin, nan, torch.cat([nan, torch.arange(400.0)]))
    agree_on(lambda e: torch.isin(e, 2), torch.arange(5))
    agree_on(lambda e: torch.isin(e, 2.5), torch.arange(5))
    agree_on(lambda e: torch.isin(2, e), torch.arange(5))
    agree_on(lambda e: torch.isin(2, e), torch.arange(5) > 2)
    agree_on(torch.isin, torch.arange(5) > 2, torch.arange(5))
    agree_on(torch.isin, torch.arange(3), torch.tensor([0.0, 1.5]))
    agree_on(torch.isin, torch.tensor(3), torch.arange(5))
    agree_on(lambda e, c: torch.isin(e, c, out=(e > 5)), torch.arange(3), torch.arange(2))
