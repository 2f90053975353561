"""tpu:0 to tpu:3 are different devices, and mixing them is the error it is on CUDA."""

import threading

import pytest
import torch
from torch import nn

DEVICES = [f"tpu:{i}" for i in range(4)]


@pytest.fixture(autouse=True)
def first_device():
    yield
    torch.tpu.set_device(0)


@pytest.mark.parametrize("device", DEVICES)
def test_tensor_is_where_it_was_made(device):
    x = torch.arange(6.0, device=device).reshape(2, 3)
    assert x.device == torch.device(device)
    assert x.get_device() == x.device.index
    # Results, views, gradients and new tensors follow.
    weight = torch.ones(3, 2, device=device, requires_grad=True)
    y = (x @ weight).relu()
    y.sum().backward()
    for tensor in (y, weight.grad, x[1:], x.T, x.new_zeros(2), torch.ones_like(x), x.clone()):
        assert tensor.device == x.device
    assert weight.grad.tolist() == [[3.0, 3.0], [5.0, 5.0], [7.0, 7.0]]


@pytest.mark.parametrize("device", DEVICES)
def test_memory_is_the_devices_own(device):
    before = [torch.tpu.memory_allocated(d) for d in DEVICES]
    x = torch.ones(512, device=device)
    y = x * 2 + x
    after = [torch.tpu.memory_allocated(d) for d in DEVICES]
    grown = [d for d, a, b in zip(DEVICES, after, before, strict=True) if a - b >= y.nbytes]
    assert grown == [device]


def test_same_shapes_on_different_devices():
    """One program serves all devices, each on its own data."""
    xs = [torch.full((3,), float(i), device=d) for i, d in enumerate(DEVICES)]
    ys = [x * 2 + 1 for x in xs]
    assert [y.tolist() for y in ys] == [[2.0 * i + 1] * 3 for i in range(4)]
    assert [y.device.index for y in ys] == [0, 1, 2, 3]


def test_copies_between_devices():
    x = torch.arange(12, device="tpu:0").reshape(3, 4)
    y = x.T[1:].to("tpu:3")
    assert y.device.index == 3
    assert torch.equal(y.cpu(), x.cpu().T[1:])
    assert y.stride() == x.cpu().T[1:].clone().stride()
    y += 1
    assert x.tolist() == torch.arange(12).reshape(3, 4).tolist()
    z = torch.zeros(3, 3, dtype=torch.float64, device="tpu:1")
    z.T.copy_(y)
    assert torch.equal(z.cpu(), y.cpu().double().T)
    assert x.to("tpu:0") is x
    assert x.to("tpu") is x
    assert x.to("tpu:0", copy=True) is not x
    with torch.tpu.device(2):
        assert x.to("tpu").device.index == 2
    assert x.tpu(1).device.index == 1


def test_copies_are_differentiable():
    x = torch.ones(3, device="tpu:0", requires_grad=True)
    (x.to("tpu:1") * 3).to("tpu:2").sum().to("cpu").backward()
    assert x.grad.device.index == 0
    assert x.grad.tolist() == [3.0, 3.0, 3.0]


MIXED = [
    lambda a, b: a + b,
    lambda a, b: torch.mm(a, b),
    lambda a, b: torch.cat([a, b]),
    lambda a, b: torch.where(a > 0, a, b),
    lambda a, b: a.add_(b),
    lambda a, b: torch.add(a, a, out=b),
    lambda a, b: nn.functional.linear(a, b),
    lambda a, b: torch.stack([a, b]),
    lambda a, b: torch._foreach_add([a], [b]),
    lambda a, b: nn.functional.layer_norm(a, (2,), b[0]),
]


@pytest.mark.parametrize("f", MIXED)
@pytest.mark.parametrize("other", ["tpu:1", "cpu"])
def test_mixing_devices_is_an_error(f, other):
    a, b = torch.ones(2, 2, device="tpu:0"), torch.ones(2, 2, device=other)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device") as info:
        f(a, b)
    assert f"at least two devices, tpu:0 and {other}!" in str(info.value)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        f(b, a)
    assert torch.equal(a.cpu(), torch.ones(2, 2))
    assert torch.equal(b.cpu(), torch.ones(2, 2))


