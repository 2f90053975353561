"""Softmax and losses against CPU PyTorch."""

import math

import pytest
import torch
import torch.nn.functional as F
from agreement import agree_on
from rule_inputs import all_layouts, out_forms, values, with_gradients, words

SOFTMAX = {
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "softmin": F.softmin,
    "safe_softmax": torch.ops.aten._safe_softmax,
}


@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax(name):
    function = SOFTMAX[name]
    x = values(3, 4, 5, low=-20, high=20)
    for dim in (0, 1, -1):
        agree_on(with_gradients(lambda x, d=dim: function(x, d)), x, tolerance=1e-5)
    agree_on(all_layouts(lambda x: function(x, 0)), values(4, 6), tolerance=1e-5)
    for dtype in (torch.bfloat16, torch.float16):
        agree_on(lambda x: function(x, 1), x.to(dtype), tolerance=3e-2)
    agree_on(lambda x: function(x, 1), x.double(), tolerance=1e-12)
    agree_on(lambda x: function(x, 1, dtype=torch.float64), x, tolerance=1e-12)
    agree_on(lambda x: function(x, 1, dtype=torch.float32), x.bfloat16(), tolerance=1e-5)
    agree_on(lambda x: function(x, 1), x.long())
    agree_on(lambda x: function(x, 3), x)
    agree_on(lambda x: function(x[:, :0], 1), x)


@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_of_infinities(name):
    inf = math.inf
    rows = [
        [1.0, -inf, 2.0],
        [-inf, -inf, -inf],
        [inf, 1.0, 2.0],
        [math.nan, 1.0, 2.0],
        [1e4, 0, 1],
    ]
    agree_on(lambda x: SOFTMAX[name](x, 1), torch.tensor(rows), tolerance=1e-5)


def test_softmax_out():
    for function in (torch.softmax, torch.log_softmax):
        agree_on(
            out_forms(lambda x, f=function, **out: f(x, 1, **out), wider=False),
            values(3, 4),
            tolerance=1e-5,
        )


