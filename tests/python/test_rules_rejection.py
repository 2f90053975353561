"""Distributions drawn by rejection: their moments, their edges, and that a seed fixes them."""

import math

import pytest
import torch

N = 20_000


def samples(draw, *parameters, dtype=torch.float32):
    """N draws, in float64, for each of the broadcast parameters."""
    torch.manual_seed(7)
    parameters = [torch.tensor(p, dtype=dtype, device="tpu") for p in parameters]
    parameters = torch.broadcast_tensors(*parameters)
    drawn = draw(*(p.expand(N, *p.shape) for p in parameters))
    assert drawn.dtype == dtype and drawn.shape == (N, *parameters[0].shape)
    return drawn.cpu().double()


def check_moments(x, mean, variance, fourth):
    """Mean and variance within five standard errors; `fourth` is the fourth central moment."""
    mean, variance, fourth = (
        torch.tensor(m, dtype=torch.float64) for m in (mean, variance, fourth)
    )
    assert ((x.mean(0) - mean).abs() <= 5 * (variance / N).sqrt()).all()
    error = ((fourth - variance**2) / N).sqrt()
    assert ((x.var(0) - variance).abs() <= 5 * error).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_poisson(dtype):
    rates = [0.01, 0.7, 3.0, 9.9, 10.0, 35.0, 1000.0]
    x = samples(torch.poisson, rates, dtype=dtype)
    assert (x == x.floor()).all() and (x >= 0).all()
    check_moments(x, rates, rates, [r + 3 * r * r for r in rates])
    # The share of zeros tells the methods' bottoms.
    for i, rate in enumerate(rates[:4]):
        share = math.exp(-rate)
        assert abs((x[:, i] == 0).double().mean() - share) <= 5 * math.sqrt(share / N) + 1e-4


def test_poisson_edges():
    rates = torch.tensor([0.0, 5.0], device="tpu")
    assert torch.poisson(rates)[0].item() == 0
    assert torch.poisson(torch.empty(0, device="tpu")).shape == (0,)
    torch.poisson(torch.tensor([1.0, -1.0], device="tpu"))
    with pytest.raises(RuntimeError, match="invalid Poisson rate"):
        torch.tpu.synchronize()
    with pytest.raises(NotImplementedError, match="poisson_cpu"):
        torch.poisson(torch.ones(2, dtype=torch.int64, device="tpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_binomial(dtype):
    counts = [1.0, 12.0, 40.0, 100.0, 100.0, 5000.0, 30.0]
    probabilities = [0.3, 0.5, 0.9, 0.05, 0.5, 0.7, 0.999]
    x = samples(torch.binomial, counts, probabilities, dtype=dtype)
    assert (x == x.floor()).all() and (x >= 0).all()
    assert (x <= torch.tensor(counts)).all()
    # What the dtype makes of them.
    p = torch.tensor(probabilities, dtype=dtype).double().tolist()
    variance = [n * q * (1 - q) for n, q in zip(counts, p, strict=True)]
    fourth = [
        v * (1 + 3 * (n - 2) * q * (1 - q)) for n, q, v in zip(counts, p, variance, strict=True)
    ]
    check_moments(x, [n * q for n, q in zip(counts, p, strict=True)], variance, fourth)


def test_binomial_edges():
    count = torch.tensor([5.0, 5.0, 0.0, 5.0, math.nan], device="tpu")
    probability = torch.tensor([0.0, 1.0, 0.5, math.nan, 0.5], device="tpu")
    x = torch.binomial(count, probability).cpu()
    assert x[:3].tolist() == [0, 5, 0] and x[3:].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gamma(dtype):
    shapes = [0.3, 1.0, 2.5, 50.0]
    x = samples(torch._standard_gamma, shapes, dtype=dtype)
    assert (x > 0).all()
    check_moments(x, shapes, shapes, [3 * a * a + 6 * a for a in shapes])
    # The mean of the logarithm is the digamma function, which tells small numbers.
    logs = x.log().mean(0)
    alpha = torch.tensor(shapes, dtype=torch.float64)
    error = (torch.special.polygamma(1, alpha) / N).sqrt()
    assert ((logs - torch.digamma(alpha)).abs() <= 5 * error).all()


def test_gamma_edges():
    x = torch._standard_gamma(torch.tensor([1e-9, math.nan], device="tpu")).cpu()
    assert 0 < x[0] < 1e-3 and x[1].isnan()


def test_dirichlet():
    alpha = torch.tensor([0.5, 2.0, 4.0], dtype=torch.float64)
    x = samples(torch._sample_dirichlet, alpha.tolist())
    torch.testing.assert_close(x.sum(-1), torch.ones(N, dtype=torch.float64), rtol=0, atol=1e-6)
    share = alpha / alpha.sum()
    variance = share * (1 - share) / (alpha.sum() + 1)
    assert ((x.mean(0) - share).abs() <= 5 * (variance / N).sqrt()).all()


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.poisson(5 * x),
        lambda x: torch.binomial(20 * x, x / 2),
        torch._standard_gamma,
        torch._sample_dirichlet,
    ],
)
def test_seed_fixes_the_numbers(draw):
    x = torch.ones(50, 3, device="tpu")
    torch.manual_seed(3)
    first, second = draw(x).cpu(), draw(x).cpu()
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(draw(x).cpu(), first)
    torch.tpu.set_eager_mode("debug")
    try:
        assert torch.equal(draw(x).cpu(), second)
    finally:
        torch.tpu.set_eager_mode("strict")


def test_nothing_falls_back():
    before = torch.tpu.fallbacks()
    torch.distributions.Gamma(torch.ones(3, device="tpu"), 2.0).sample((4,))
    torch.distributions.Beta(torch.ones(3, device="tpu"), 2.0).sample()
    torch.distributions.Binomial(10, torch.full((3,), 0.5, device="tpu")).sample()
    assert torch.tpu.fallbacks() == before