def test_indices_may_be_on_the_cpu():
    """As on CUDA: advanced indexing and numbers take CPU tensors."""
    x = torch.arange(6.0, device="tpu:1")
    assert x[torch.tensor([4, 0])].tolist() == [4.0, 0.0]
    assert (x + torch.tensor(1.5)).device.index == 1
    assert (torch.tensor(1.5) * x).tolist() == [1.5 * i for i in range(6)]
    with pytest.raises(RuntimeError, match="same device"):
        torch.arange(6)[torch.tensor([1], device="tpu")]


def test_number_on_another_tpu_is_no_number():
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device="tpu:0") + torch.tensor(1.0, device="tpu:1")


# --- the current device


def test_current_device_is_each_threads_own():
    torch.tpu.set_device(2)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.tpu.current_device()))
    thread.start()
    thread.join()
    assert seen == [0]
    assert torch.tpu.current_device() == 2


def test_guard():
    with torch.tpu.device(1):
        assert torch.ones(1, device="tpu").device.index == 1
        with torch.tpu.device("tpu:3"):
            assert torch.ones(1, device="tpu").device.index == 3
        with torch.tpu.device(None), torch.tpu.device(-1):
            assert torch.tpu.current_device() == 1
        assert torch.tpu.current_device() == 1
    assert torch.tpu.current_device() == 0
    with pytest.raises(KeyError), torch.tpu.device(2):
        raise KeyError
    assert torch.tpu.current_device() == 0


def test_guard_by_object():
    x = torch.ones(1, device="tpu:2")
    with torch.tpu.device_of(x):
        assert torch.tpu.current_device() == 2
    with torch.tpu.device_of(torch.ones(1)):
        assert torch.tpu.current_device() == 0


def test_operators_run_where_their_tensors_are():
    x = torch.ones(2, device="tpu:3")
    with torch.tpu.device(1):
        y = x + 1
        z = torch.randn_like(x)
    assert y.device.index == z.device.index == 3
    assert torch.tpu.current_device() == 0


@pytest.mark.parametrize("index", [4, 100])
def test_no_such_device(index):
    with pytest.raises(RuntimeError, match=f"invalid device ordinal: tpu:{index}, but 4 "):
        torch.tpu.set_device(index)
    for make in (
        lambda d: torch.empty(1, device=d),
        lambda d: torch.ones(1, device=d),
        lambda d: torch.ones(1).to(d),
        lambda d: torch.ones(1, device="tpu:1").to(d),
        lambda d: torch.tensor([1], device=d),
        lambda d: nn.Linear(1, 1).to(d),
        lambda d: torch.Generator(d),
    ):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            make(f"tpu:{index}")
    assert torch.tpu.current_device() == 0
    assert torch.ones(1, device="tpu:3").item() == 1


def test_set_device():
    torch.tpu.set_device(-1)
    assert torch.tpu.current_device() == 0
    with pytest.raises(ValueError, match="Expected a tpu device, but got: cpu"):
        torch.tpu.set_device("cpu")
    with pytest.raises(ValueError, match="with a specified index"):
        torch.tpu.set_device("tpu")


# --- PyTorch's defaults


def test_device_context():
    with torch.device("tpu:2"):
        assert torch.ones(2).device == torch.device("tpu:2")
        assert nn.Linear(2, 2).weight.device == torch.device("tpu:2")
        assert torch.ones(2, device="cpu").device.type == "cpu"
    assert torch.ones(2).device.type == "cpu"
    with torch.device("tpu"):
        assert torch.tensor([1.0]).device == torch.device("tpu:0")


def test_default_device():
    torch.set_default_device("tpu:1")
    try:
        assert torch.get_default_device() == torch.device("tpu:1")
        assert torch.zeros(2).device == torch.device("tpu:1")
        assert torch.arange(3).tolist() == [0, 1, 2]
    finally:
        torch.set_default_device(None)
    assert torch.zeros(2).device.type == "cpu"


def test_integers_are_devices():
    """safetensors and accelerate speak of devices by number alone."""
    assert torch.device(0) == torch.device("tpu:0")
    assert torch.ones(2, device=1).device == torch.device("tpu:1")
    assert torch.ones(2).to(2).device == torch.device("tpu:2")


def test_module_on_a_device():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to("tpu:1")
    assert {t.device for t in model.state_dict().values()} == {torch.device("tpu:1")}
    assert model(torch.ones(2, 3, device="tpu:1")).device.index == 1
    with pytest.raises(RuntimeError, match="same device"):
        model(torch.ones(2, 3, device="tpu:0"))
