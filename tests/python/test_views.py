"""Views and writes through them behave as on the CPU: values, strides, offsets and aliasing."""

import os
import subprocess
import sys

import pytest
import torch
from agreement import agree
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

# Where device memory is host memory, .cpu() reads a view without its recipe; with
# TORCH_TPU_DIRECT_READ=0 it runs the recipe too.
DIRECT = os.environ.get("TORCH_TPU_DIRECT_READ") != "0"
CASES = int(os.environ.get("TORCH_TPU_VIEW_CASES", "2000"))
# The same cases each time, unless other ones are asked for.
RANDOM = "TORCH_TPU_VIEW_RANDOM" in os.environ

# Few shapes, so that programs are compiled once and used by many cases.
SHAPES = [(), (6,), (12,), (4, 6), (2, 3, 4), (1, 6), (0, 4)]
DTYPES = {
    torch.float32: 5,
    torch.complex64: 4,
    torch.int64: 2,
    torch.uint8: 1,
    torch.bfloat16: 1,
    torch.float64: 1,
    torch.complex128: 1,
    torch.bool: 1,
}
WEIGHTED = [dtype for dtype, weight in DTYPES.items() for _ in range(weight)]
# Of other sizes than their neighbours, for view(dtype).
REINTERPRETED = [torch.int16, torch.int32, torch.float32, torch.int64, torch.uint8, torch.complex64]


def filled(shape, dtype, start=1):
    """Small whole numbers, exact in every dtype: -3 .. 3 and their like."""
    count = 1
    for size in shape:
        count *= size
    values = (torch.arange(count) * 5 + start) % 7 - (0 if dtype == torch.uint8 else 3)
    if dtype.is_complex:
        return (
            torch.complex(values.double(), (values * 2 % 5 - 2).double()).reshape(shape).to(dtype)
        )
    return values.reshape(shape).to(dtype)


def bits(tensor):
    """A CPU tensor as bytes, NaN payloads included."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    return flat.copy_(tensor.resolve_conj().resolve_neg().reshape(-1)).view(torch.uint8)


def same_values(actual, expected, what):
    if torch.equal(bits(actual), bits(expected)):
        return
    # Complex arithmetic on the CPU makes zeros of either sign, as it happens to be vectorized.
    if torch.equal(actual, expected):
        return
    raise AssertionError(f"{what}: values differ\n tpu {actual}\n cpu {expected}")


def overlaps_itself(tensor):
    """True if two elements share memory."""
    offsets = torch.zeros(tensor.shape, dtype=torch.int64)
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        shape = [1] * tensor.dim()
        shape[dim] = size
        offsets = offsets + (torch.arange(size) * stride).reshape(shape)
    return offsets.unique().numel() != tensor.numel()


def shares(a, b):
    """True if two tensors have one storage."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def attempt(function, tensor):
    """(result, None), or (None, what was raised)."""
    try:
        return function(tensor), None
    except Exception as error:
        return None, error


# --- view operators. Each draws its arguments for a CPU tensor and gives a label and a function.
def dimension(draw, t, extra=0):
    rank = t.dim() + extra
    return draw(st.integers(-rank, rank - 1)) if rank else draw(st.sampled_from([0, -1]))


def factors(draw, count):
    """A shape of `count` elements."""
    if count == 0:
        return draw(st.sampled_from([(0,), (2, 0), (0, 1, 3)]))
    shape = []
    while count > 1 and len(shape) < 4:
        divisor = draw(st.sampled_from([d for d in range(1, count + 1) if count % d == 0]))
        shape.append(divisor)
        count //= divisor
    if count > 1:
        shape.append(count)
    return tuple(shape)


def draw_view(draw, t):
    shape = factors(draw, t.numel())
    return f"view({shape})", lambda x: x.view(shape)


def draw_reshape(draw, t):
    shape = factors(draw, t.numel())
    return f"reshape({shape})", lambda x: x.reshape(shape)


def draw_transpose(draw, t):
    a, b = dimension(draw, t), dimension(draw, t)
    return f"transpose({a}, {b})", lambda x: x.transpose(a, b)


