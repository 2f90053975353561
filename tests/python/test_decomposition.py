"""Operators without a rule: decomposed by PyTorch, or run on the CPU where that needs data."""

import pytest
import torch
from agreement import agree

A, X = torch.tensor([0.5, 1.0, 4.0]), torch.tensor([0.1, 2.0, 3.0])


@pytest.mark.filterwarnings("ignore:aten..igamma")
def test_decomposition_that_comes_back_to_its_own_operator():
    """It cannot be captured: the operator in it reads the data of what is being captured."""
    for _ in range(2):
        for function in (torch.igamma, torch.igammac):
            agree(lambda device, f=function: f(A.to(device), X.to(device)), tolerance=1e-5)
            agree(lambda device, f=function: f(A.to(device) + 1, X.to(device)), tolerance=1e-5)


def test_captured_decomposition():
    x = torch.arange(24.0).reshape(4, 6)

    def renorm(device):
        return torch.renorm(x.to(device), 2, 0, 5.0), torch.renorm(x.t().to(device), 1, 1, 5.0)

    for _ in range(2):
        agree(renorm, tolerance=1e-5)


def test_composed_operators_take_dtypes():
    x = torch.arange(24.0).reshape(4, 6)

    def strided(device):
        empty = x.to(device).new_empty_strided((2, 3), (1, 2), dtype=torch.int16)
        return empty.fill_(3)

    agree(strided)
    agree(lambda device: torch.as_strided_scatter(x.to(device), x[0, :4].to(device), (4,), (5,), 2))
    agree(lambda device: torch.msort(x.to(device).neg()))


def test_square_result_in_another_memory_order():
    """The sizes of a transposed square do not tell that it is one."""
    square = torch.arange(9.0).reshape(3, 3)
    agree(lambda device: square.t().to(device))
    agree(lambda device: torch.empty(3, 3, device=device).t().copy_(square.to(device)))
    agree(lambda device: torch.empty(3, 3, device=device).t().copy_(square.to(device)).t())
    agree(lambda device: square.t().to(device).neg())
