"""Automatic mixed precision: PyTorch's lists of operators, with bfloat16 as the default."""

import pytest
import torch
from torch import nn


@pytest.fixture
def tensors():
    return torch.randn(4, 8, device="tpu"), torch.randn(8, 4, device="tpu")


def test_default_dtype():
    assert torch.get_autocast_dtype("tpu") is torch.bfloat16
    with torch.autocast("tpu"):
        assert torch.is_autocast_enabled("tpu")
        assert torch.get_autocast_dtype("tpu") is torch.bfloat16
    assert not torch.is_autocast_enabled("tpu")
    assert torch.amp.is_autocast_available("tpu")


LOWER = {
    "mm": lambda a, b: torch.mm(a, b),
    "matmul": lambda a, b: a @ b,
    "linear": lambda a, b: nn.functional.linear(a, b.T),
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "addmm": lambda a, b: torch.addmm(a[:, :4], a, b),
    "conv1d": lambda a, b: nn.functional.conv1d(a[None], b.T[:, :4, None]),
    "sdpa": lambda a, b: nn.functional.scaled_dot_product_attention(
        a[None, None], a[None, None], a[None, None]
    ),
}
FLOAT32 = {
    "softmax": lambda a: a.softmax(-1),
    "log_softmax": lambda a: a.log_softmax(-1),
    "exp": lambda a: a.exp(),
    "pow": lambda a: a.pow(2),
    "sum": lambda a: a.sum(),
    "norm": lambda a: a.norm(),
    "layer_norm": lambda a: nn.functional.layer_norm(a, (4,)),
    "mse_loss": lambda a: nn.functional.mse_loss(a, a),
    "nll_loss": lambda a: nn.functional.nll_loss(
        a, torch.zeros(4, dtype=torch.long, device=a.device)
    ),
    "cumsum": lambda a: a.cumsum(0),
}
UNCHANGED = {
    "add": lambda a: a + a,
    "relu": lambda a: a.relu(),
    "gelu": lambda a: nn.functional.gelu(a),
    "mul": lambda a: a * 2,
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LOWER)
def test_lower_precision(tensors, name, dtype):
    a, b = tensors
    with torch.autocast("tpu", dtype=dtype):
        result = LOWER[name](a, b)
    assert result.dtype is dtype
    expected = LOWER[name](a.cpu().to(dtype), b.cpu().to(dtype))
    torch.testing.assert_close(result.cpu(), expected, rtol=2e-2, atol=2e-2)
    assert LOWER[name](a, b).dtype is torch.float32


@pytest.mark.parametrize("name", FLOAT32)
def test_float32(tensors, name):
    low = torch.mm(*tensors).bfloat16()
    with torch.autocast("tpu"):
        result = FLOAT32[name](low)
    assert result.dtype is torch.float32
    torch.testing.assert_close(result.cpu(), FLOAT32[name](low.cpu().float()))


@pytest.mark.parametrize("name", UNCHANGED)
def test_unchanged(tensors, name):
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        x = tensors[0].to(dtype)
        with torch.autocast("tpu"):
            assert UNCHANGED[name](x).dtype is dtype


def test_promotion(tensors):
    a, _ = tensors
    with torch.autocast("tpu"):
        assert torch.cat([a, a.bfloat16()]).dtype is torch.float32
        assert torch.addcmul(a.bfloat16(), a, a).dtype is torch.float32


def test_float64_stays(tensors):
    a, b = (t.double() for t in tensors)
    with torch.autocast("tpu"):
        assert (a @ b).dtype is torch.float64


def test_nesting(tensors):
    a, b = tensors
    with torch.autocast("tpu"):
        assert (a @ b).dtype is torch.bfloat16
        with torch.autocast("tpu", enabled=False):
            assert (a @ b).dtype is torch.float32
            with torch.autocast("tpu", dtype=torch.float16):
                assert (a @ b).dtype is torch.float16
        assert (a @ b).dtype is torch.bfloat16
    assert (a @ b).dtype is torch.float32


def test_other_devices_are_left_alone(tensors):
    a, b = tensors
    with torch.autocast("tpu"):
        assert (a.cpu() @ b.cpu()).dtype is torch.float32
    with torch.autocast("cpu"):
        assert (a @ b).dtype is torch.float32


def test_unsupported_dtype_turns_it_off(tensors):
    a, b = tensors
    with pytest.warns(UserWarning, match="not supported"), torch.autocast("tpu", dtype=torch.int8):
        assert (a @ b).dtype is torch.float32


def test_decorator(tensors):
    @torch.autocast("tpu")
    def f(a, b):
        return a @ b

    @torch.amp.custom_fwd(device_type="tpu", cast_inputs=torch.float32)
    def g(a, b):
        return a @ b

    assert f(*tensors).dtype is torch.bfloat16
    with torch.autocast("tpu"):
        assert g(*tensors).dtype is torch.float32


def test_weights_are_cast_once(tensors):
    a, _ = tensors
    layer = nn.Linear(8, 8, device="tpu")
    with torch.autocast("tpu"):
        layer(layer(a))
        misses = torch.tpu.compilations()
        layer(layer(a))
    assert torch.tpu.compilations()["count"] == misses["count"]


def test_binary_cross_entropy_is_refused(tensors):
    p = tensors[0].sigmoid()
    with torch.autocast("tpu"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        nn.functional.binary_cross_entropy(p, p)
    with torch.autocast("tpu"):
        nn.functional.binary_cross_entropy_with_logits(p, p)


def test_training_step_is_as_close_as_on_the_cpu():
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    x, y = torch.randn(8, 16), torch.randint(4, (8,))

    def gradients(device, enabled):
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
        model.load_state_dict(reference.state_dict())
        model.to(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=enabled):
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        assert all(p.grad.dtype is torch.float32 for p in model.parameters())
        return torch.cat([p.grad.flatten().cpu() for p in model.parameters()])

    exact = gradients("cpu", enabled=False)
    cpu = (gradients("cpu", enabled=True) - exact).norm()
    tpu = (gradients("tpu", enabled=True) - exact).norm()
    assert 0 < tpu < 1.5 * cpu


# --- gradient scaling


def test_grad_scaler():
    weight = nn.Parameter(torch.ones(3, device="tpu"))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = torch.amp.GradScaler("tpu", init_scale=8.0, growth_interval=2)
    assert scaler.is_enabled()
    for step in range(2):
        optimizer.zero_grad()
        loss = weight.sum()
        scaled = scaler.scale(loss)
        assert scaled.item() == 8 * loss.item()
        scaled.backward()
        scaler.unscale_(optimizer)
        assert weight.grad.tolist() == [1.0, 1.0, 1.0]
        scaler.step(optimizer)
        scaler.update()
        assert weight.tolist() == [1 - 0.5 * (step + 1)] * 3
    assert scaler.get_scale() == 16.0


def test_grad_scaler_skips_infinite_gradients():
    weight = nn.Parameter(torch.ones(3, device="tpu"))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = torch.amp.GradScaler("tpu", init_scale=8.0)
    scaler.scale((weight * torch.tensor([1.0, float("inf"), 1.0], device="tpu")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [1.0, 1.0, 1.0]
    assert scaler.get_scale() == 4.0
    state = scaler.state_dict()
    other = torch.amp.GradScaler("tpu")
    other.load_state_dict(state)
    assert other.get_scale() == 4.0