def draw_permute(draw, t):
    order = draw(st.permutations(range(t.dim())))
    return f"permute({order})", lambda x: x.permute(order)


def draw_movedim(draw, t):
    a, b = dimension(draw, t), dimension(draw, t)
    return f"movedim({a}, {b})", lambda x: x.movedim(a, b)


def draw_slice(draw, t):
    index = []
    for size in t.shape:
        start = draw(st.one_of(st.none(), st.integers(-size, size)))
        stop = draw(st.one_of(st.none(), st.integers(-size, size)))
        step = draw(st.sampled_from([None, 1, 2, 3]))
        index.append(slice(start, stop, step))
    index = tuple(index)
    return f"[{index}]", lambda x: x[index]


def draw_mixed_index(draw, t):
    index = []
    for size in t.shape:
        kind = draw(st.sampled_from("iss:N"))
        if kind == "N":
            index.append(None)
        if kind == "i" and size > 0:
            index.append(draw(st.integers(-size, size - 1)))
        elif kind == "s":
            index.append(slice(draw(st.integers(0, size)), None, draw(st.sampled_from([1, 2]))))
        else:
            index.append(slice(None))
    if draw(st.booleans()):
        index = index[: len(index) // 2] + [...]
    index = tuple(index)
    return f"[{index}]", lambda x: x[index]


def draw_select(draw, t):
    dim = dimension(draw, t)
    size = t.shape[dim] if t.dim() else 1
    index = draw(st.integers(-size - 1, size))
    return f"select({dim}, {index})", lambda x: x.select(dim, index)


def draw_narrow(draw, t):
    dim = dimension(draw, t)
    size = t.shape[dim] if t.dim() else 1
    start = draw(st.integers(0, size))
    length = draw(st.integers(0, size - start + (1 if draw(st.booleans()) else 0)))
    return f"narrow({dim}, {start}, {length})", lambda x: x.narrow(dim, start, length)


def draw_expand(draw, t):
    shape = [draw(st.sampled_from([2, 3])) if size == 1 else -1 for size in t.shape]
    shape = draw(st.sampled_from([[], [1], [2]])) + shape
    return f"expand({shape})", lambda x: x.expand(shape)


def draw_squeeze(draw, t):
    if draw(st.booleans()):
        return "squeeze()", lambda x: x.squeeze()
    dim = dimension(draw, t)
    return f"squeeze({dim})", lambda x: x.squeeze(dim)


def draw_unsqueeze(draw, t):
    dim = dimension(draw, t, 1)
    return f"unsqueeze({dim})", lambda x: x.unsqueeze(dim)


def draw_unfold(draw, t):
    dim = dimension(draw, t)
    size = draw(st.integers(0, 4))
    step = draw(st.integers(1, 3))
    return f"unfold({dim}, {size}, {step})", lambda x: x.unfold(dim, size, step)


def draw_diagonal(draw, t):
    offset, a, b = draw(st.integers(-2, 2)), dimension(draw, t), dimension(draw, t)
    return f"diagonal({offset}, {a}, {b})", lambda x: x.diagonal(offset, a, b)


def draw_as_strided(draw, t):
    elements = t.untyped_storage().nbytes() // t.element_size()
    rank = draw(st.integers(0, 3))
    sizes = [draw(st.sampled_from([1, 2, 2, 3, 3, 4])) for _ in range(rank)]
    strides = [draw(st.sampled_from([0, 1, 1, 2, 3, 4, 5, 6, 8])) for _ in range(rank)]
    offset = draw(st.integers(0, max(elements - 1, 0)))
    last = offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    if last >= elements:  # slides and shrinks until it fits
        offset = 0
        while sizes and sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) >= elements:
            sizes.pop(), strides.pop()
    return (
        f"as_strided({sizes}, {strides}, {offset})",
        lambda x: x.as_strided(sizes, strides, offset),
    )


def draw_view_dtype(draw, t):
    if t.dtype == torch.bool:
        return None  # a byte that is no bool is undefined
    dtype = draw(st.sampled_from(REINTERPRETED))
    return f"view({dtype})", lambda x: x.view(dtype)


