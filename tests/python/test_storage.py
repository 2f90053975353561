"""Storages: what tensors share, how they grow, and how they are copied, saved and moved."""

import copy
import io
import itertools
import pickle

import pytest
import torch
from agreement import agree
from torch import nn

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8]


def shares(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def numbers(*shape, dtype=torch.float32, device="tpu"):
    count = torch.Size(shape).numel()
    return torch.arange(1, count + 1, device=device).reshape(shape).to(dtype)


# --- what was never written
@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_reads_as_zeros(dtype):
    x = torch.empty(3, 4, dtype=dtype, device="tpu")
    assert torch.equal(x.cpu(), torch.zeros(3, 4, dtype=dtype))
    y = torch.empty(4, 3, dtype=dtype, device="tpu").t()
    assert torch.equal((y | y if dtype == torch.bool else y + y).cpu(), torch.zeros_like(x.cpu()))


def test_reading_empty_compiles_once():
    torch.empty(7, 3, device="tpu").cpu()
    before = torch.tpu.compilations()["count"]
    torch.empty(7, 3, device="tpu").cpu()
    assert torch.tpu.compilations()["count"] == before


def test_part_of_an_empty_storage_is_written():
    x = torch.empty(4, 4, device="tpu")
    x[1:3, ::2] = 5
    expected = torch.zeros(4, 4)
    expected[1:3, ::2] = 5
    assert torch.equal(x.cpu(), expected)


def test_empty_costs_nothing():
    """Transformers warms allocators up with tensors of the size of a model."""
    x = torch.empty(1 << 40, dtype=torch.uint8, device="tpu")
    assert x.numel() == 1 << 40 and x.data_ptr() != 0


def test_too_large():
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 60, dtype=torch.uint8, device="tpu")
    assert numbers(3).tolist() == [1, 2, 3]


def test_addresses_are_apart():
    tensors = [
        torch.empty(n, dtype=torch.uint8, device="tpu") for n in (1, 64, 65, 1000, 5, 1 << 20)
    ]
    ranges = sorted((t.data_ptr(), t.data_ptr() + t.numel()) for t in tensors)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
    assert torch.empty(0, device="tpu").data_ptr() == torch.empty(0).data_ptr() == 0


# --- resize_
def test_resize_keeps_what_it_can():
    def grow(device):
        x = numbers(2, 3, device=device)
        view = x[1]
        x.resize_(3, 3)
        x[2] = 0  # the new part is undefined
        grown = x.clone()
        x.resize_(2, 2)
        return grown, x, view, x.untyped_storage().nbytes()

    agree(grow)


def test_resize_of_a_view_grows_the_shared_storage():
    def grow(device):
        base = numbers(6, device=device)
        view = base[2:4]
        view.resize_(3, 3)
        view[1:] = 7
        return base, view[0, 0], view.storage_offset(), shares(base, view), view[1:]

    agree(grow)


def test_resize_of_strided_views():
    def change(device):
        x = numbers(3, 4, device=device).t()
        same_shape = x.resize_(4, 3).stride()
        return same_shape, x.resize_(2, 6), x.resize_(2, 2)

    agree(change)


def test_resize_to_the_same_shape_leaves_an_emptied_storage():
    def change(device):
        x = numbers(4, device=device)
        x.untyped_storage().resize_(0)
        x.resize_(4)
        emptied = x.untyped_storage().nbytes()
        x.resize_(5).fill_(2)
        return emptied, x, x.untyped_storage().nbytes()

    agree(change)


@pytest.mark.parametrize(
    "format", [torch.contiguous_format, torch.channels_last, torch.preserve_format]
)
def test_resize_with_a_memory_format(format):
    def change(device):
        x = numbers(2, 3, 2, 2, device=device)
        return x.resize_(2, 3, 2, 2, memory_format=format), x.resize_(1, 2, 3, 4).stride()

    agree(change)


def test_resize_as():
    agree(lambda device: numbers(6, device=device).resize_as_(torch.empty(2, 2, device=device)))


def test_resize_of_an_output():
    def write(device):
        out = torch.empty(0, device=device)
        torch.add(numbers(2, 3, device=device), 1, out=out)
        view = torch.empty(8, device=device)
        torch.add(numbers(2, 3, device=device), 1, out=view[:0])
        return out, view[:6]

    agree(write)


