"""Operators on lists of tensors, and optimizers, against CPU PyTorch."""

import copy

import pytest
import torch
from agreement import agree_on, moved, same
from rule_inputs import values, words
from torch import nn

A = [values(3, 4, low=0.2), values(5, low=0.2, seed=1), values(low=0.2, seed=2), values(0)]
B = [values(3, 4, low=0.5, seed=3), values(5, low=0.5, seed=4), values(low=0.5, seed=5), values(0)]
C = [values(3, 4, low=0.5, seed=6), values(5, low=0.5, seed=7), values(low=0.5, seed=8), values(0)]

UNARY = words("""
    abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg
    reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
""")


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    function, in_place = getattr(torch, f"_foreach_{name}"), getattr(torch, f"_foreach_{name}_")

    def run(xs):
        results = function(xs)
        in_place(xs)
        return list(results), xs

    domain = [x.clamp(max=0.9) for x in A]
    agree_on(run, domain, tolerance=1e-5)
    agree_on(lambda xs: list(function([xs[0].mT, xs[0][:, ::2]])), domain, tolerance=1e-5)
    agree_on(lambda xs: list(function([x.bfloat16() for x in xs])), domain, tolerance=2e-2)


BINARY = words("add sub mul div pow maximum minimum clamp_max clamp_min")


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    function, in_place = getattr(torch, f"_foreach_{name}"), getattr(torch, f"_foreach_{name}_")

    def run(xs, ys):
        results = [
            list(function(xs, ys)),
            list(function(xs, 2.0)),
            list(function(xs, 3)),
            list(function(xs, [1.0, 2.0, 3.0, 4.0])),
        ]
        if name in ("add", "mul", "div"):
            results.append(list(function(xs, ys[2])))
        if name in ("add", "sub"):
            results.append(list(function(xs, ys, alpha=0.5)))
        in_place(xs, ys)
        in_place(xs, 1.5)
        return results, xs

    agree_on(run, A, B, tolerance=1e-5)
    agree_on(run, [x.bfloat16() for x in A], [x.bfloat16() for x in B], tolerance=3e-2)
    agree_on(lambda xs, ys: list(function(xs, ys)), [x.double() for x in A], B, tolerance=1e-6)
    agree_on(lambda xs, ys: list(function(xs, ys[:2])), A, B)
    agree_on(lambda xs: list(function(xs, 2)), [torch.arange(3), torch.arange(2)])


@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
def test_pointwise(name):
    function, in_place = getattr(torch, f"_foreach_{name}"), getattr(torch, f"_foreach_{name}_")

    def run(xs, ys, zs):
        results = [
            list(function(xs, ys, zs)),
            list(function(xs, ys, zs, value=-0.5)),
            list(function(xs, ys, zs, [1.0, 2.0, 3.0, 4.0])),
            list(function(xs, ys, zs, torch.tensor([1.0, 2.0, 3.0, 4.0]))),
        ]
        in_place(xs, ys, zs, value=2)
        return results, xs

    agree_on(run, A, B, C, tolerance=1e-5)


def test_lerp():
    def run(xs, ys, zs):
        results = [list(torch._foreach_lerp(xs, ys, zs)), list(torch._foreach_lerp(xs, ys, 0.3))]
        torch._foreach_lerp_(xs, ys, 0.9)
        return results, xs

    agree_on(run, A, B, C, tolerance=1e-5)


@pytest.mark.parametrize("p", [1, 2, float("inf")])
def test_norm(p):
    agree_on(lambda xs: list(torch._foreach_norm(xs, p)), A[:3], tolerance=1e-5)
    agree_on(
        lambda xs: list(torch._foreach_norm(xs, p)), [x.bfloat16() for x in A[:3]], tolerance=2e-2
    )
    double = {"dtype": torch.float64}
    agree_on(lambda xs: list(torch._foreach_norm(xs, p, **double)), A[:3], tolerance=1e-6)


def test_copy_zero_and_max():
    def run(xs, ys):
        largest = list(torch._foreach_max(xs[:3]))
        torch._foreach_copy_(xs, ys)
        copied = [x.clone() for x in xs]
        torch._foreach_copy_(xs, [y.double() for y in ys])
        torch._foreach_zero_(ys[:2])
        return largest, copied, xs, ys

    agree_on(run, A, B)


def test_views_and_repetitions():
    def run(xs, ys):
        x = xs[0]
        torch._foreach_add_([x[:, 0], x[:, 2]], [ys[0][:, 0], ys[0][:, 1]])
        torch._foreach_mul_([x[1:], xs[1]], 2.0)
        y = ys[1]
        torch._foreach_add_([y, y], 1.0)  # the same tensor twice
        return xs, ys

    agree_on(run, A, B, tolerance=1e-6)


def test_gradients():
    def run(xs, ys):
        leaves = [t.requires_grad_() for t in (*xs[:3], *ys[:3])]
        results = torch._foreach_mul(xs[:3], torch._foreach_add(ys[:3], 2.0))
        return list(torch.autograd.grad([r.sum() for r in results], leaves))

    agree_on(run, A, B, tolerance=1e-5)


@pytest.mark.parametrize("p", [2.0, 1.0, float("inf")])
@pytest.mark.parametrize("foreach", [True, False])
def test_clip_gradients(p, foreach):
    def run(xs, ys):
        for x, y in zip(xs, ys, strict=True):
            x.requires_grad_().grad = y
        norm = nn.utils.clip_grad_norm_(xs, 0.7, p, foreach=foreach)
        clipped = [x.grad.clone() for x in xs]
        nn.utils.clip_grad_value_(xs, 0.1)
        return norm, clipped, [x.grad for x in xs]

    agree_on(run, A[:3], B[:3], tolerance=1e-5)