def draw_split(draw, t):
    dim = dimension(draw, t)
    size, which = draw(st.integers(1, 4)), draw(st.sampled_from([0, -1]))
    return f"split({size}, {dim})[{which}]", lambda x: x.split(size, dim)[which]


def draw_chunk(draw, t):
    dim = dimension(draw, t)
    chunks, which = draw(st.integers(1, 4)), draw(st.sampled_from([0, -1]))
    return f"chunk({chunks}, {dim})[{which}]", lambda x: x.chunk(chunks, dim)[which]


def draw_tensor_split(draw, t):
    dim = dimension(draw, t)
    chunks, which = draw(st.integers(1, 4)), draw(st.sampled_from([0, -1]))
    return f"tensor_split({chunks}, {dim})[{which}]", lambda x: x.tensor_split(chunks, dim)[which]


def draw_unbind(draw, t):
    dim = dimension(draw, t)
    which = draw(st.sampled_from([0, -1]))
    return f"unbind({dim})[{which}]", lambda x: x.unbind(dim)[which]


def draw_flatten(draw, t):
    a, b = dimension(draw, t), dimension(draw, t)
    return f"flatten({a}, {b})", lambda x: x.flatten(a, b)


def draw_unflatten(draw, t):
    dim = dimension(draw, t)
    shape = factors(draw, t.shape[dim] if t.dim() else 1) or (1,)
    return f"unflatten({dim}, {shape})", lambda x: x.unflatten(dim, shape)


def simple(label, function):
    return lambda draw, t: (label, function)


VIEWS = [
    *[draw_view, draw_reshape, draw_transpose, draw_permute, draw_movedim, draw_slice, draw_slice],
    *[draw_mixed_index, draw_select, draw_narrow, draw_expand, draw_squeeze, draw_unsqueeze],
    *[draw_unfold, draw_diagonal, draw_as_strided, draw_view_dtype, draw_split, draw_chunk],
    *[draw_tensor_split, draw_unbind, draw_flatten, draw_unflatten],
    simple("view_as_real", torch.view_as_real),
    simple("view_as_complex", torch.view_as_complex),
    simple("real", lambda x: x.real),
    simple("imag", lambda x: x.imag),
    simple("conj", lambda x: x.conj()),
    simple("neg view", lambda x: x.conj().imag),
    simple("mT", lambda x: x.mT if x.dim() else x),
    simple("detach", lambda x: x.detach()),
]
COMPLEX_VIEWS = VIEWS[-8:-2]


# --- writes through a view
def number(draw, t):
    return draw(st.sampled_from([2, 3])) if t.dtype != torch.bool else True


def operand_shape(draw, t):
    """A shape that broadcasts to the tensor's."""
    shape = [1 if draw(st.integers(0, 3)) == 0 else size for size in t.shape]
    return shape[draw(st.integers(0, 1)) :] if shape and shape[0] == 1 else shape


def operand(draw, t, dtype=None):
    return filled(operand_shape(draw, t), dtype or t.dtype, draw(st.integers(0, 3)))


def like(x, value):
    return value.to(x.device)


def write_add_number(draw, t):
    value = number(draw, t)
    return f"add_({value})", lambda x: x.add_(value)


def write_mul_number(draw, t):
    value = number(draw, t)
    return f"mul_({value})", lambda x: x.mul_(value)


def write_add(draw, t):
    value = operand(draw, t)
    return f"add_({value.tolist()})", lambda x: x.add_(like(x, value))


def write_copy(draw, t):
    value = operand(draw, t)
    return f"copy_({value.tolist()})", lambda x: x.copy_(like(x, value))


def write_copy_from_host(draw, t):
    value = operand(draw, t)
    return f"copy_(host {value.tolist()})", lambda x: x.copy_(value)


def write_copy_other_dtype(draw, t):
    value = operand(draw, t, torch.int32)
    return f"copy_(int32 {value.tolist()})", lambda x: x.copy_(like(x, value))