@pytest.mark.parametrize("bytes", [0, 4, 8, 15, 16, 21, 40])
def test_storage_resize(bytes):
    def change(device):
        x = torch.zeros(4, device=device)
        x.copy_(numbers(4, device=device))
        storage = x.untyped_storage()
        storage.resize_(bytes)
        kept = min(bytes, 16) // 4
        first = x[:kept].clone()
        storage.resize_(16)
        x[kept:] = 9
        return storage.nbytes(), first, x, x.untyped_storage().nbytes()

    agree(change)


def test_storage_emptied_and_filled_again():
    """How FSDP frees and restores parameters."""
    x, keep = numbers(1000), numbers(1000)
    allocated = torch.tpu.memory_allocated()
    x.untyped_storage().resize_(0)
    assert torch.tpu.memory_allocated() <= allocated - 4000
    assert x.shape == (1000,) and x.untyped_storage().nbytes() == 0
    x.untyped_storage().resize_(4000)
    x.copy_(keep)
    assert torch.equal(x.cpu(), keep.cpu())


# --- set_
def test_set_to_a_tensor():
    def change(device):
        x, y = torch.empty(0, device=device), numbers(3, 4, device=device).t()[1:]
        x.set_(y)
        x.mul_(2)
        return x, y, shares(x, y), x.is_set_to(y), y.is_set_to(x.clone())

    agree(change)


def test_set_to_nothing():
    def change(device):
        x = numbers(3, device=device)
        view = x[1:]
        x.set_()
        return x, view, x.untyped_storage().nbytes(), shares(x, view)

    agree(change)


def test_set_to_a_storage():
    def change(device):
        x, y = torch.empty(0, dtype=torch.int32, device=device), numbers(2, 3, device=device)
        x.set_(y.untyped_storage())
        return x, shares(x, y)

    agree(change)


@pytest.mark.parametrize(
    "arguments",
    [(2, (3,)), (1, (2, 2), (1, 2)), (0, (2, 3), (0, 1)), (6, (0,)), (3, (), ()), (0, (2,), (2,))],
)
def test_set_to_a_part_of_a_storage(arguments):
    def change(device):
        x, y = torch.empty(0, device=device), numbers(6, device=device)
        x.set_(y.untyped_storage(), *arguments)
        if 0 not in x.stride():
            x.add_(10)
        from_tensor = torch.empty(0, device=device).set_(y, *(*arguments, (1,))[:3])
        return x, y, from_tensor.shape, from_tensor.storage_offset()

    agree(change)


def test_set_grows_the_storage():
    def change(device):
        y = numbers(6, device=device)
        x = torch.empty(0, device=device).set_(y.untyped_storage(), 4, (2, 3))
        x.view(-1)[2:] = 0
        return x, y, y.untyped_storage().nbytes()

    agree(change)


@pytest.mark.parametrize(
    "set_",
    [
        lambda x, y: x.set_(y.to(torch.int32)),
        lambda x, y: x.set_(y.untyped_storage(), -1, (2,)),
        lambda x, y: x.set_(y.untyped_storage(), 0, (2,), (1, 2)),
    ],
)
def test_set_errors_leave_the_tensor(set_):
    def change(device):
        set_(numbers(2, device=device), numbers(6, device=device))

    agree(change)
    x, y = numbers(2), numbers(6)
    with pytest.raises(RuntimeError):
        set_(x, y)
    assert x.tolist() == [1, 2] and not shares(x, y)


def test_set_across_devices():
    x, y = torch.empty(0, device="tpu:0"), numbers(3, device="tpu:1")
    with pytest.raises(RuntimeError, match="devices must match"):
        x.set_(y.untyped_storage())
    with pytest.raises(RuntimeError):
        torch.empty(0, device="tpu").set_(torch.zeros(3).untyped_storage())


# --- bytes
def test_bytes_after_the_last_whole_element():
    """A storage of seven bytes, seen as one float or three shorts."""

    def change(device):
        raw = torch.arange(7, dtype=torch.uint8, device=device)
        number = torch.empty(0, device=device).set_(raw.untyped_storage(), 0, (1,))
        shorts = torch.empty(0, dtype=torch.int16, device=device).set_(raw.untyped_storage())
        first = number.clone(), shorts.clone()
        shorts[1] = 1
        number.view(torch.int32).add_(0)
        return first, number.view(torch.uint8), shorts, raw

    agree(change)


def test_bytes_of_a_storage_never_written():
    def change(device):
        make = torch.empty if device.type == "tpu" else torch.zeros
        raw = make(7, dtype=torch.uint8, device=device)
        number = torch.empty(0, device=device).set_(raw.untyped_storage(), 0, (1,))
        before = number.clone()
        number.fill_(1)
        raw[6] = 3
        return before, raw

    agree(change)


