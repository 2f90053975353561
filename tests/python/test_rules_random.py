"""Random operators: shapes, dtypes and errors as on CPU, numbers by their statistics."""

import math

import pytest
import torch
import torch.nn.functional as F
from agreement import agree
from rule_inputs import values

N = 40_000
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(20)


def distance(sample, cumulative):
    """Kolmogorov and Smirnov's, of a sample from a distribution, times the root of its size."""
    x = sample.flatten().double().cpu().sort().values
    expected = cumulative(x)
    steps = torch.arange(len(x) + 1, dtype=torch.float64) / len(x)
    worst = torch.maximum((expected - steps[:-1]).abs(), (expected - steps[1:]).abs()).max()
    return worst.item() * math.sqrt(len(x))


CONTINUOUS = {
    "uniform": (lambda x: x.uniform_(-1, 3), lambda x: (x + 1) / 4),
    "normal": (lambda x: x.normal_(1, 2), lambda x: torch.special.ndtr((x - 1) / 2)),
    "exponential": (lambda x: x.exponential_(0.5), lambda x: 1 - torch.exp(-0.5 * x)),
    "cauchy": (lambda x: x.cauchy_(1, 2), lambda x: torch.atan((x - 1) / 2) / math.pi + 0.5),
    "log_normal": (lambda x: x.log_normal_(0, 0.5), lambda x: torch.special.ndtr(x.log() / 0.5)),
}


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_continuous(name, dtype):
    draw, cumulative = CONTINUOUS[name]
    sample = draw(torch.empty(N, dtype=dtype, device="tpu"))
    assert sample.dtype is dtype
    assert sample.isfinite().all().item()
    assert distance(sample, cumulative) < 1.95  # 1 in 1000 by chance
    part = torch.zeros(10, 8, dtype=dtype, device="tpu")
    draw(part[:, ::2])
    assert (part[:, 1::2] == 0).all().item() and (part[:, ::2] != 0).all().item()


@pytest.mark.parametrize("dtype", FLOATS)
def test_narrow_floats(dtype):
    uniform = torch.rand(N, dtype=dtype, device="tpu")
    assert uniform.min().item() >= 0 and uniform.max().item() < 1
    assert uniform.float().mean().item() == pytest.approx(0.5, abs=0.01)
    normal = torch.randn(N, dtype=dtype, device="tpu").float()
    assert normal.mean().item() == pytest.approx(0, abs=0.02)
    assert normal.std().item() == pytest.approx(1, abs=0.02)
    assert torch.empty(N, dtype=dtype, device="tpu").exponential_().min().item() > 0


def test_complex_normal():
    z = torch.randn(N, dtype=torch.complex64, device="tpu").cpu()
    assert z.real.var().item() == pytest.approx(0.5, abs=0.02)
    assert z.imag.var().item() == pytest.approx(0.5, abs=0.02)
    assert (z.real * z.imag).mean().item() == pytest.approx(0, abs=0.02)


def test_neighbours_are_independent():
    x = torch.randn(2 * N, device="tpu").cpu()
    for lag in (1, 2, 3, 4):
        assert (x[:-lag] * x[lag:]).mean().item() == pytest.approx(0, abs=0.02)
    first, second = torch.rand(N, device="tpu").cpu(), torch.rand(N, device="tpu").cpu()
    assert torch.corrcoef(torch.stack([first, second]))[0, 1].item() == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32])
def test_integers(dtype):
    x = torch.randint(3, 13, (N,), dtype=dtype, device="tpu")
    assert x.dtype is dtype
    counts = torch.bincount(x.cpu().long(), minlength=13)
    assert counts[:3].sum() == 0 and counts[3:].sum() == N
    # Chi squared with nine degrees of freedom.
    assert ((counts[3:] - N / 10) ** 2 / (N / 10)).sum().item() < 28
    assert torch.randint_like(x, 5).max().item() == 4
    assert x.random_(2).max().item() == 1


def test_wide_integers():
    x = torch.randint(-(2**40), 2**40, (N,), device="tpu").cpu()
    assert x.min() < -(2**39) and x.max() > 2**39
    assert torch.empty(N, dtype=torch.int64, device="tpu").random_().max().item() > 2**61


