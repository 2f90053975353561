"""cdist and pdist against CPU PyTorch."""

import pytest
import torch
from agreement import agree_on

A = torch.randn(2, 1, 5, 3, generator=torch.Generator().manual_seed(0))
B = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
def test_cdist(p):
    def run(a, b):
        a, b = a.requires_grad_(), b.requires_grad_()
        out = torch.cdist(a, b, p=p)
        weight = torch.arange(out.numel(), device=out.device).reshape(out.shape) / 50
        return out, torch.autograd.grad(out, (a, b), weight)

    agree_on(run, A, B, tolerance=1e-4)
    same_rows = B[:, :5]  # distances of 0 among them
    agree_on(run, same_rows, same_rows, tolerance=1e-4)
    agree_on(run, A.double(), B.double(), tolerance=1e-4)


def test_cdist_of_nothing():
    agree_on(torch.cdist, A[..., :0], B[..., :0], tolerance=1e-4)
    agree_on(torch.cdist, A[..., :0, :], B, tolerance=1e-4)


def test_cdist_errors():
    agree_on(torch.cdist, A, B[..., :2])
    agree_on(torch.cdist, A[0, 0, 0], B)
    agree_on(torch.cdist, A.int(), B.int())
    agree_on(lambda a, b: torch.cdist(a, b, p=-1), A, B)
    agree_on(torch.cdist, A.expand(2, 3, 5, 3), B)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
def test_pdist(p):
    def run(x):
        out = torch.pdist(x.requires_grad_(), p)
        weight = torch.arange(out.numel(), device=out.device) / 7
        return out.detach(), torch.autograd.grad(out, x, weight)

    rows = A[0, 0]
    agree_on(run, rows, tolerance=1e-4)
    agree_on(run, torch.cat([rows, rows[:2]]), tolerance=1e-4)  # distances of 0 among them
    agree_on(run, rows[:1])
    agree_on(run, rows[:, :0])