def steps(make, device, dtype=torch.float32, count=3):
    """Parameters and state after some steps on fixed gradients."""
    shapes = [[4, 3], [5], []]
    parameters = [
        nn.Parameter(values(*s, dtype=dtype, seed=i).to(device)) for i, s in enumerate(shapes)
    ]
    optimizer = make(parameters)
    for step in range(count):
        for i, p in enumerate(parameters):
            p.grad = values(*p.shape, dtype=dtype, seed=10 * step + i + 1).to(device)
        if step == 2:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * 0.5
        optimizer.step()
        optimizer.zero_grad()
    states = [
        [
            v
            for _, v in sorted(optimizer.state[p].items())
            if isinstance(v, torch.Tensor) and v.dim()
        ]
        for p in parameters
    ]
    return [p.detach() for p in parameters], states


OPTIMIZERS = {
    "sgd": lambda p, **o: torch.optim.SGD(p, 0.1, **o),
    "sgd_momentum": lambda p, **o: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, **o),
    "sgd_nesterov": lambda p, **o: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, **o),
    "adam": lambda p, **o: torch.optim.Adam(p, 0.01, **o),
    "adam_amsgrad": lambda p, **o: torch.optim.Adam(p, 0.01, amsgrad=True, weight_decay=0.1, **o),
    "adamw": lambda p, **o: torch.optim.AdamW(p, 0.01, weight_decay=0.1, **o),
    "adamw_maximize": lambda p, **o: torch.optim.AdamW(p, 0.01, maximize=True, **o),
    "adagrad": lambda p, **o: torch.optim.Adagrad(p, 0.05, lr_decay=0.1, **o),
    "rmsprop": lambda p, **o: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True, **o),
    "adadelta": lambda p, **o: torch.optim.Adadelta(p, 0.5, **o),
    "adamax": lambda p, **o: torch.optim.Adamax(p, 0.01, **o),
    "nadam": lambda p, **o: torch.optim.NAdam(p, 0.01, **o),
    "radam": lambda p, **o: torch.optim.RAdam(p, 0.01, **o),
    "asgd": lambda p, **o: torch.optim.ASGD(p, 0.01, **o),
    "rprop": lambda p, **o: torch.optim.Rprop(p, 0.01, **o),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("foreach", [None, True, False])
def test_optimizer(name, foreach):
    torch.tpu.clear_fallbacks()
    make = lambda p: OPTIMIZERS[name](p, foreach=foreach)  # noqa: E731
    same(steps(make, "tpu"), steps(make, "cpu"), name, 1e-5)
    assert torch.tpu.fallbacks() == []


@pytest.mark.parametrize(
    "name", [n for n in OPTIMIZERS if n.startswith(("sgd", "adam", "adagrad")) and n != "adamax"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_optimizer(name, dtype):
    torch.tpu.clear_fallbacks()
    fused = lambda p: OPTIMIZERS[name](p, fused=True)  # noqa: E731
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    same(steps(fused, "tpu", dtype), steps(fused, "cpu", dtype), name, tolerance)
    assert torch.tpu.fallbacks() == []


def test_learning_rate_may_be_a_tensor():
    for fused in (False, True):
        make = lambda p, f=fused: torch.optim.AdamW(p, torch.tensor(0.01), fused=f)  # noqa: E731
        same(steps(make, "tpu", count=2), steps(make, "cpu", count=2), tolerance=1e-5)


@pytest.mark.parametrize("overflow", [False, True])
def test_gradient_scaler(overflow):
    def run(device):
        p = nn.Parameter(values(4).to(device))
        optimizer = torch.optim.SGD([p], 0.1)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=1)
        loss = (p * (float("inf") if overflow else 2.0)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return p.detach(), scaler.get_scale()

    same(run("tpu"), run("cpu"), tolerance=1e-6)


def test_state_moves_with_the_parameters():
    parameter = nn.Parameter(values(4))
    optimizer = torch.optim.AdamW([parameter], 0.1)
    parameter.grad = values(4, seed=1)
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    other = nn.Parameter(moved(parameter, "tpu"))
    restored = torch.optim.AdamW([other], 0.1)
    restored.load_state_dict(state)
    assert restored.state[other]["exp_avg"].device.type == "tpu"
    parameter.grad, other.grad = values(4, seed=2), values(4, seed=2).tpu()
    optimizer.step()
    restored.step()
    same(other.detach(), parameter.detach(), tolerance=1e-6)


@pytest.mark.parametrize("name", words("add sub mul div"))
def test_numbers_keep_their_digits(name):
    function = getattr(torch, f"_foreach_{name}")
    double, integer = torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.int64)
    agree_on(lambda x: list(function([x], 0.1)), double, tolerance=1e-15)
    agree_on(lambda x: list(function([x, x], [0.1, 1e-9])), double, tolerance=1e-15)
    agree_on(lambda x: list(function([x], 2j)), torch.tensor([1 - 2j, 3j]), tolerance=1e-6)
    if name != "div":
        agree_on(lambda x: list(function([x], 2**40 + 1)), integer)


def test_numbers_of_pow_and_lerp_keep_their_digits():
    x = torch.tensor([2.0, 3.0], dtype=torch.float64)
    agree_on(lambda x: list(torch._foreach_pow([x], 0.1)), x, tolerance=1e-14)
    agree_on(lambda x: list(torch._foreach_lerp([x], [x * 2], 0.1)), x, tolerance=1e-14)
    agree_on(lambda x: list(torch._foreach_addcmul([x], [x], [x], 0.1)), x, tolerance=1e-14)