def write_fill(draw, t):
    value = number(draw, t)
    return f"fill_({value})", lambda x: x.fill_(value)


def write_fill_tensor(draw, t):
    value = filled((), t.dtype, draw(st.integers(0, 3)))
    return f"fill_({value})", lambda x: x.fill_(like(x, value))


def write_zero(draw, t):
    return "zero_()", lambda x: x.zero_()


def write_slice(draw, t):
    label, index = draw_slice(draw, t)
    value = number(draw, t)

    def write(x):
        index(x)[...] = value
        return x

    return f"{label} = {value}", write


def write_item(draw, t):
    if t.dim() == 0 or t.numel() == 0:
        return None
    index = tuple(draw(st.integers(-n, n - 1)) for n in t.shape)
    value = number(draw, t)

    def write(x):
        x[index] = value
        return x

    return f"[{index}] = {value}", write


def write_index_put(draw, t):
    if t.dim() == 0 or t.shape[0] == 0:
        return None
    accumulate = draw(st.booleans())
    rows = [draw(st.integers(-t.shape[0], t.shape[0] - 1)) for _ in range(2)]
    if not accumulate and rows[0] % t.shape[0] == rows[1] % t.shape[0]:
        rows = rows[:1]  # which of two writes wins is undefined
    index = torch.tensor(rows)
    value = filled((len(rows), *t.shape[1:]), t.dtype, 2)
    return (
        f"index_put_({rows}, accumulate={accumulate})",
        lambda x: x.index_put_((like(x, index),), like(x, value), accumulate=accumulate),
    )


def write_masked_fill(draw, t):
    mask = filled(operand_shape(draw, t), torch.int64, draw(st.integers(0, 3))) > 0
    value = number(draw, t)
    return (
        f"masked_fill_({mask.tolist()}, {value})",
        lambda x: x.masked_fill_(like(x, mask), value),
    )


def write_out(draw, t):
    value = filled(t.shape, t.dtype, draw(st.integers(0, 3)))
    return f"add({value.tolist()}, 1, out=)", lambda x: torch.add(like(x, value), 1, out=x)


def write_out_self(draw, t):
    value = number(draw, t)
    return f"mul(self, {value}, out=self)", lambda x: torch.mul(x, value, out=x)


def write_neg(draw, t):
    return "neg_()", lambda x: x.neg_()


def write_from_itself(draw, t):
    """The source shares the memory, which is an error where PyTorch can tell."""
    if t.dim() == 0:
        return None
    kind = draw(st.sampled_from(["flip", "shift", "transpose", "self"]))
    apart = not t.is_contiguous()  # PyTorch judges dense tensors only

    def write(x):
        if kind == "flip":
            return x.add_(x.flip(0))
        if kind == "self":
            return x.add_(x)
        if kind == "transpose":
            source = x.transpose(0, -1)
            return x.copy_(source.clone() if apart else source)
        n = x.shape[0]
        source = x.narrow(0, 0, n - 1)
        return x.narrow(0, 1, n - 1).add_(source.clone() if apart else source)

    return f"from itself: {kind}", write


WRITES = [
    *[write_add_number, write_mul_number, write_add, write_copy, write_copy_from_host],
    *[write_copy_other_dtype, write_fill, write_fill_tensor, write_zero, write_slice, write_item],
    *[write_index_put, write_masked_fill, write_out, write_out_self, write_neg, write_from_itself],
]
# Say the same whichever element comes last.
IDEMPOTENT = [write_fill, write_fill_tensor, write_zero]
# Arithmetic on bytes that were written as another dtype would be about NaN and denormal numbers.
MOVING = [write_copy, write_copy_from_host, write_fill, write_fill_tensor, write_zero, write_slice]