def test_bernoulli():
    p = torch.tensor([0.0, 0.25, 0.5, 1.0]).repeat(N // 4, 1).tpu()
    for x in (torch.bernoulli(p), torch.zeros_like(p).bernoulli_(p), p.bool().bernoulli_(p)):
        means = x.float().mean(0).cpu()
        assert torch.allclose(means, torch.tensor([0, 0.25, 0.5, 1]), atol=0.02)
    assert torch.zeros(N, device="tpu").bernoulli_(0.3).mean().item() == pytest.approx(
        0.3, abs=0.02
    )


def test_geometric_and_poisson():
    x = torch.zeros(N, device="tpu").geometric_(0.25)
    assert x.min().item() == 1 and x.mean().item() == pytest.approx(4, rel=0.03)
    y = torch.poisson(torch.full([N], 3.5, device="tpu"))
    assert y.mean().item() == pytest.approx(3.5, rel=0.03)
    assert y.var().item() == pytest.approx(3.5, rel=0.05)


def test_multinomial():
    weights = torch.tensor([1.0, 0, 3, 4]).tpu()
    drawn = torch.multinomial(weights, N, replacement=True).cpu()
    shares = torch.bincount(drawn, minlength=4) / N
    assert torch.allclose(shares, torch.tensor([0.125, 0, 0.375, 0.5]), atol=0.02)
    rows = torch.multinomial(weights.expand(200, 4), 3).cpu()
    assert rows.sort(1).values.tolist() == [[0, 2, 3]] * 200
    first = torch.multinomial(weights.expand(5000, 4), 1).cpu().flatten()
    shares = torch.bincount(first, minlength=4) / 5000
    assert torch.allclose(shares, torch.tensor([0.125, 0, 0.375, 0.5]), atol=0.04)


@pytest.mark.parametrize("n", [0, 1, 7, 1000])
def test_permutation(n):
    for dtype in (torch.int64, torch.int32):
        p = torch.randperm(n, device="tpu", dtype=dtype)
        assert p.dtype is dtype
        assert sorted(p.tolist()) == list(range(n))


def test_permutations_are_even():
    counts = torch.zeros(4, 4)
    for _ in range(400):
        counts[torch.arange(4), torch.randperm(4, device="tpu").cpu()] += 1
    # Three quarters of this are chi squared, of nine degrees of freedom.
    assert ((counts - 100) ** 2 / 100).sum().item() * 0.75 < 28


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout(p):
    x = torch.ones(N, device="tpu", requires_grad=True)
    y = F.dropout(x, p)
    assert (y == 0).float().mean().item() == pytest.approx(p, abs=0.02)
    if p < 1:
        assert y.max().item() == pytest.approx(1 / (1 - p))
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad.cpu(), y.detach().cpu())
    assert F.dropout(x, p, training=False) is x
    assert torch.equal(
        F.dropout(x.detach().clone(), p, inplace=True).unique().cpu(), y.unique().cpu()
    )


def test_dropout_of_channels():
    x = torch.ones(64, 16, 5, 5, device="tpu")
    y = F.dropout2d(x, 0.5).cpu()
    per_channel = y.flatten(2)
    assert (per_channel == per_channel[..., :1]).all()
    assert (per_channel[..., 0] == 0).float().mean().item() == pytest.approx(0.5, abs=0.06)
    z = F.alpha_dropout(torch.randn(N, device="tpu"), 0.2, training=True)
    assert z.mean().item() == pytest.approx(0, abs=0.03)
    assert z.std().item() == pytest.approx(1, abs=0.03)


def test_rrelu():
    x = torch.full([N], -1.0, device="tpu", requires_grad=True)
    y = F.rrelu(x, 0.1, 0.3, training=True)
    assert y.min().item() >= -0.3 and y.max().item() <= -0.1
    assert y.mean().item() == pytest.approx(-0.2, abs=0.005)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.allclose(-grad.cpu(), y.detach().cpu())
    both = torch.tensor([1.0, -1.0]).tpu()
    F.rrelu(both, training=True, inplace=True)
    assert both[0].item() == 1 and -1 < both[1].item() < 0


def test_gumbel_softmax():
    shares = F.gumbel_softmax(torch.tensor([0.0, 1.0]).log().expand(2000, 2).tpu(), hard=True).cpu()
    assert torch.equal(shares[:, 1], torch.ones(2000))
    even = F.gumbel_softmax(torch.zeros(4000, 2).tpu(), hard=True).mean(0)
    assert even[0].item() == pytest.approx(0.5, abs=0.03)


def test_normal_of_tensors():
    mean, std = values(5, 1).tpu(), values(1, 4, low=0.1, seed=1).abs().tpu()
    x = torch.normal(mean.expand(5, 4), std.expand(5, 4))
    assert x.shape == (5, 4)
    many = torch.normal(mean.flatten()[0].expand(N), 0.5)
    assert many.mean().item() == pytest.approx(mean.flatten()[0].item(), abs=0.02)
    assert torch.normal(2.0, std.flatten()[:1].expand(N)).mean().item() == pytest.approx(
        2, abs=0.05
    )


def test_errors():
    agree(lambda d: torch.empty(2, device=d).normal_(0, -1))
    agree(lambda d: torch.empty(2, device=d).uniform_(2, 1))
    agree(lambda d: torch.empty(2, device=d).exponential_(0))
    agree(lambda d: torch.empty(2, device=d).geometric_(1.5))
    agree(lambda d: torch.empty(2, device=d).bernoulli_(1.5))
    agree(lambda d: torch.empty(2, device=d).cauchy_(0, 0))
    agree(lambda d: torch.randint(5, 5, (2,), device=d))
    agree(lambda d: torch.randperm(-1, device=d))
    agree(lambda d: torch.multinomial(torch.ones(3, device=d), 4))
    agree(lambda d: torch.multinomial(torch.ones(2, 3, 4, device=d), 1))
    agree(lambda d: torch.rand(2, dtype=torch.int64, device=d))
    agree(lambda d: torch.empty(2, dtype=torch.int64, device=d).normal_())


@pytest.mark.parametrize("bad", [[-1.0, 2], [math.nan, 1], [0.0, 0]])
def test_multinomial_of_no_distribution(bad):
    with pytest.raises(RuntimeError):
        torch.multinomial(torch.tensor(bad).tpu(), 1).cpu()
    assert torch.ones(1).tpu().item() == 1


def test_same_shapes_and_strides():
    image = values(2, 3, 4, 5).to(memory_format=torch.channels_last).tpu()
    for x in (torch.rand_like(image), torch.randn_like(image), F.dropout(image, 0.5)):
        assert x.stride() == image.stride()
    assert torch.rand(0, 3, device="tpu").shape == (0, 3)
    assert torch.randn([], device="tpu").shape == ()
