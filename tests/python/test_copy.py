"""Copies: between dtypes, devices and layouts, blocking and not, and of next to nothing."""

import itertools

import pytest
import torch
from agreement import agree, same

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
DEVICES = ["tpu:0", "tpu:1", "tpu:2", "tpu:3"]

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values to real")


def numbers(*shape, dtype=torch.float32, device="cpu"):
    count = torch.Size(shape).numel()
    values = torch.arange(count) % 7
    if dtype.is_complex:
        values = torch.complex(values.double(), -values.double())
    return values.reshape(shape).to(dtype).to(device)


# --- dtypes
@pytest.mark.parametrize("source", DTYPES)
def test_dtypes(source):
    x = numbers(2, 3, dtype=source)
    if source.is_floating_point and source.itemsize > 1:
        x = x - 2.5
    there = x.to("tpu")
    same(there, x)
    for dtype in DTYPES:
        if x.dtype.is_floating_point and dtype == torch.uint8:
            continue  # negative numbers have no meaning there
        expected = x.to(dtype)
        same(there.to(dtype), expected, f"{source} to {dtype} on the tpu")
        same(x.to("tpu", dtype), expected, f"{source} to {dtype} on the way to the tpu")
        same(there.to("cpu", dtype), expected, f"{source} to {dtype} on the way to the cpu")
        target = torch.zeros(3, 2, dtype=dtype, device="tpu")
        target.t().copy_(there)
        same(target, expected.t().contiguous(), f"{source} copied to {dtype}")
        target = torch.zeros(3, 2, dtype=dtype, device="tpu")
        target.t().copy_(x)
        same(target, expected.t().contiguous(), f"{source} copied from the cpu to {dtype}")
        target = torch.zeros(3, 2, dtype=dtype)
        target.t().copy_(there)
        same(target, expected.t().contiguous(), f"{source} copied to the cpu as {dtype}")


def test_unsupported_dtype():
    with pytest.raises(NotImplementedError):
        torch.zeros(2, dtype=torch.complex32, device="tpu")
    assert numbers(2, device="tpu").tolist() == [0, 1]