class Pair:
    """The same tensor on both devices, and what it is a view of."""

    def __init__(self, cpu, tpu):
        self.bases = (cpu, tpu)
        self.cpu, self.tpu = cpu, tpu
        self.label = "base"
        self.reinterpreted = self.calculated = False

    def check_geometry(self):
        cpu, tpu, label = self.cpu, self.tpu, self.label
        for name, read in {
            "shape": lambda t: tuple(t.shape),
            "strides": lambda t: t.stride(),
            "storage_offset": lambda t: t.storage_offset(),
            "dtype": lambda t: t.dtype,
            "_is_view": lambda t: t._is_view(),
            "is_conj": lambda t: t.is_conj(),
            "is_neg": lambda t: t.is_neg(),
            "is_contiguous": lambda t: t.is_contiguous(),
            "version": lambda t: t._version,
            "storage size": lambda t: t.untyped_storage().nbytes(),
        }.items():
            assert read(tpu) == read(cpu), f"{label}: {name} is {read(tpu)}, on cpu {read(cpu)}"
        base, tpu_base = self.bases
        if base.numel() > 0:  # without elements there is no address
            shared = shares(cpu, base)
            assert shares(tpu, tpu_base) == shared, f"{label}: shares its storage? cpu: {shared}"
            if shared and cpu.numel() > 0:
                distance = cpu.data_ptr() - base.data_ptr()
                assert tpu.data_ptr() - tpu_base.data_ptr() == distance, label

    def check_values(self):
        same_values(self.tpu.cpu(), self.cpu, self.label)
        same_values(self.bases[1].cpu(), self.bases[0], f"base after {self.label}")

    def check_recipe(self):
        same_values(self.tpu.clone().cpu(), self.cpu, f"clone of {self.label}")

    def apply(self, label, function):
        """Applies a function to both; true if it gave new views."""
        cpu, cpu_error = attempt(function, self.cpu)
        tpu, tpu_error = attempt(function, self.tpu)
        note(f"{label}: {type(cpu_error).__name__ if cpu_error else tuple(cpu.shape)}")
        if cpu_error is not None or tpu_error is not None:
            assert type(tpu_error) is type(cpu_error), (
                f"{self.label}.{label}: tpu {tpu_error!r}, cpu {cpu_error!r}"
            )
            expected, actual = str(cpu_error).splitlines()[0], str(tpu_error).splitlines()[0]
            assert actual.startswith(expected), f"{self.label}.{label}: {actual!r}, {expected!r}"
            event("error")
            return False
        self.label = f"{self.label}.{label}"
        self.cpu, self.tpu = cpu, tpu
        return True


@settings(
    max_examples=CASES,
    deadline=None,
    derandomize=not RANDOM,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.data())
def test_chains_of_views_and_writes(data):
    draw = data.draw
    shape, dtype = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(WEIGHTED))
    base = filled(shape, dtype)
    pair = Pair(base.clone(), base.to("tpu"))
    for _ in range(draw(st.integers(1, 4))):
        for _ in range(draw(st.integers(0, 3))):
            choices = VIEWS + (COMPLEX_VIEWS if pair.cpu.dtype.is_complex else [])
            if pair.calculated and base.dtype.is_complex:
                choices = [view for view in choices if view is not draw_view_dtype]  # signs of zero
            drawn = draw(st.sampled_from(choices))(draw, pair.cpu)
            if drawn is None:
                continue
            if pair.apply(*drawn):
                pair.reinterpreted |= drawn[0].startswith("view(torch.")
                pair.check_geometry()
        choices = MOVING if pair.reinterpreted else WRITES
        if overlaps_itself(pair.cpu):
            choices = IDEMPOTENT
        drawn = draw(st.sampled_from(choices))(draw, pair.cpu)
        if drawn is not None:
            label, function = drawn
            pair.calculated |= choices is WRITES
            before = pair.cpu, pair.tpu
            pair.apply(label, function)
            pair.cpu, pair.tpu = before
            pair.check_geometry()
        pair.check_values()
    pair.check_recipe()


@pytest.mark.skipif(not DIRECT, reason="is that process")
def test_chains_read_through_recipes():
    """A part of the chains again, where every read of a view runs its recipe."""
    environment = os.environ | {"TORCH_TPU_DIRECT_READ": "0", "TORCH_TPU_VIEW_CASES": "300"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]


