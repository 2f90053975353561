"""SyncBatchNorm's operators: a batch in two shares gives what batch norm gives for the whole."""

import pytest
import torch
import torch.nn.functional as F

EPS, MOMENTUM = 1e-5, 0.3


def close(actual, expected, tolerance=1e-5):
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    torch.testing.assert_close(actual.cpu(), expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(params=[torch.float32, torch.float64, torch.bfloat16], ids=lambda d: str(d)[6:])
def batch(request):
    torch.manual_seed(1)
    x = (torch.randn(7, 3, 4, 5) * 3 + 1).to(request.param)
    parameter = torch.float64 if request.param == torch.float64 else torch.float32
    return x, torch.randn(3, dtype=parameter), torch.randn(3, dtype=parameter)


def statistics(x):
    """Mean and 1/deviation of a channel, kept in float32 or float64."""
    x = x.to(torch.float64)
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
    return mean, (variance + EPS).rsqrt()


def test_shares_together_are_the_batch(batch):
    x, weight, bias = batch
    kept = torch.float64 if x.dtype == torch.float64 else torch.float32
    tolerance = 2e-2 if x.dtype == torch.bfloat16 else 1e-5
    shares = [x[:3].to("tpu"), x[3:].to("tpu")]
    means, invstds = zip(*(torch.batch_norm_stats(s, EPS) for s in shares), strict=True)
    for share, mean, invstd in zip(shares, means, invstds, strict=True):
        expected = statistics(share.cpu())
        close(mean, expected[0].to(kept))
        close(invstd, expected[1].to(kept))

    running_mean, running_var = (torch.rand(3, dtype=kept) for _ in range(2))
    ours = running_mean.to("tpu"), running_var.to("tpu")
    counts = torch.tensor([3.0 * 20, 4.0 * 20], dtype=kept, device="tpu")
    mean, invstd = torch.batch_norm_gather_stats_with_counts(
        shares[0], torch.stack(means), torch.stack(invstds), *ours, MOMENTUM, EPS, counts
    )
    expected = statistics(x)
    close(mean, expected[0].to(kept))
    close(invstd, expected[1].to(kept))

    exact = x.to(kept).requires_grad_()
    weight, bias = weight.requires_grad_(), bias.requires_grad_()
    whole = F.batch_norm(
        exact, running_mean, running_var, weight, bias, training=True, momentum=MOMENTUM, eps=EPS
    )
    close(ours[0], running_mean)
    close(ours[1], running_var)

    w, b = weight.detach().to("tpu"), bias.detach().to("tpu")
    outputs = [torch.batch_norm_elemt(s, w, b, mean, invstd, EPS) for s in shares]
    close(torch.cat(outputs), whole.detach().to(x.dtype), tolerance)

    grad = torch.randn(whole.shape).to(x.dtype)
    whole.backward(grad.to(kept))
    grads = [grad[:3].to("tpu"), grad[3:].to("tpu")]
    reduced = [
        torch.batch_norm_backward_reduce(g, s, mean, invstd, w, True, True, True)
        for g, s in zip(grads, shares, strict=True)
    ]
    sum_dy, sum_dy_xmu, grad_weight, grad_bias = (a + b for a, b in zip(*reduced, strict=True))
    close(grad_weight, weight.grad, 1e-4)
    close(grad_bias, bias.grad, 1e-4)
    inputs = [
        torch.batch_norm_backward_elemt(
            g, s, mean, invstd, w, sum_dy, sum_dy_xmu, counts.to(torch.int32)
        )
        for g, s in zip(grads, shares, strict=True)
    ]
    close(torch.cat(inputs), exact.grad.to(x.dtype), tolerance)
    assert not torch.tpu.fallbacks() or all(
        "batch_norm" not in f["op"] for f in torch.tpu.fallbacks()
    )


def test_equal_shares():
    x = torch.randn(4, 2, 3).to("tpu")
    stats = [torch.batch_norm_stats(s, EPS) for s in (x[:2], x[2:])]
    mean, invstd = torch.batch_norm_gather_stats(
        x, *(torch.stack(s) for s in zip(*stats, strict=True)), None, None, MOMENTUM, EPS, 6
    )
    whole = torch.batch_norm_stats(x, EPS)
    close(mean, whole[0].cpu())
    close(invstd, whole[1].cpu())


def test_update_stats_as_on_cpu():
    x = torch.randn(4, 2, 3)
    results = {}
    for device in ("cpu", "tpu"):
        running = torch.zeros(2, device=device), torch.ones(2, device=device)
        results[device] = (*torch.batch_norm_update_stats(x.to(device), *running, 0.1), *running)
    for ours, cpu in zip(results["tpu"], results["cpu"], strict=True):
        close(ours, cpu)


def test_wanted_gradients_only():
    x = torch.randn(4, 2, 3, device="tpu")
    mean, invstd = torch.batch_norm_stats(x, EPS)
    results = torch.batch_norm_backward_reduce(x, x, mean, invstd, None, False, True, False)
    assert [r is None for r in results] == [True, True, False, True]


def test_channels_last_stays():
    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last).to("tpu")
    y = torch.batch_norm_elemt(x, None, None, *torch.batch_norm_stats(x, EPS), EPS)
    assert y.stride() == x.stride()


def test_wrong_shapes():
    x = torch.randn(4, 2, 3, device="tpu")
    with pytest.raises(RuntimeError, match=r"at least 2 dimensions, got \[3\]"):
        torch.batch_norm_stats(x[0, 0], EPS)
    bad = torch.ones(2, 5, device="tpu")
    with pytest.raises(RuntimeError, match=r"mean of shape \[shares, 2\], got \[2, 5\]"):
        torch.batch_norm_gather_stats(x, bad, bad, None, None, MOMENTUM, EPS, 6)
    assert torch.batch_norm_stats(x, EPS)[0].shape == (2,)
