"""What out= and in-place forms take and refuse, as on the CPU."""

import pytest
import torch
from agreement import agree_on

X = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("dtype", [torch.int16, torch.float64])
def test_sums_in_the_dtype_of_out(dtype):
    whole, row = torch.zeros(2, 3, dtype=dtype), torch.zeros(2, dtype=dtype)
    agree_on(lambda x, o: torch.cumsum(x + 0.7, 0, out=o), X, whole)
    agree_on(lambda x, o: torch.cumprod(x + 0.7, 1, out=o), X, whole)
    agree_on(lambda x, o: torch.sum(x + 0.7, 1, out=o), X, row)
    agree_on(lambda x, o: torch.prod(x + 0.7, 1, out=o), X, row)
    agree_on(lambda x, o: torch.sum(x + 0.7, 1, dtype=torch.float32, out=o), X, row)


def test_exact_dtypes():
    for dtype in (torch.int16, torch.float64):
        agree_on(lambda x, o: torch.mm(x, x.t(), out=o), X, torch.zeros(2, 2, dtype=dtype))
        agree_on(lambda x, o: torch.argmax(x, 1, out=o), X, torch.zeros(2, dtype=dtype))
        agree_on(lambda x, o: torch.gather(x, 0, x.long() % 2, out=o), X, X.to(dtype))
    # Elementwise operators cast.
    agree_on(lambda x, o: torch.add(x, x, out=o), X, X.double())
    agree_on(lambda x, o: torch.add(x, x, out=o), X, X.short())
    agree_on(lambda x, o: torch.all(x, 1, out=o), X, torch.zeros(2, dtype=torch.uint8))


def test_out_that_is_an_argument_keeps_its_shape():
    agree_on(lambda x, y: torch.mul(x, y, out=x), X[:1].clone(), X)
    agree_on(lambda x, y: x.ldexp_(y), X[:1].clone(), X)
    agree_on(lambda x, y: torch.mul(x, y, out=y), X[:1].clone(), X)


def test_complex_in_place():
    z = torch.complex(X, X + 1)
    agree_on(lambda z: z.abs_(), z)
    agree_on(lambda z: z.conj_physical_(), z)
    agree_on(lambda z: torch.conj_physical(z, out=torch.zeros_like(z)), z)
    agree_on(lambda z: z.eq_(z), z)


def test_resized_out_is_laid_out_as_a_new_tensor():
    agree_on(lambda x, o: torch.div(x.t(), 2, out=o), X, torch.zeros(0))
    agree_on(lambda x, o: torch.lt(x.t(), x.t() * 2, out=o), X, torch.zeros(1))
    agree_on(lambda x, o: torch.mm(x.t(), x, out=o), X, torch.zeros(0))
    agree_on(lambda x, o: torch.logical_and(x.t(), x.t() - 1, out=o), X, torch.zeros(0))
    agree_on(lambda x, o: torch.where(x.t() > 2, x.t(), 1, out=o), X, torch.zeros(0))
    agree_on(lambda x, o: torch.nan_to_num(x.t(), out=o), X, torch.zeros(0))
    # Written through the new strides.
    agree_on(lambda x, o: torch.add(x.t(), 1, out=o).mul_(x.t())[:, 1:], X, torch.zeros(0))


def test_out_of_the_wrong_dtype():
    x, small = X.long(), torch.zeros(2, 3, dtype=torch.int32)
    names = ("neg", "ceil", "floor", "round", "sgn", "sign", "trunc", "bitwise_not")
    for function in [getattr(torch, name) for name in names]:
        agree_on(lambda x, o, f=function: f(x, out=o), x, small)
        agree_on(lambda x, o, f=function: f(x, out=o), x, x)
    agree_on(lambda x, o: torch.index_select(x, 0, x[:, 0] // 3, out=o), x, small)
    agree_on(lambda x, o: torch.cat([x, x], 0, out=o), x * (1 + 0j), X)
    agree_on(lambda x, o: torch.cat([x, x], 0, out=o), x, X)
