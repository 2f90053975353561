"""Tensors on tpu leave and enter: files, pickles, copies, NumPy, DLPack, print."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn


def saved(what, **options):
    file = io.BytesIO()
    torch.save(what, file, **options)
    file.seek(0)
    return file


def reloaded(what, map_location=None, **options):
    return torch.load(saved(what, **options), map_location=map_location)


@pytest.fixture
def x():
    return torch.arange(6.0, device="tpu:1").reshape(2, 3)


# --- names


def test_is_tpu(x):
    assert x.is_tpu is True
    assert torch.ones(1).is_tpu is False
    assert x.is_cuda is False
    assert x.is_cpu is False
    assert x.device.type == "tpu"
    assert str(x.device) == "tpu:1"
    assert repr(torch.device("tpu")) == "device(type='tpu')"


def test_tensor_tpu():
    x = torch.ones(2)
    assert x.tpu().device == torch.device("tpu:0")
    assert x.tpu(2).device == torch.device("tpu:2")
    assert x.tpu(torch.device("tpu:1")).device == torch.device("tpu:1")
    y = x.tpu()
    assert y.tpu() is y
    assert x.tpu(non_blocking=True).tolist() == [1, 1]


def test_module_tpu():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    assert model.tpu() is model
    assert {p.device for p in model.parameters()} == {torch.device("tpu:0")}
    assert model[1].running_mean.is_tpu
    assert model.tpu(3)[0].weight.device.index == 3
    assert model.cpu()[0].weight.is_cpu


def test_packed_sequence_tpu():
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 1), torch.ones(2, 1)])
    assert packed.tpu().data.is_tpu
    assert packed.tpu().is_tpu
    assert packed.tpu().cpu().data.is_cpu


def test_storage_tpu(x):
    storage = torch.arange(4, dtype=torch.uint8).untyped_storage()
    moved = storage.tpu(2)
    assert moved.device == torch.device("tpu:2")
    assert moved.is_tpu
    assert not storage.is_tpu
    assert moved.tolist() == [0, 1, 2, 3]
    assert moved.cpu().tolist() == [0, 1, 2, 3]
    assert x.untyped_storage().nbytes() == 24
    assert x.untyped_storage().device == x.device


def test_types(x):
    assert x.type() == "torch.tpu.FloatTensor"
    assert x.type("torch.FloatTensor").is_cpu
    assert torch.ones(2).type("torch.tpu.FloatTensor").is_tpu


# --- print


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.arange(6.0, device=d).reshape(2, 3),
        lambda d: torch.tensor([1.5, -2e10, float("nan"), float("inf")], device=d),
        lambda d: torch.tensor([[1, -200], [3, 4]], device=d),
        lambda d: torch.tensor([True, False], device=d),
        lambda d: torch.tensor(3.25, device=d),
        lambda d: torch.tensor([1 + 2j, -3j], device=d),
        lambda d: torch.tensor([1.0, 0.1], dtype=torch.bfloat16, device=d),
        lambda d: torch.zeros(0, 3, device=d),
        lambda d: torch.arange(3000.0, device=d),
        lambda d: torch.arange(12.0, device=d).reshape(3, 4).T[1:],
        lambda d: torch.ones(2, device=d, requires_grad=True),
        lambda d: torch.ones(2, device=d, requires_grad=True) * 2,
        lambda d: nn.Parameter(torch.ones(2, device=d)),
        lambda d: torch.tensor([1 + 2j, -3j], device=d).conj(),
        lambda d: torch.tensor([1 + 2j, -3j], device=d).conj().imag,
    ],
)
def test_repr(make):
    torch.tpu.clear_fallbacks()
    printed = repr(make("tpu:1"))
    assert torch.tpu.fallbacks() == []
    assert "device='tpu:1'" in printed
    without = printed.replace(", device='tpu:1'", "").replace("device='tpu:1', ", "")
    # Where lines break depends on the length.
    assert without.split() == repr(make("cpu")).split()


def test_format(x):
    assert f"{x[0, 1]:.2f}" == "1.00"
    assert str(x.device) in str(x)
    assert "device=tpu:1" in repr(x.untyped_storage())


def test_python_numbers(x):
    assert float(x[1, 2]) == 5.0
    assert int(x[1, 2]) == 5
    assert bool(x[0, 0]) is False
    assert complex(x[0, 1]) == 1
    assert [10, 11, 12][torch.tensor(1, device="tpu")] == 11
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert 4.0 in x
    assert len(x) == 2
    assert [row.tolist() for row in x] == x.tolist()


# --- NumPy


def test_numpy_is_refused(x):
    words = "can't convert tpu:1 device type tensor to numpy. Use Tensor.cpu\\(\\)"
    for convert in (lambda: x.numpy(), lambda: np.asarray(x), lambda: np.sin(x)):
        with pytest.raises(TypeError, match=words):
            convert()
    assert (x.cpu().numpy() == np.arange(6).reshape(2, 3)).all()
    assert x.numpy(force=True).tolist() == x.tolist()


def test_from_numpy():
    array = np.arange(4)
    assert torch.tensor(array, device="tpu").tolist() == [0, 1, 2, 3]
    assert torch.as_tensor(array, device="tpu").is_tpu
    assert torch.asarray(array, device="tpu").is_tpu
    assert torch.from_numpy(array).to("tpu").tolist() == [0, 1, 2, 3]


def test_no_cuda_array_interface(x):
    with pytest.raises(AttributeError):
        _ = x.__cuda_array_interface__


# --- DLPack


def test_dlpack_is_refused_by_name(x):
    with pytest.raises(ValueError, match="Unknown device type tpu for Dlpack"):
        x.__dlpack_device__()
    with pytest.raises(ValueError, match="Unknown device type tpu for Dlpack"):
        torch.from_dlpack(x)
    with pytest.raises((RuntimeError, BufferError, ValueError)):
        np.from_dlpack(x)


def test_dlpack_capsule_shares_memory(x):
    y = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    assert y.device == x.device
    assert y.data_ptr() == x.data_ptr()
    y.add_(10)
    assert x.tolist() == [[10, 11, 12], [13, 14, 15]]
    x.zero_()
    assert y.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_dlpack_from_the_host():
    x = torch.from_dlpack(np.arange(3), device="tpu")
    assert x.is_tpu
    assert x.tolist() == [0, 1, 2]


def test_memory_that_is_nobodys(x):
    """A view that starts within another storage has no state to be found by its address."""
    capsule = torch.utils.dlpack.to_dlpack(x[1:])
    y = torch.utils.dlpack.from_dlpack(capsule)
    with pytest.raises(RuntimeError, match="is not that of a tpu storage"):
        y.cpu()
    del y
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]


# --- files


@pytest.mark.parametrize("zipped", [True, False])
def test_save_and_load(x, zipped):
    y = reloaded(x, _use_new_zipfile_serialization=zipped)
    assert y.device == x.device
    assert torch.equal(y.cpu(), x.cpu())
    y.add_(1)
    assert x[0, 0].item() == 0


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("location", "device"),
    [
        ("cpu", "cpu"),
        ("tpu", "tpu:0"),
        ("tpu:3", "tpu:3"),
        (torch.device("tpu:2"), "tpu:2"),
        ({"tpu:1": "tpu:0"}, "tpu:0"),
        ({"tpu:2": "tpu:0"}, "tpu:1"),
        (lambda storage, location: storage, "cpu"),
        (lambda storage, location: storage.tpu(3), "tpu:3"),
    ],
)
def test_map_location(x, zipped, location, device):
    y = reloaded(x, location, _use_new_zipfile_serialization=zipped)
    assert y.device == torch.device(device)
    assert torch.equal(y.cpu(), x.cpu())


def test_map_from_the_cpu():
    x = torch.arange(6.0).reshape(2, 3)
    y = reloaded({"x": x, "view": x[1]}, "tpu:1")
    assert y["x"].device == y["view"].device == torch.device("tpu:1")
    y["x"].add_(1)
    assert y["view"].tolist() == [4, 5, 6]  # still the same storage


def test_map_location_without_such_a_device(x):
    with pytest.raises(RuntimeError, match=r"TPU device 9 but torch\.tpu\.device_count\(\) is 4"):
        reloaded(x, "tpu:9")


def test_save_keeps_views_dtypes_and_bits():
    base = torch.arange(12.0, device="tpu").reshape(3, 4)
    for t in (
        base.T,
        base[1:, ::2],
        base.bfloat16(),
        base > 3,
        base.long(),
        torch.empty(0, 3, device="tpu"),
        torch.empty(3, 2, device="tpu").zero_(),
        torch.complex(base, base).conj(),
        torch.complex(base, base).conj().imag,
        nn.Parameter(base),
    ):
        y = reloaded(t)
        assert type(y) is type(t)
        assert (y.dtype, y.shape, y.stride(), y.is_conj(), y.is_neg()) == (
            t.dtype,
            t.shape,
            t.stride(),
            t.is_conj(),
            t.is_neg(),
        )
        assert torch.equal(y.detach().cpu(), t.detach().cpu())


def test_state_dicts():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).tpu()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3, device="tpu")).sum().backward()
    optimizer.step()
    state = torch.load(saved((model.state_dict(), optimizer.state_dict())), map_location="cpu")
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).tpu(1)
    other.load_state_dict(state[0])
    again = torch.optim.AdamW(other.parameters())
    again.load_state_dict(state[1])
    for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert (a.device.index, b.device.index) == (0, 1)
        assert torch.equal(a.cpu(), b.cpu())
    for a, b in zip(optimizer.state.values(), again.state.values(), strict=True):
        assert b["exp_avg"].device.index == 1
        assert torch.equal(a["exp_avg"].cpu(), b["exp_avg"].cpu())


def test_generator_and_rng_state():
    state = torch.tpu.get_rng_state()
    assert torch.equal(reloaded(state), state)


# --- copies and pickles


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))], ids=["deepcopy", "pickle"]
)
def test_copies(x, again):
    y = again(x)
    assert (y.device, y.stride()) == (x.device, x.stride())
    assert torch.equal(y.cpu(), x.cpu())
    y.add_(1)
    assert x[0, 0].item() == 0
    parameter = again(nn.Parameter(x))
    assert isinstance(parameter, nn.Parameter)
    assert parameter.requires_grad
    model = again(nn.Linear(2, 2, device="tpu:2"))
    assert model.weight.device.index == 2
    empty = again(torch.empty(3, device="tpu"))
    assert empty.shape == (3,)
    assert again(torch.empty(0, device="tpu")).numel() == 0


def test_deep_copies_share_what_was_shared(x):
    a, b = copy.deepcopy([x, x[1]])
    a.mul_(10)
    assert b.tolist() == [30, 40, 50]
    assert x[1].tolist() == [3, 4, 5]


def test_shallow_copy_shares(x):
    y = copy.copy(x)
    y.add_(1)
    assert x[0, 0].item() == 1


def test_sharing_between_processes_is_refused(x):
    """As there is no memory to share: a clear error, not a crash."""
    from multiprocessing.reduction import ForkingPickler

    with pytest.raises(RuntimeError, match="only available on CPU"):
        ForkingPickler.dumps(x)
    assert x.is_shared() is True  # as on CUDA
    assert x.share_memory_() is x


def test_meta(x):
    assert x.to("meta").shape == x.shape
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        torch.empty(2, device="meta").to("tpu")
    model = nn.Linear(2, 2, device="meta").to_empty(device="tpu:1")
    assert model.weight.device.index == 1