MORE_VIEWS = {
    "adjoint": lambda x: x.adjoint(),
    "alias": torch.ops.aten.alias,
    "as_strided_": lambda x: x.view(12).as_strided_((2, 2), (3, 1), 1),
    "atleast_3d": torch.atleast_3d,
    "block_diagonals": lambda x: x.view(2, 2, 3).diagonal(dim1=0, dim2=1),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, torch.ones(2, 1, 1, device=x.device))[
        0
    ],
    "broadcast_to": lambda x: x.broadcast_to(2, 3, 4),
    "dsplit": lambda x: x.view(3, 2, 2).dsplit(2)[1],
    "expand_as": lambda x: x[:1].expand_as(x),
    "H": lambda x: x.H,
    "hsplit": lambda x: x.hsplit(2)[1],
    "mH": lambda x: x.mH,
    "moveaxis": lambda x: x.moveaxis(0, 1),
    "narrow by a tensor": lambda x: x.narrow(0, torch.tensor(1), 2),
    "positive": lambda x: x.positive(),
    "ravel": lambda x: x.ravel(),
    "reshape_as": lambda x: x.reshape_as(torch.empty(6, 2)),
    "split_with_sizes": lambda x: x.split_with_sizes([1, 2])[1],
    "squeeze of two": lambda x: x.view(1, 12, 1).squeeze((0, 2)),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "T": lambda x: x.T,
    "tensor_split by a tensor": lambda x: x.tensor_split(torch.tensor([1, 2]))[1],
    "unsafe_split": lambda x: x.unsafe_split(2)[0],
    "view_as": lambda x: x.view_as(torch.empty(2, 6)),
    "vsplit": lambda x: x.vsplit(3)[2],
}


@pytest.mark.parametrize("view", MORE_VIEWS.values(), ids=MORE_VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_other_view_operators(view, dtype):
    def use(device):
        base = filled((3, 4), dtype).to(device)
        alias = base.detach()
        x = view(base)
        return x, x._is_view(), shares(x, alias), x.mul(2), x.fill_(5), alias, base._version

    agree(use)


def two_views(x):
    x[0].mul_(2)
    x[:, 1].add_(x[:, 2])
    return x * x


GRADIENTS = {
    "write into a row": lambda x: (x * 1)[1].mul_(3)._base,
    "write into a column of a transpose": lambda x: (x * 1).t()[2].mul_(x[:, 0])._base,
    "copy into steps": lambda x: (x * 1)[:, ::2].copy_(x[:, 1::2] * 2)._base,
    "setitem": lambda x: torch.zeros_like(x).index_put((torch.tensor([1]),), x[0] * x[1]),
    "as_strided": lambda x: (x * x).as_strided((2, 3), (5, 2), 1),
    "unfold": lambda x: (x * x).unfold(1, 2, 1),
    "expand and select": lambda x: (x * x)[:1].expand(5, 4).select(1, 2),
    "diagonal": lambda x: (x * 1).diagonal(1).square_()._base,
    "view as complex": lambda x: torch.view_as_complex((x * x).view(3, 2, 2)).conj().imag,
    "masked": lambda x: (x * 1)[1:].masked_fill_(x[1:] > 0, 2) * x[1:],
    "two views of one": lambda x: two_views(x * 1),
}


@pytest.mark.parametrize("function", GRADIENTS.values(), ids=GRADIENTS)
def test_gradients_through_views(function):
    def use(device):
        x = filled((3, 4), torch.float32).to(device).requires_grad_()
        y = function(x)
        (y * torch.arange(y.numel(), device=device).view(y.shape)).sum().backward()
        return y, x.grad

    agree(use)


def test_fill_of_an_expanded_tensor():
    def use(device):
        x = filled((3, 1), torch.float32).to(device)
        x[1:].expand(2, 4).fill_(7)
        x[:1].expand(1, 2).zero_()
        return x

    agree(use)


def test_views_keep_their_storage_alive():
    view = torch.arange(6.0, device="tpu")[2:4]
    assert view.tolist() == [2, 3] and view.untyped_storage().nbytes() == 24
