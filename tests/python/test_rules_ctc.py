"""The CTC loss against CPU PyTorch."""

import math

import pytest
import torch
import torch.nn.functional as F
from agreement import agree_on
from rule_inputs import values, with_gradients, words

REDUCTIONS = words("none mean sum")
TIME, BATCH, CLASSES = 9, 4, 5
PADDED = torch.tensor([[1, 2, 2, 4], [3, 3, 3, 99], [4, -7, 0, 0], [1, 1, 1, 1]])
INPUTS, TARGETS = [9, 7, 5, 1], [4, 3, 1, 0]


def log_probs(dtype=torch.float32):
    x = values(TIME, BATCH, CLASSES, low=-4, high=4, dtype=torch.float64)
    return x.log_softmax(2).to(dtype)


def concatenated(padded=PADDED, lengths=TARGETS):
    return torch.cat([row[:n] for row, n in zip(padded, lengths, strict=True)])


def loss(inputs, targets, **options):
    return lambda x, t: with_gradients(lambda x: F.ctc_loss(x, t, inputs, targets, **options))(x)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("targets", [PADDED, PADDED.int(), concatenated()], ids=words("2d int 1d"))
def test_ctc_loss(reduction, targets):
    run = loss(INPUTS, TARGETS, reduction=reduction)
    agree_on(run, log_probs(), targets, tolerance=1e-4)
    agree_on(run, log_probs(torch.float64), targets, tolerance=1e-11)


@pytest.mark.parametrize("where", ["cpu", "same"])
def test_lengths_in_tensors(where):
    def run(x, t):
        device = x.device if where == "same" else "cpu"
        inputs, targets = torch.tensor(INPUTS).to(device), torch.tensor(TARGETS).int().to(device)
        return with_gradients(lambda x: F.ctc_loss(x, t, inputs, targets))(x)

    agree_on(run, log_probs(), PADDED, tolerance=1e-4)


def test_tensor_overloads():
    def run(x, t):
        lengths = torch.tensor(INPUTS), torch.tensor(TARGETS)
        loss, alpha = torch.ops.aten._ctc_loss.Tensor(x, t, *lengths)
        grad = torch.ops.aten._ctc_loss_backward.Tensor(
            torch.ones_like(loss), x, t, *lengths, loss, alpha, 0
        )
        return loss, grad

    agree_on(run, log_probs(), PADDED, tolerance=1e-4)


def test_another_blank():
    labels = PADDED.clamp(0, 4) % 4
    for blank in (2, 4):
        run = loss(INPUTS, TARGETS, blank=blank, reduction="none")
        agree_on(run, log_probs(), labels.where(labels != blank, 3), tolerance=1e-4)
    agree_on(loss(INPUTS, TARGETS, blank=5), log_probs(), PADDED)


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_targets_that_cannot_be(zero_infinity, reduction):
    # Three equal labels need five steps, four labels four, any label at least one.
    run = loss([3, 4, 0, 0], [4, 3, 1, 0], zero_infinity=zero_infinity, reduction=reduction)
    agree_on(run, log_probs(), PADDED, tolerance=1e-4)


def test_impossible_classes():
    x = log_probs()
    x[2, :, 3] = -math.inf
    x[4, 0] = -math.inf
    agree_on(loss(INPUTS, TARGETS, reduction="none"), x, PADDED, tolerance=1e-4)


def test_layouts_and_single_sequences():
    x = log_probs()
    run = loss(INPUTS, TARGETS)
    agree_on(lambda x, t: run(x.transpose(0, 1), t), x.transpose(0, 1).contiguous(), PADDED,
             tolerance=1e-4)  # fmt: skip
    agree_on(lambda x, t: run(x, t.t()), x, PADDED.t().contiguous(), tolerance=1e-4)
    agree_on(lambda x, t: F.ctc_loss(x, t, [9], [4]), x[:, 0], PADDED[0], tolerance=1e-4)
    agree_on(loss([1, 1, 1, 1], [0, 0, 0, 0]), x, PADDED[:, :0], tolerance=1e-4)
    agree_on(loss([1, 1, 1, 1], [1, 1, 1, 1]), x[:1], PADDED.clamp(0, 4), tolerance=1e-4)


def test_long_sequences():
    x = values(200, 2, 6, low=-3, high=3).log_softmax(2)
    targets = values(2, 60, low=1, high=6, dtype=torch.int64)
    agree_on(loss([200, 180], [60, 45]), x, targets, tolerance=1e-4)


def test_lengths_compile_nothing():
    x, targets = log_probs().tpu(), PADDED.clamp(0, 4).tpu()
    run = loss(INPUTS, TARGETS)
    run(x, targets)
    before = torch.tpu.compilations()["count"]
    for shorter in ([8, 7, 6, 5], [9, 9, 4, 4]):
        loss(shorter, [2, 2, 1, 2])(x.detach(), targets)
    assert torch.tpu.compilations()["count"] == before


def test_errors():
    x = log_probs()
    agree_on(loss(INPUTS, TARGETS), x.bfloat16(), PADDED)
    agree_on(loss(INPUTS[:3], TARGETS), x, PADDED)
    agree_on(loss(INPUTS, TARGETS[:3]), x, PADDED)
    agree_on(loss([10, 1, 1, 1], TARGETS), x, PADDED)
    agree_on(loss([-1, 1, 1, 1], TARGETS), x, PADDED)
    agree_on(loss(INPUTS, [-1, 1, 1, 1]), x, PADDED)
    agree_on(loss(INPUTS, [5, 1, 1, 1]), x, PADDED)
    agree_on(loss(INPUTS, TARGETS), x, PADDED[:3])
    agree_on(loss(INPUTS, TARGETS), x, concatenated()[:-1])
    agree_on(loss(INPUTS, TARGETS), x, PADDED.float(), tolerance=1e-4)
    agree_on(loss(INPUTS, TARGETS), x, PADDED[None])
    agree_on(loss(INPUTS, TARGETS), x, PADDED, tolerance=1e-4)
