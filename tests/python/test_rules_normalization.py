"""Normalizations against CPU PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from agreement import agree_on
from rule_inputs import values, with_gradients
from torch import nn

CHANNELS_LAST = torch.channels_last


@pytest.mark.parametrize("shape", [[6], [4, 6], [3, 4, 6]])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(shape, affine):
    x = values(3, 3, 4, 6)
    parameters = (values(*shape, seed=1), values(*shape, seed=2)) if affine else ()
    function = lambda x, *p: F.layer_norm(x, shape, *p)  # noqa: E731
    agree_on(with_gradients(function), x, *parameters, tolerance=1e-4)
    agree_on(with_gradients(function), x.transpose(0, 1), *parameters, tolerance=1e-4)


def test_layer_norm_kinds():
    x, weight, bias = values(3, 5), values(5, seed=1), values(5, seed=2)
    agree_on(lambda x, w: F.layer_norm(x, [5], w, eps=0.1), x, weight, tolerance=1e-5)
    agree_on(lambda x: torch.native_layer_norm(x, [5], None, None, 1e-5), x, tolerance=1e-5)
    half = [t.bfloat16() for t in (x, weight, bias)]
    agree_on(lambda *a: F.layer_norm(a[0], [5], *a[1:]), *half, tolerance=2e-2)
    # Parameters may be float32 beside narrow inputs.
    agree_on(lambda *a: F.layer_norm(a[0], [5], *a[1:]), half[0], weight, bias, tolerance=2e-2)
    double = [t.double() for t in (x, weight, bias)]
    agree_on(with_gradients(lambda *a: F.layer_norm(a[0], [5], *a[1:])), *double, tolerance=1e-10)
    agree_on(lambda x: F.layer_norm(x + 1e4, [5]), x, tolerance=2e-2)  # no cancellation
    agree_on(lambda x: F.layer_norm(x[:0], [5]), x)
    x[1, 2] = float("nan")
    agree_on(lambda x: F.layer_norm(x, [5]), x, tolerance=1e-5)


def test_layer_norm_errors():
    x = values(3, 5)
    agree_on(lambda x: F.layer_norm(x, [4]), x)
    agree_on(lambda x: F.layer_norm(x, []), x)
    agree_on(lambda x: F.layer_norm(x, [5], x[0, :3]), x)
    agree_on(lambda x: F.layer_norm(x.long(), [5]), x)


@pytest.mark.parametrize("eps", [None, 1e-3])
def test_rms_norm(eps):
    x, weight = values(3, 4, 6), values(6, seed=1)
    agree_on(with_gradients(lambda x, w: F.rms_norm(x, [6], w, eps)), x, weight, tolerance=1e-4)
    agree_on(with_gradients(lambda x: F.rms_norm(x, [4, 6], None, eps)), x, tolerance=1e-4)
    agree_on(lambda x: F.rms_norm(x, [6], None, eps), x.bfloat16(), tolerance=2e-2)
    agree_on(lambda x: F.rms_norm(x, [5], None, eps), x)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("shape", [[2, 4], [2, 4, 3], [2, 4, 3, 5], [2, 4, 2, 2, 3]])
def test_group_norm(groups, shape):
    x, weight, bias = values(*shape), values(4, seed=1), values(4, seed=2)
    function = lambda x, *p: F.group_norm(x, groups, *p)  # noqa: E731
    if shape == [2, 4] and groups == 4:
        agree_on(lambda x: F.group_norm(x, 4), x)  # one value a group: refused
        return
    agree_on(with_gradients(function), x, weight, bias, tolerance=1e-4)
    agree_on(with_gradients(function), x, tolerance=1e-4)


def test_group_norm_keeps_channels_last():
    x = values(2, 4, 3, 5).to(memory_format=CHANNELS_LAST)
    agree_on(lambda x: F.group_norm(x, 2), x, tolerance=1e-5)
    # On devices other than the CPU autograd makes the gradient contiguous.
    gradient = with_gradients(lambda x: F.group_norm(x, 2))
    agree_on(lambda x: gradient(x)[1][0].contiguous(), x, tolerance=1e-4)
    agree_on(lambda x: F.group_norm(x, 3), x)
    agree_on(lambda x: F.group_norm(x, 2), x.bfloat16(), tolerance=2e-2)
    weight = values(4, seed=1)
    agree_on(lambda x, w: F.group_norm(x, 2, w), x.bfloat16(), weight, tolerance=2e-2)


@pytest.mark.parametrize("shape", [[5, 3], [2, 3, 4], [2, 3, 4, 5], [2, 3, 2, 3, 2]])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(shape, training):
    def run(x, weight, bias, mean, variance):
        results = with_gradients(
            lambda x, w, b: F.batch_norm(x, mean, variance, w, b, training, 0.3, 1e-3)
        )(x, weight, bias)
        return results, mean, variance

    x = values(*shape)
    vectors = [values(3, low=0.5, high=2, seed=i) for i in range(1, 5)]
    agree_on(run, x, *vectors, tolerance=1e-4)
    if len(shape) == 4:
        agree_on(run, x.to(memory_format=CHANNELS_LAST), *vectors, tolerance=1e-4)
        agree_on(run, x.double(), *[v.double() for v in vectors], tolerance=1e-10)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_without_parameters(training):
    x, mean, variance = values(4, 3, 5), values(3, seed=1), values(3, low=1, high=2, seed=2)

    def run(x, mean, variance):
        y = F.batch_norm(x, mean, variance, training=training)
        return y, mean, variance

    agree_on(run, x, mean, variance, tolerance=1e-5)
    agree_on(run, x.bfloat16(), mean, variance, tolerance=2e-2)
    agree_on(lambda x: F.batch_norm(x, None, None, training=training), x, tolerance=1e-5)
    agree_on(lambda x, m: F.batch_norm(x, m, None, training=True), x, mean, tolerance=1e-5)


def test_batch_norm_module_over_steps():
    def run(x):
        torch.manual_seed(0)
        module = nn.BatchNorm2d(3, momentum=None).to(x.device)
        for i in range(3):
            y = module(x * (i + 1))
        trained = [t.detach().clone() for t in (module.running_mean, module.running_var)]
        module.eval()
        return y.detach(), trained, module.num_batches_tracked, module(x).detach()

    agree_on(run, values(4, 3, 5, 5), tolerance=1e-5)


def test_batch_norm_errors():
    agree_on(lambda x: F.batch_norm(x, None, None, training=False), values(4, 3))
    agree_on(lambda x, m: F.batch_norm(x, m, m), values(4, 3), values(2))
    agree_on(lambda x: F.batch_norm(x, None, None, training=True), values(1, 3))
    agree_on(lambda x: F.batch_norm(x, None, None, training=True), values(3))


def test_functional_batch_norm():
    def run(x, w, b, m, v):
        aten = torch.ops.aten
        both = aten._native_batch_norm_legit_functional(x, w, b, m, v, True, 0.2, 1e-3)
        held = m.clone(), v.clone()
        mutated = aten._native_batch_norm_legit(x, w, b, m, v, True, 0.2, 1e-3)
        updated = aten._batch_norm_with_update(x, w, b, *held, 0.2, 1e-3)[0]
        plain = aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.2, 1e-3)
        still = aten._native_batch_norm_legit_no_training(x, w, b, m, v, 0.2, 1e-3)[0]
        return both, held, mutated, m, v, updated, plain, still

    vectors = [values(3, low=0.5, high=2, seed=i) for i in range(1, 5)]
    agree_on(run, values(4, 3, 5), *vectors, tolerance=1e-5)


def test_instance_norm():
    x = values(2, 3, 4, 5)
    mean, variance = values(3, seed=1), values(3, low=1, high=2, seed=2)
    agree_on(with_gradients(F.instance_norm), x, tolerance=1e-4)

    def tracked(x, m, v):
        return F.instance_norm(x, m, v, use_input_stats=True), m, v

    agree_on(tracked, x, mean, variance, tolerance=1e-5)
    agree_on(
        lambda x, m, v: F.instance_norm(x, m, v, use_input_stats=False),
        x,
        mean,
        variance,
        tolerance=1e-5,
    )


def test_local_response_norm():
    agree_on(
        with_gradients(lambda x: F.local_response_norm(x, 3)), values(2, 5, 4, 4), tolerance=1e-5
    )


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_normalize_and_renorm(p):
    x = values(3, 4)
    x[1] = 0
    agree_on(with_gradients(lambda x: F.normalize(x[:1], p=p)), x, tolerance=1e-4)
    agree_on(lambda x: [F.normalize(x, p=p), torch.renorm(x, p, 0, 1.5)], x, tolerance=1e-5)


def test_weight_norm():
    def run(v, g):
        return torch._weight_norm(v, g, 0)

    v, g = values(3, 4), values(3, 1, seed=1)
    agree_on(with_gradients(run), v, g, tolerance=1e-4)
    agree_on(lambda v, g: torch._weight_norm_interface(v, g, 0), v, g, tolerance=1e-5)
    agree_on(lambda v, g: torch._weight_norm_interface(v, g.T, 1), v[:, :3], g, tolerance=1e-5)
    agree_on(run, v.bfloat16(), g.bfloat16(), tolerance=2e-2)
