"""What a call costs in programs: what belongs to a signature and what does not."""

import pytest
import torch
import torch.nn.functional as F

import torch_tpu._C as native


class Counted:
    """Counts programs compiled and calls that missed the signature cache inside a `with` block."""

    def __enter__(self):
        torch.tpu.synchronize()
        self._before = native.compilations()
        return self

    def __exit__(self, *exc):
        after = native.compilations()
        self.programs = after["count"] - self._before["count"]
        self.misses = after["misses"] - self._before["misses"]
        self.hits = after["hits"] - self._before["hits"]


def test_python_scalars_are_run_time_arguments():
    x = torch.arange(13.0, device="tpu")
    calls = [
        lambda s: x * s,
        lambda s: x + s,
        lambda s: s - x,
        lambda s: x / s,
        lambda s: torch.add(x, x, alpha=s),
        lambda s: torch.clamp(x, min=s),
        lambda s: torch.addcmul(x, x, x, value=s),
        lambda s: torch.addcdiv(x, x, x + 1, value=s),
        lambda s: torch.lerp(x, x * 2, s),
        lambda s: F.leaky_relu(x - 5, s),
        lambda s: torch.full_like(x, s),
        lambda s: x > s,
        lambda s: torch.where(x > 3, x, s),
        lambda s: x.masked_fill(x > 3, s),
    ]
    for call in calls:
        call(1.5)
    with Counted() as counted:
        results = [call(2.75) for call in calls]
    assert counted.programs == 0 and counted.misses == 0
    host = x.cpu()
    expected = [
        host * 2.75,
        host + 2.75,
        2.75 - host,
        host / 2.75,
        torch.add(host, host, alpha=2.75),
        torch.clamp(host, min=2.75),
        torch.addcmul(host, host, host, value=2.75),
        torch.addcdiv(host, host, host + 1, value=2.75),
        torch.lerp(host, host * 2, 2.75),
        F.leaky_relu(host - 5, 2.75),
        torch.full_like(host, 2.75),
        host > 2.75,
        torch.where(host > 3, host, 2.75),
        host.masked_fill(host > 3, 2.75),
    ]
    for got, want in zip(results, expected, strict=True):
        torch.testing.assert_close(got.cpu(), want)


def test_a_new_shape_dtype_or_layout_is_a_new_signature():
    x = torch.ones(5, 7, device="tpu")
    torch.sin(x)
    for other in (
        torch.ones(7, 5, device="tpu"),
        torch.ones(5, 7, device="tpu", dtype=torch.float64),
        torch.ones(7, 5, device="tpu").t(),
    ):
        with Counted() as counted:
            got = torch.sin(other)
        assert counted.misses == 1, other.shape
        torch.testing.assert_close(got.cpu(), torch.sin(other.cpu()))
        with Counted() as counted:
            torch.sin(other)
        assert counted.misses == 0


def test_structural_values_choose_other_programs():
    x = torch.tensor([0.5, 2.0, 3.0], device="tpu")
    torch.pow(x, 2.0)
    torch.pow(x, 1.7)
    with Counted() as counted:
        got = torch.pow(x, 1.3)
    assert counted.misses == 0
    torch.testing.assert_close(got.cpu(), torch.pow(x.cpu(), 1.3))
    torch.testing.assert_close(torch.pow(x, 2.0).cpu(), torch.pow(x.cpu(), 2.0))


def test_a_learning_rate_schedule_compiles_nothing():
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3).to("tpu")
    x = torch.randn(4, 6, device="tpu")
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    ):
        optimizer = make(model.parameters())
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for step in range(5):
            with Counted() as counted:
                optimizer.zero_grad()
                model(x).square().sum().backward()
                optimizer.step()
            schedule.step()
            if step >= 2:
                assert counted.programs == 0, optimizer


def test_a_foreach_operator_is_one_program():
    tensors = [torch.ones(n, device="tpu") for n in (2, 3, 5)]
    others = [torch.full((n,), 2.0, device="tpu") for n in (2, 3, 5)]
    torch._foreach_add_(tensors, others, alpha=0.5)
    with Counted() as counted:
        torch._foreach_add_(tensors, others, alpha=0.25)
    assert counted.hits == 1 and counted.misses == 0
    for tensor in tensors:
        torch.testing.assert_close(tensor.cpu(), torch.full_like(tensor.cpu(), 2.5))


def test_a_fused_optimizer_step_is_one_program():
    parameters = [torch.ones(n, device="tpu", requires_grad=True) for n in (2, 3)]
    optimizer = torch.optim.AdamW(parameters, lr=0.1, fused=True)
    for _ in range(3):
        for p in parameters:
            p.grad = torch.ones_like(p)
        with Counted() as counted:
            optimizer.step()
    assert counted.programs == 0 and counted.hits <= 2  # the step counters, then everything else


def test_matmul_precision_is_part_of_the_signature():
    x = torch.randn(8, 8, device="tpu")
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        x @ x
        torch.set_float32_matmul_precision("medium")
        with Counted() as counted:
            got = x @ x
        assert counted.misses == 1
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(got.cpu(), x.cpu() @ x.cpu(), rtol=1e-4, atol=1e-4)


def test_a_clone_shares_the_value_until_one_is_written():
    x = torch.arange(6.0, device="tpu")
    with Counted() as counted:
        y = x.clone()
    assert counted.programs == 0
    y.add_(1)
    assert x.tolist() == [0, 1, 2, 3, 4, 5] and y.tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_zero_dimensional_cpu_tensors_mix_as_numbers_do(dtype):
    x = torch.tensor([1, 0, 3]).to(dtype)
    for number in (torch.tensor(2.5), torch.tensor(2.5, dtype=torch.float64), torch.tensor(3)):
        want = x * number
        got = x.to("tpu") * number
        assert got.dtype == want.dtype
        torch.testing.assert_close(got.cpu(), want)


def test_wide_integers_survive():
    x = torch.tensor([2**53 + 1], device="tpu")
    assert (x + 1).item() == 2**53 + 2
    assert (x + 2**40).item() == 2**53 + 1 + 2**40
    assert torch.full((1,), 2**60 + 1, device="tpu").item() == 2**60 + 1


def test_decompositions_are_captured_once():
    x = torch.randn(3, 4)
    native.clear_fallbacks()
    t = x.to("tpu")
    want = torch.special.erfcx(x).add(F.mish(x)).add(torch.nn.functional.softsign(x))
    got = torch.special.erfcx(t).add(F.mish(t)).add(torch.nn.functional.softsign(t))
    torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)
    served = dict(native.served_operators())
    decomposed = [name for name, how in served.items() if how == "decomposition"]
    assert decomposed
    a, b = torch.rand(4, 4), torch.rand(4, 4)
    want = torch.ops.aten.im2col(a.view(1, 1, 4, 4), [2, 2], [1, 1], [0, 0], [1, 1])
    got = torch.ops.aten.im2col(a.view(1, 1, 4, 4).to("tpu"), [2, 2], [1, 1], [0, 0], [1, 1])
    torch.testing.assert_close(got.cpu(), want)
    with Counted() as counted:
        got = torch.ops.aten.im2col(b.view(1, 1, 4, 4).to("tpu"), [2, 2], [1, 1], [0, 0], [1, 1])
    assert counted.programs == 0
    torch.testing.assert_close(
        got.cpu(), torch.ops.aten.im2col(b.view(1, 1, 4, 4), [2, 2], [1, 1], [0, 0], [1, 1])
    )
    assert torch.tpu.fallbacks() == []