# --- layouts
LAYOUTS = {
    "whole": lambda x: x,
    "row": lambda x: x[1],
    "rows": lambda x: x[1:3],
    "steps": lambda x: x[::2, 1::2],
    "transposed": lambda x: x.t(),
    "column": lambda x: x[:, 2],
    "expanded": lambda x: x[:1].expand(3, 6),
    "windows": lambda x: x.unfold(1, 3, 1),
    "element": lambda x: x[2, 3],
    "diagonal": lambda x: x.diagonal(1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    view = LAYOUTS[layout]
    x = numbers(4, 6)
    there = x.to("tpu")
    # The view is taken first, then copied; strides of dense tensors are kept.
    same(view(x).to("tpu"), view(x).clone())
    same(view(there).cpu(), view(x).clone())
    same(view(there).to("tpu:1"), view(x).clone())
    same(view(there).clone(), view(x).clone())
    same(view(there).contiguous(), view(x).contiguous())
    same(view(there).to(torch.float64), view(x).to(torch.float64))
    assert view(there).tolist() == view(x).tolist()


@pytest.mark.parametrize(
    "layout", [name for name in LAYOUTS if name not in ("expanded", "windows")]
)
def test_copies_into_layouts(layout):
    view = LAYOUTS[layout]
    expected = torch.zeros(4, 6)
    value = numbers(*view(expected).shape) + 1
    view(expected).copy_(value)
    sources = [value, value.to("tpu:0"), value.to("tpu:1"), value.to("tpu").to(torch.int64)]
    for source in sources:
        target = torch.zeros(4, 6, device="tpu")
        view(target).copy_(source)
        same(target, expected, f"from {source.device}, {source.dtype}")
    target = torch.zeros(4, 6)
    view(target).copy_(value.to("tpu"))
    same(target, expected)


@pytest.mark.parametrize("sizes", [(6,), (1,), (4, 1), (1, 6), ()])
def test_broadcasting(sizes):
    def copy(device):
        target = torch.zeros(4, 6, device=device)
        target[:, 1:] = 3
        target.copy_(numbers(*sizes, device=device) + 1)
        return target, torch.zeros(4, 6, device=device).copy_(numbers(*sizes) + 1)

    agree(copy)


@pytest.mark.parametrize("shapes", [((4, 6), (5,)), ((6,), (4, 6)), ((2, 3), (3, 2)), ((0,), (3,))])
def test_shapes_that_do_not_fit(shapes):
    target, source = shapes
    agree(lambda device: torch.zeros(target, device=device).copy_(numbers(*source, device=device)))
    agree(lambda device: torch.zeros(target, device=device).copy_(numbers(*source)))


@pytest.mark.parametrize(
    "format", [torch.preserve_format, torch.contiguous_format, torch.channels_last]
)
def test_memory_formats(format):
    def copy(device):
        x = numbers(2, 3, 2, 2, device=device)
        y = x.to(memory_format=torch.channels_last)
        z = x.permute(1, 0, 3, 2)
        return [
            each.clone(memory_format=format)
            for each in (x, y, z, x[:, ::2], x.expand(2, 3, 2, 2), x[:1, :1].expand(2, 3, 2, 2))
        ]

    agree(copy)


# --- devices
@pytest.mark.parametrize(("start", "end"), list(itertools.product(DEVICES, ["cpu", *DEVICES])))
def test_devices(start, end):
    x = numbers(3, 4)
    there = x.to(start)
    moved = there.t().to(end)
    assert moved.device == torch.device(end)
    same(moved.cpu(), x.t())
    assert (moved is there) is False
    moved.add_(1)  # a copy unless it is the same device
    same(there.cpu(), x + 1 if start == end else x)
    target = torch.zeros(4, 3, dtype=torch.float64, device=end)
    target.t()[1:].copy_(there[1:])
    expected = torch.zeros(4, 3, dtype=torch.float64)
    expected.t()[1:].copy_(there.cpu()[1:])
    same(target.cpu(), expected)


def test_to_the_device_it_is_on():
    x = numbers(3, device="tpu")
    assert x.to("tpu") is x and x.to("tpu:0") is x and x.tpu() is x and x.to(x) is x
    assert x.to("tpu", copy=True) is not x
    y = x.to("tpu", copy=True)
    y.add_(1)
    assert x.tolist() == [0, 1, 2] and y.tolist() == [1, 2, 3]


def test_gradients_cross_devices():
    x = numbers(3).requires_grad_()
    y = x.to("tpu:1").to("tpu:2", torch.float64)
    (y * y).sum().backward()
    same(x.grad, 2 * numbers(3))


# --- bits that copies resolve
def test_conjugate_and_negative():
    def copy(device):
        x = numbers(2, 3, dtype=torch.complex64, device=device) + 1
        views = [x.conj(), x.conj().imag, x.imag, x.t().conj()[1:], x.conj().conj()]
        copies = []
        for view in views:
            target = torch.zeros_like(view, memory_format=torch.contiguous_format)
            copies += [
                view,
                view.clone(),
                view.to("cpu", copy=True),
                target.copy_(view),
                torch.zeros(view.shape, dtype=view.dtype).copy_(view),
                view.to(torch.complex128),
                view.tolist(),
                view.resolve_conj().resolve_neg(),
                view.contiguous(),
            ]
        return copies

    agree(copy)


def test_copies_into_conjugate_and_negative():
    def copy(device):
        x = torch.zeros(2, 3, dtype=torch.complex64, device=device)
        x.conj().copy_(numbers(2, 3, dtype=torch.complex64, device=device))
        y = x.clone()
        y.conj().imag.copy_(numbers(2, 3, device=device))
        z = x.clone()
        z.conj()[1].copy_(numbers(3, dtype=torch.complex64).conj())  # from the host
        host = torch.zeros(2, 3, dtype=torch.complex64)
        host.conj().copy_(x)
        return x, y, z, host

    agree(copy)


# --- the source shares memory with the target
@pytest.mark.parametrize(
    "copy",
    [
        lambda x: x[1:].copy_(x[:-1]),
        lambda x: x[:-1].copy_(x[1:]),
        lambda x: x[3:].copy_(x[:3]),
        lambda x: x.copy_(x),
        lambda x: x[2:4].copy_(x[2:4]),
        lambda x: x.view(2, 3).copy_(x.view(2, 3)),
        lambda x: x.view(2, 3)[:, :2].copy_(x.view(2, 3)[:, 2:]),
        lambda x: x.view(2, 3)[0].copy_(x.view(2, 3)[1]),
        lambda x: x[:4].view(2, 2).copy_(x[:4].view(2, 2).t()),
        lambda x: x[:1].expand(3).copy_(x[3:]),
        lambda x: x[:1].expand(3).copy_(torch.ones(3)),
        lambda x: torch.add(x[1:], 1, out=x[:-1]),
        lambda x: torch.add(x, 1, out=x),
        lambda x: torch.mul(x[:3], x[3:], out=x[3:]),
        lambda x: x[1:].mul_(x[:-1]),
        lambda x: x[:3].add_(x[3:]),
    ],
)
def test_overlap(copy):
    def run(device):
        x = numbers(6, device=device)
        copy(x)
        return x

    agree(run)


def test_overlap_is_part_of_the_signature():
    """The same shapes and strides first without, then with a common storage."""

    def run(device):
        x, y = numbers(6, device=device), numbers(6, device=device)
        x[1:].add_(y[:-1])
        x[1:].add_(x[:-1])

    agree(run)


def test_results_of_overlapping_outputs():
    """Where PyTorch checks nothing, everything is read before anything is written."""
    x = numbers(6, device="tpu")
    torch.mm(x[:4].view(2, 2), x[:4].view(2, 2), out=x[1:5].view(2, 2))
    square = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    assert x.tolist() == [0, *(square @ square).flatten().tolist(), 5]


def test_outputs_in_one_storage():
    def run(device):
        x, both = numbers(2, 3, device=device), torch.zeros(9, device=device)
        torch.aminmax(x, dim=0, out=(both[:3], both[4:7]))
        never_written = torch.empty(2, 3, device=device)
        torch.aminmax(x, dim=0, out=(never_written[0], never_written[1]))
        return both, never_written

    agree(run)


def test_lists_in_one_storage():
    """Flat parameters: each tensor of a list is a part of one storage."""

    def run(device):
        flat = numbers(10, device=device)
        parts = [flat[:4], flat[4:6].view(2, 1), flat[6:]]
        torch._foreach_add_(parts, 1)
        torch._foreach_mul_(parts, [p.clone() for p in parts])
        torch._foreach_addcdiv_(parts, parts, [p + 1 for p in parts], value=2.0)
        torch._foreach_copy_(parts[1:], [p * 2 for p in parts[1:]])
        torch._foreach_copy_(parts[:1], [numbers(4)])  # from the host
        return flat

    agree(run)


def test_lists_whose_tensors_depend():
    """One tensor of a list is done after the other, as each sees what was written before."""

    def run(device):
        x, y = numbers(4, device=device), numbers(4, device=device) + 1
        torch._foreach_add_([x, x, x[1:]], 1)
        torch._foreach_mul_([x, y], [y, x])
        torch._foreach_sub_([x[:2], x[1:3]], [1.0, 2.0])
        torch._foreach_add_([x, y], [x, y])
        return x, y

    agree(run)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch._foreach_add_([x], []),
        lambda x: torch._foreach_add_([x], [1.0, 2.0]),
        lambda x: torch._foreach_add_([x, x.clone()], [x]),
        lambda x: torch._foreach_copy_([x], [x, x]),
        lambda x: torch._foreach_copy_([x[1:]], [x[:-1]]),
        lambda x: torch._foreach_add_([x[1:]], [x[:-1]]),
        lambda x: torch._foreach_add_([x], [x[:2].clone()]),
        lambda x: torch._foreach_mul_([x.long()], [1.5]),
        lambda x: torch._foreach_sqrt_([x.long()]),
        lambda x: torch._foreach_add_([x[:1].expand(3)], [x[:3]]),
    ],
)
def test_lists_that_do_not_fit(call):
    agree(lambda device: call(numbers(4, device=device)))