def test_bool_view_leaves_other_bytes():
    def change(device):
        raw = torch.tensor([0, 1, 2, 3, 255], dtype=torch.uint8, device=device)
        flags = raw.view(torch.bool)
        flags[1] = False
        return raw

    agree(change)


def test_typed_views_alias():
    def change(device):
        x = numbers(4, device=device)
        words = x.view(torch.int32)
        words.bitwise_and_(-0x10000)  # what bfloat16 keeps
        halves = x.view(torch.bfloat16)[1::2]
        y = halves.clone()
        halves.mul_(2)
        pairs = torch.view_as_complex(x.view(2, 2))
        pairs.imag.fill_(5)
        return x, words, y, pairs

    agree(change)


def test_untyped_storage():
    def use(device):
        x = torch.tensor([1, 2, 3, 250], dtype=torch.uint8, device=device)
        storage = x.untyped_storage()
        other = storage.clone()
        storage.fill_(7)
        third = torch.UntypedStorage(4, device=device)
        third.copy_(other)
        return (
            storage.tolist(),
            other.tolist(),
            third.tolist(),
            storage.nbytes(),
            storage.device.type == device.type,
            len(storage),
            storage[1],
            storage.cpu().tolist(),
            storage.is_pinned(),
            x,
        )

    agree(use)
    assert repr(torch.UntypedStorage(2, device="tpu").device) == "device(type='tpu', index=0)"


def test_storages_move_between_devices():
    x = numbers(4)
    there = x.untyped_storage().tpu("tpu:2")
    assert there.device == torch.device("tpu:2") and there.cpu().tolist() == list(
        x.cpu().untyped_storage()
    )
    assert torch.zeros(4).untyped_storage().tpu().device == torch.device("tpu:0")


# --- copies of whole tensors
def test_deepcopy_keeps_what_is_shared():
    def copied(device):
        base = numbers(2, 6, device=device)
        pair = [base, base[1, ::2], base.t()]
        one, two, three = copy.deepcopy(pair)
        one.zero_()
        return pair, one, two, three, shares(one, two), shares(one, base)

    agree(copied)


def test_deepcopy_of_parameters_and_dtypes():
    module = nn.Linear(2, 3).tpu()
    module.tied = module.weight
    twin = copy.deepcopy(module)
    assert twin.tied is twin.weight and twin.weight.is_tpu and twin.weight.requires_grad
    assert torch.equal(twin.weight.cpu(), module.weight.cpu()) and not shares(
        twin.weight, module.weight
    )
    for dtype in DTYPES:
        x = numbers(3, dtype=dtype)
        same = copy.deepcopy(x)
        assert same.dtype == dtype and torch.equal(same.cpu(), x.cpu())


def test_pickle_keeps_what_is_shared():
    def round_trip(device):
        base = numbers(2, 6, device=device)
        one, two = pickle.loads(pickle.dumps((base, base[1, ::2])))
        one.zero_()
        return two, shares(one, two), one.device.type == device.type

    agree(round_trip)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pickle(dtype):
    x = numbers(2, 3, dtype=dtype).t()
    y = pickle.loads(pickle.dumps(x))
    assert y.device == x.device and y.stride() == x.stride() and torch.equal(y.cpu(), x.cpu())


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize(
    ("start", "map_location", "end"),
    [
        ("tpu", None, "tpu:0"),
        ("tpu:1", None, "tpu:1"),
        ("tpu:1", "cpu", "cpu"),
        ("cpu", "tpu", "tpu:0"),
        ("cpu", "tpu:3", "tpu:3"),
        ("tpu:1", "tpu:2", "tpu:2"),
        ("tpu:1", {"tpu:1": "tpu:0"}, "tpu:0"),
        ("tpu:1", {"tpu:1": "cpu"}, "cpu"),
        ("cpu", torch.device("tpu", 1), "tpu:1"),
        ("tpu:0", lambda storage, where: storage, "cpu"),
        ("tpu:0", lambda storage, where: storage.tpu(1) if where == "tpu:0" else None, "tpu:1"),
    ],
)
def test_load(start, map_location, end, weights_only):
    base = numbers(2, 3, device=start)
    values = {"base": base, "view": base.t()[1:], "bool": base > 2, "half": base.bfloat16()}
    loaded = torch.load(saved(values), map_location=map_location, weights_only=weights_only)
    for name, value in values.items():
        twin = loaded[name]
        assert twin.device == torch.device(end), name
        assert twin.dtype == value.dtype and twin.stride() == value.stride(), name
        assert torch.equal(twin.cpu(), value.cpu()), name
    assert shares(loaded["base"], loaded["view"])
    loaded["base"].fill_(3)
    assert loaded["view"].unique().tolist() == [3]