REDUCTIONS = words("none mean sum")


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_nll_loss(reduction, weighted):
    x, target = values(6, 4), torch.tensor([0, 3, 1, -100, 2, 3])
    weight = (values(4, low=0.1, high=2, seed=1),) if weighted else ()

    def run(x, target, *w):
        w = w[0] if w else None
        logs = with_gradients(lambda x: F.nll_loss(x, target, w, reduction=reduction))(x)
        other = F.nll_loss(x.detach(), target.clamp(min=0), w, ignore_index=3, reduction=reduction)
        return logs, other

    agree_on(run, x, target, *weight, tolerance=1e-5)
    agree_on(run, x.bfloat16(), target, *[w.bfloat16() for w in weight], tolerance=3e-2)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nll_loss_of_images(reduction):
    x, target = values(2, 4, 3, 3), values(2, 3, 3, dtype=torch.int64, low=0, high=4)
    target[0, 0] = -100
    weight = values(4, low=0.1, high=2, seed=1)

    def run(x, target, weight):
        return with_gradients(lambda x: F.nll_loss(x, target, weight, reduction=reduction))(x)

    agree_on(run, x, target, weight, tolerance=1e-5)
    agree_on(lambda x, t: F.nll_loss(x, t, reduction=reduction), x, target, tolerance=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_cross_entropy(reduction, smoothing):
    x, target = values(6, 4), torch.tensor([0, 3, 1, -100, 2, 3])
    weight, shares = values(4, low=0.1, high=2, seed=1), values(6, 4, seed=2).softmax(1)

    def run(x, target, weight, shares):
        arguments = {"reduction": reduction, "label_smoothing": smoothing}
        plain = with_gradients(lambda x: F.cross_entropy(x, target, **arguments))(x)
        heavy = F.cross_entropy(x, target, weight, **arguments).detach()
        soft = with_gradients(lambda x: F.cross_entropy(x, shares, **arguments))(x.detach())
        return plain, heavy, soft

    agree_on(run, x, target, weight, shares, tolerance=1e-5)


def test_cross_entropy_of_nothing():
    x = values(3, 4)
    agree_on(lambda x: F.cross_entropy(x, torch.full([3], -100, device=x.device)), x)
    agree_on(
        lambda x: F.cross_entropy(x[:0], torch.empty(0, dtype=torch.int64, device=x.device)), x
    )
    agree_on(lambda x: F.cross_entropy(x, torch.tensor([0, 1], device=x.device)), x)


def test_target_out_of_range():
    x = values(3, 4).tpu()
    with pytest.raises((IndexError, RuntimeError)):
        F.nll_loss(x, torch.tensor([0, 4, 1]).tpu()).cpu()
    assert F.nll_loss(x, torch.tensor([0, 3, 1]).tpu()).isfinite().item()


ELEMENTWISE = {
    "mse_loss": {},
    "l1_loss": {},
    "smooth_l1_loss": {"beta": 0.7},
    "huber_loss": {"delta": 0.6},
    "soft_margin_loss": {},
    "kl_div": {},
    "poisson_nll_loss": {},
    "binary_cross_entropy": {},
    "binary_cross_entropy_with_logits": {},
    "hinge_embedding_loss": {},
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_loss(name, reduction):
    function = getattr(F, name)
    x, y = values(3, 4, low=0.05, high=0.95), values(3, 4, low=0.05, high=0.95, seed=1)

    def run(x, y):
        return with_gradients(lambda x: function(x, y, reduction=reduction, **ELEMENTWISE[name]))(x)

    agree_on(run, x, y, tolerance=2e-5)
    agree_on(run, x.mT, y.mT, tolerance=2e-5)
    agree_on(run, x[:0], y[:0])
    if name not in ("kl_div",):
        agree_on(run, x.bfloat16(), y.bfloat16(), tolerance=4e-2)


def test_losses_differentiate_by_their_targets():
    x, y = values(3, 4, low=0.05, high=0.95), values(3, 4, low=0.05, high=0.95, seed=1)
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"):
        agree_on(with_gradients(getattr(F, name)), x, y, tolerance=2e-5)


def test_weighted_binary_cross_entropy():
    x, y = values(3, 4, low=0.05, high=0.95), values(3, 4, low=0, high=1, seed=1)
    weight = values(4, low=0.5, high=2, seed=2)

    def run(x, y, w):
        logits = F.binary_cross_entropy_with_logits
        first = with_gradients(lambda x: F.binary_cross_entropy(x, y, w))(x)
        second = with_gradients(lambda x: logits(x * 50, y, w, pos_weight=w))(x.detach())
        return first, second

    agree_on(run, x, y, weight, tolerance=1e-4)
    agree_on(
        F.binary_cross_entropy,
        torch.tensor([0.0, 1.0, 0.5]),
        torch.tensor([0.0, 0.0, 1.0]),
        tolerance=1e-5,
    )


def test_binary_cross_entropy_of_no_probability():
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        F.binary_cross_entropy(torch.tensor([1.5]).tpu(), torch.tensor([1.0]).tpu()).cpu()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_losses_of_vectors(reduction):
    a, b, c = (values(4, 5, seed=i) for i in range(3))
    sign = torch.tensor([1.0, -1, 1, -1])

    def run(a, b, c, sign):
        cosine = F.cosine_embedding_loss(a, b, sign, margin=0.1, reduction=reduction)
        triplet = F.triplet_margin_loss(a, b, c, reduction=reduction)
        ranking = F.margin_ranking_loss(a[:, 0], b[:, 0], sign, reduction=reduction)
        gaussian = F.gaussian_nll_loss(a, b, c.abs() + 0.1, reduction=reduction)
        labels = F.multilabel_soft_margin_loss(a, (b > 0).float(), reduction=reduction)
        return cosine, triplet, ranking, gaussian, labels

    agree_on(run, a, b, c, sign, tolerance=2e-5)
    agree_on(with_gradients(lambda a, b: F.cosine_similarity(a, b, dim=1)), a, b, tolerance=2e-5)
    agree_on(with_gradients(lambda a, b: F.pairwise_distance(a, b)), a, b, tolerance=2e-5)