def test_optimizer_on_a_flat_parameter():
    def run(device):
        flat = numbers(10, device=device)
        parts = [flat[:4].requires_grad_(), flat[4:].view(3, 2).requires_grad_()]
        optimizer = torch.optim.AdamW(parts, lr=0.5, foreach=True)
        for part in parts:
            part.grad = torch.ones_like(part)
        for _ in range(3):
            optimizer.step()
        return (flat * 1000).round()

    agree(run)


def test_swap_through_views():
    def run(device):
        x = numbers(2, 3, device=device)
        first = x[0].clone()
        x[0], x[1] = x[1], first
        x[:, [0, 1]] = x[:, [1, 0]]
        return x

    agree(run)


# --- blocking and not
def test_list_copies_between_devices():
    targets = [torch.zeros(2, 3, device="tpu:0"), torch.zeros(3, device="tpu:1").double()]
    sources = [numbers(2, 3, device="tpu:1"), numbers(3)]
    torch._foreach_copy_(targets, sources, non_blocking=True)
    same(targets[0].cpu(), numbers(2, 3))
    same(targets[1].cpu(), numbers(3).double())
    hosts = [torch.zeros(3), torch.zeros(2, 3)]
    torch._foreach_copy_(hosts, targets[::-1])
    same(hosts, [numbers(3), numbers(2, 3)])