def test_load_where_there_is_no_such_device():
    file = saved(numbers(3, device="tpu:1"))
    with pytest.raises(RuntimeError, match="tpu"):
        torch.load(file, map_location="tpu:9")


def test_state_dict_round_trip():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).tpu()
    module(torch.randn(5, 3, device="tpu"))
    file = saved(module.state_dict())
    twin = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    twin.load_state_dict(torch.load(file, map_location="cpu"))
    for (name, a), b in zip(module.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(a.cpu(), b), name
    file.seek(0)
    assigned = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    assigned.load_state_dict(torch.load(file), assign=True)
    assert all(value.is_tpu for value in assigned.state_dict().values())


def test_saved_bits():
    x = torch.view_as_complex(numbers(3, 2)).conj()
    for value in (x, x.imag):
        for where in ("cpu", "tpu"):
            twin = torch.load(saved(value), map_location=where)
            assert torch.equal(twin.cpu().resolve_conj(), value.cpu().resolve_conj())


# --- parameters
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(2))
        self.register_buffer("part", self.mask[:1])


def test_tied_weights_stay_tied():
    module = Tied()
    weight, optimizer = module.head.weight, torch.optim.SGD(module.parameters(), lr=1.0)
    before = weight.detach().clone()
    for device in ("tpu", "cpu", "tpu:1", "tpu:0"):
        module.to(device)
        assert module.head.weight is weight and module.embedding.weight is weight
        assert optimizer.param_groups[0]["params"][0] is weight
        assert weight.device == torch.device(
            device if ":" in device or device == "cpu" else "tpu:0"
        )
        assert torch.equal(weight.detach().cpu(), before)
    module.head(module.embedding(torch.tensor([1, 2], device="tpu"))).sum().backward()
    optimizer.step()
    assert not torch.equal(weight.detach().cpu(), before)
    assert torch.equal(module.embedding.weight.detach().cpu(), weight.detach().cpu())


def test_module_keeps_gradients_and_dtype():
    module = nn.Linear(2, 2)
    module(torch.ones(1, 2)).sum().backward()
    weight = module.weight
    gradient = weight.grad.clone()
    module.tpu()
    assert module.weight is weight and weight.grad.is_tpu
    assert torch.equal(weight.grad.cpu(), gradient)
    module.to(torch.bfloat16)
    assert module.weight is weight and weight.dtype == weight.grad.dtype == torch.bfloat16


def test_data_of_a_parameter():
    weight = nn.Parameter(torch.ones(2))
    value = numbers(2)
    weight.data = value
    assert weight.is_tpu and weight.is_leaf and shares(weight, value)
    value.add_(1)
    assert weight.tolist() == [2, 3]
    weight.data = weight.data.to(torch.float64).cpu()
    assert weight.device.type == "cpu" and weight.dtype == torch.float64
    weight.data = numbers(3, 2, device="tpu:1")
    assert weight.device == torch.device("tpu:1") and weight.shape == (3, 2)


def test_swapped_storage_of_a_shallow_copy():
    """detach() and views follow what is written, not what is reassigned."""

    def change(device):
        x = numbers(3, device=device)
        y, version = x.detach(), x._version
        x.add_(1)
        seen, bumped = y.clone(), x._version - version
        x.data = numbers(2, device=device)
        return seen, y, x, bumped, y._version

    agree(change)


@pytest.mark.parametrize(
    "shape", [(2, 3, 4, 5), (1, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1), (0, 3, 2, 2)]
)
def test_channels_last(shape):
    def use(device):
        x = numbers(*shape, device=device).to(memory_format=torch.channels_last)
        y = x + 1
        z = torch.empty_like(x).copy_(numbers(*shape, device=device))
        return (
            x,
            y.stride(),
            z,
            x.contiguous(),
            x.clone(),
            x.is_contiguous(memory_format=torch.channels_last),
            x[:, :1],
            torch.empty(shape, device=device, memory_format=torch.channels_last).stride(),
            x.to(torch.float64),
            x.cpu(),
        )

    agree(use)


def test_channels_last_3d():
    def use(device):
        x = numbers(2, 3, 2, 2, 2, device=device).to(memory_format=torch.channels_last_3d)
        return x, (x * 2).stride(), x.sum(1)

    agree(use)