@pytest.mark.parametrize("pinned", [False, True])
def test_non_blocking(pinned):
    x = torch.arange(100_000.0)
    source = x.pin_memory() if pinned else x.clone()
    there = source.to("tpu", non_blocking=True)
    doubled = there * 2
    back = doubled.to("cpu", non_blocking=True)
    torch.tpu.synchronize()
    same(back, x * 2)
    target = torch.zeros(100_000, dtype=torch.float64, device="tpu:1")
    target.copy_(there, non_blocking=True)
    same(target, x.double())


@pytest.mark.parametrize("non_blocking", [False, True])
@pytest.mark.parametrize("size", [10, 1 << 22])
def test_ordinary_source_may_be_reused_at_once(size, non_blocking):
    """As with CUDA: only pinned memory has to be left alone until the copy is done."""
    for attempt in range(3):
        source = torch.full((size,), float(attempt))
        there = source.to("tpu", non_blocking=non_blocking)
        source.fill_(-1)
        assert there.min().item() == there.max().item() == attempt


def test_source_is_kept_alive():
    copies = []
    for i in range(20):
        copies.append(torch.full((1 << 16,), float(i)).pin_memory().to("tpu", non_blocking=True))
    assert [c[-1].item() for c in copies] == list(range(20))


def test_read_before_it_is_overwritten():
    """Programs under way keep the value they were given."""
    x = torch.ones(300, 300, device="tpu")
    results = []
    for _ in range(5):
        results.append(x @ x)
        x.add_(1)
    for i, result in enumerate(results):
        assert result.unique().tolist() == [300 * (i + 1) ** 2]


# --- numbers
@pytest.mark.parametrize("dtype", DTYPES)
def test_item(dtype):
    x = numbers(2, 3, dtype=dtype)
    there = x.to("tpu")
    for a, b in [(there[1, 2], x[1, 2]), (there.t()[1:, 0][0], x.t()[1:, 0][0])]:
        assert type(a.item()) is type(b.item()) and a.item() == b.item()
    if dtype.is_complex:
        assert there.conj()[1, 1].item() == x.conj()[1, 1].item()
        assert there.conj().imag[1, 1].item() == x.conj().imag[1, 1].item()
    agree(lambda device: x.to(device).item())
    agree(lambda device: x[:0].to(device).item())


def test_python_numbers():
    x = torch.tensor([3], device="tpu")
    assert int(x) == 3 and float(x) == 3.0 and bool(x) and [10, 20, 30, 40][x] == 40
    assert f"{x[0]:d}" == "3"
    with pytest.raises(TypeError, match="can't convert tpu:0 device type tensor to numpy"):
        x.numpy()
    with pytest.raises(RuntimeError):
        bool(torch.ones(2, device="tpu"))


# --- next to nothing
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4, 2), (2, 0, 0)])
def test_zero_size(shape):
    def use(device):
        x = torch.empty(shape, device=device)
        y = x.to(torch.float64)
        z = torch.ones(shape, device=device).t() if len(shape) == 2 else x
        return (
            x,
            y + 1,
            z,
            x.copy_(torch.ones(shape)),
            x.cpu(),
            x.clone(),
            x.sum(),
            x.reshape(-1),
            x.expand(2, *shape),
            torch.cat([x.reshape(-1), torch.ones(2, device=device)]),
            x.fill_(1).mul_(2),
            x.tolist(),
            x.data_ptr(),
            x.untyped_storage().nbytes(),
        )

    agree(use)


def test_empty_parts():
    def use(device):
        x = numbers(4, device=device)
        x[2:2] = 5
        x[:0].add_(1)
        x[torch.zeros(4, dtype=torch.bool, device=device)] = 9
        x[:0].copy_(x[4:])
        return x, x[4:], x[:0].sum(), x.view(4, 1)[:, :0]

    agree(use)


def test_zero_dimensions():
    def use(device):
        x = torch.tensor(3.0, device=device)
        y = x.clone()
        y.copy_(torch.tensor([4.0], device=device)[0])
        return x, y, x.expand(2), x.view(1, 1), x.reshape(()).add_(1), x.t()

    agree(use)


def test_meta():
    x = numbers(3, device="tpu")
    assert x.to("meta").shape == (3,)
    with pytest.raises(NotImplementedError):
        torch.empty(3, device="meta").to("tpu")
    assert torch.nn.Linear(2, 3, device="meta").to_empty(device="tpu").weight.is_tpu
