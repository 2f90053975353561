"""Fills the gaps of templates: each function gives the text of one gap.

Functions get a Line: its `draw` makes choices, its `x` is the last tensor drawn, its `dim` the last
dimension. Now and then they give something that does not fit, since errors are compared as well.
"""

import math
import random

import torch

DTYPES = [
    torch.float32,
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
LENGTHS = [0, 1, 1, 2, 2, 3, 3, 4, 5]
LARGEST = 120  # elements of a tensor


class Draw:
    """Choices, each the less likely the simpler the program should be; hypothesis makes them."""

    def __init__(self, integer):
        self.integer = integer

    def choice(self, items):
        return items[self.integer(0, len(items) - 1)]

    def rarely(self, one_in=12):
        return self.integer(0, one_in - 1) == one_in - 1


# --- values of inputs


def shape(draw, rank=None):
    rank = draw.integer(0, 4) if rank is None else rank
    lengths = [draw.choice(LENGTHS) for _ in range(rank)]
    while math.prod(lengths) > LARGEST:
        lengths[lengths.index(max(lengths))] //= 2
    return lengths


def numbers(draw, dtype, count):
    """Elements as Python numbers that `dtype` has: of one kind, or special ones among them."""
    kind, generator = draw.integer(0, 3), random.Random(draw.integer(0, 1 << 16))
    if dtype == torch.bool:
        return [generator.random() < 0.5 for _ in range(count)]
    if dtype.is_complex:
        return [complex(*(round(generator.gauss(0, 2), 2) for _ in "ab")) for _ in range(count)]
    if dtype.is_floating_point:
        if kind == 1:
            return [float(generator.randint(-4, 4)) for _ in range(count)]
        found = [generator.gauss(0, 2) for _ in range(count)]
        if kind == 3:
            info = torch.finfo(dtype)
            odd = [math.inf, -math.inf, math.nan, 0.0, -0.0, info.max, 1000.0, 2e-4]
            found = [generator.choice(odd) if generator.random() < 0.2 else v for v in found]
        return torch.tensor(found, dtype=dtype).tolist()
    info = torch.iinfo(dtype)
    if kind == 3:
        return [
            generator.choice([info.min, info.max, generator.randint(info.min, info.max)])
            for _ in range(count)
        ]
    return [generator.randint(max(-5, info.min), 7) for _ in range(count)]


def literal(dtype, lengths, elements):
    listed = ", ".join(repr(e) for e in elements)
    text = f"torch.tensor([{listed}], dtype={dtype}, device=device)"
    return text if len(lengths) == 1 else f"{text}.reshape({tuple(lengths)})"


def new(line, lengths, dtype):
    """The name of a new input."""
    elements = numbers(line.draw, dtype, math.prod(lengths))
    return line.define(literal(dtype, lengths, elements))


def wanted(line, fits, make, strict=False):
    """A tensor that fits: one there is, or a new one. Now and then one that does not."""
    draw = line.draw
    if not strict and line.tensors and draw.rarely(30):
        return line.use(draw.choice(list(line.tensors)))
    found = [name for name, t in line.tensors.items() if fits(t)]
    if found and not draw.rarely(4):
        return line.use(draw.choice(found[-6:]))
    return line.use(make())


def of(line, dtypes, rank=None):
    return wanted(
        line,
        lambda t: t.dtype in dtypes and (rank is None or t.dim() == rank),
        lambda: new(line, shape(line.draw, rank), line.draw.choice(dtypes)),
    )


FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.uint8, torch.bool]


def x(line):
    return of(line, DTYPES)


def r(line):
    return of(line, FLOATS)


def real(line):
    return of(line, FLOATS + INTEGERS)


def real32(line):
    return of(line, [torch.float32, torch.float64])


def real32m(line):
    return of(line, [torch.float32, torch.float64], 2)


def i(line):
    return of(line, INTEGERS)


def c(line):
    return of(line, [torch.complex64])


def v(line):
    return of(line, DTYPES, 1)


def m(line):
    return of(line, DTYPES, 2)


def batch(line):
    return of(line, DTYPES, 3)


def w(line):
    """The tensor that is written to."""
    name = x(line)
    line.target = line.x
    return name


# --- tensors that go with the last one


def broadcasts(a, b):
    return all(p == q or 1 in (p, q) for p, q in zip(a[::-1], b[::-1], strict=False))


def partial(draw, lengths):
    """Lengths that broadcast to these."""
    lengths = list(lengths)[draw.integer(0, len(lengths)) if draw.rarely(3) else 0 :]
    return [1 if draw.rarely(5) else n for n in lengths]


def y(line):
    lengths = line.x.shape
    dtypes = [line.x.dtype] * 4 + DTYPES
    return wanted(
        line,
        lambda t: broadcasts(t.shape, lengths) and t.numel() <= LARGEST,
        lambda: new(line, partial(line.draw, lengths), line.draw.choice(dtypes)),
    )


def like_first(line, lengths, dtype, dtypes=None):
    """A tensor of these lengths, which does not count as the last one."""
    return wanted(
        line,
        lambda t: list(t.shape) == list(lengths) and t.dtype in (dtypes or [dtype]),
        lambda: new(line, lengths, line.draw.choice(dtypes or [dtype])),
        strict=dtype == torch.bool,  # an index that is no mask is a fault of another kind
    )


def keeping_x(function):
    def gap(line):
        kept = line.x
        text = function(line)
        line.x = kept
        return text

    return gap


@keeping_x
def same(line):
    return like_first(line, line.x.shape, line.x.dtype, DTYPES)


@keeping_x
def same_dtype(line):
    return like_first(line, line.x.shape, line.x.dtype)


@keeping_x
def like(line):
    """Something to concatenate."""
    lengths = list(line.x.shape)
    if lengths and line.draw.rarely(3):
        lengths[0] = line.draw.integer(0, 3)
    dtypes = [line.x.dtype, line.draw.choice(DTYPES)]
    return like_first(line, lengths, line.x.dtype, dtypes)


@keeping_x
def scalar_tensor(line):
    return like_first(line, [], line.x.dtype, [line.x.dtype, line.draw.choice(DTYPES)])


@keeping_x
def scalar_same(line):
    return like_first(line, [], line.x.dtype)


def start_value(line):
    """What a product is added to."""
    return like_first(line, [], torch.float32, DTYPES[:3])


def condition(line):
    """A mask that decides the shape of what follows."""
    return of(line, [torch.bool])


@keeping_x
def mask(line):
    return new_or_old_mask(line, partial(line.draw, line.x.shape))


@keeping_x
def exact_mask(line):
    return new_or_old_mask(line, list(line.x.shape))


def new_or_old_mask(line, lengths):
    return like_first(line, lengths, torch.bool)


@keeping_x
def right(line):
    """The right operand of a matrix product."""
    inner = line.x.shape[-1] if line.x.dim() else 2
    lengths = [inner, line.draw.integer(0, 4)]
    if line.x.dim() == 3:
        lengths = [line.x.shape[0], *lengths]
    return like_first(line, lengths, line.x.dtype)


@keeping_x
def right_vector(line):
    return like_first(line, [line.x.shape[-1] if line.x.dim() else 2], line.x.dtype)


@keeping_x
def weight(line):
    inner = line.x.shape[-1] if line.x.dim() else 2
    return like_first(line, [line.draw.integer(0, 4), inner], line.x.dtype)


@keeping_x
def shift(line):
    """Bits to shift by: fewer than there are."""
    elements = [line.draw.integer(0, 6) for _ in range(math.prod(line.x.shape))]
    dtype = line.x.dtype if line.x.dtype != torch.bool else torch.int64
    return line.use(line.define(literal(dtype, list(line.x.shape), elements)))


@keeping_x
def ascending(line):
    dtype = line.draw.choice([torch.float32, torch.int64])
    elements = sorted(line.draw.integer(-4, 4) for _ in range(line.draw.integer(0, 5)))
    return line.use(line.define(literal(dtype, [len(elements)], elements)))


@keeping_x
def small_counts(line):
    elements = [line.draw.integer(0, 6) for _ in range(line.draw.integer(0, 6))]
    return line.use(line.define(literal(torch.int64, [len(elements)], elements)))


# --- indices


def length(line, at):
    return line.x.shape[at] if line.x.dim() else 1


def indices(line, lengths, bound, dtype=torch.int64, unique=False):
    generator = random.Random(line.draw.integer(0, 1 << 16))
    count = math.prod(lengths)
    line.unique = unique
    if bound == 0:
        lengths, elements = [0], []
    elif unique:
        elements = generator.sample(range(bound), min(count, bound))
        elements += [0] * (count - len(elements))
    else:
        least = -bound if line.negative else 0
        elements = [generator.randrange(least, bound) for _ in range(count)]
        there = line.target is None and (line.x is None or line.x.numel() > 0)
        if elements and there and line.draw.rarely(25):
            elements[0] = bound + 3
    return line.use(line.define(literal(dtype, list(lengths), elements)))


@keeping_x
def index_vector(line):
    """Positions along the last dimension drawn."""
    line.negative = False
    return indices(line, [line.draw.integer(0, 4)], line_length(line), line.draw.choice(INDEX))


@keeping_x
def index_vector_first(line):
    line.negative = True
    return indices(line, shape(line.draw, line.draw.integer(1, 2)), length(line, 0))


@keeping_x
def index_vector_last(line):
    line.negative = True
    return indices(line, [line.draw.integer(0, 4)], length(line, -1))


@keeping_x
def unique_first(line):
    bound = length(line, 0)
    return indices(line, [line.draw.integer(0, bound)], bound, unique=True)


@keeping_x
def unique_last(line):
    bound = length(line, -1)
    return indices(line, [line.draw.integer(0, bound)], bound, unique=True)


@keeping_x
def whole_index(line):
    bound = line_length(line)
    return indices(line, [bound], bound, line.draw.choice(INDEX), unique=True)


@keeping_x
def flat_index(line):
    line.negative = True
    return indices(line, shape(line.draw, line.draw.integer(0, 2)), line.x.numel())


def positive_index(line):
    return indices(line, shape(line.draw, line.draw.integer(0, 2)), LARGEST)


@keeping_x
def unique_flat(line):
    bound = line.x.numel()
    lengths = [line.draw.integer(0, min(bound, 6))]
    text = indices(line, lengths, bound, unique=True)
    line.index_lengths = lengths
    return text


INDEX = [torch.int64, torch.int64, torch.int32]


def line_length(line):
    """Length of the last dimension drawn."""
    try:
        return length(line, line.dim)
    except IndexError:
        return 1


def index_lengths(line, bound=None):
    """Lengths of an index as gather wants them: no longer than the tensor elsewhere."""
    lengths = [line.draw.integer(min(n, 1), n) if line.draw.rarely(3) else n for n in line.x.shape]
    if bound is not None and lengths:
        lengths[line.dim if abs(line.dim) < len(lengths) else 0] = bound
    line.index_lengths = lengths
    return lengths


@keeping_x
def index_like(line):
    line.negative = False
    return indices(line, index_lengths(line), line_length(line))


@keeping_x
def index_like_last(line):
    line.dim = -1
    line.negative = True
    return indices(line, list(line.x.shape), line_length(line))


@keeping_x
def unique_index(line):
    """Of scatter: along the dimension no position twice."""
    bound = line_length(line)
    lengths = list(line.x.shape)
    order = random.Random(line.draw.integer(0, 1 << 16)).sample(range(bound), bound)
    line.unique, line.index_lengths = True, lengths
    index = torch.tensor(order, dtype=torch.int64)
    if lengths:
        wrapped = line.dim % len(lengths)
        index = index.reshape([-1 if at == wrapped else 1 for at in range(len(lengths))])
        index = index.expand(lengths)
    else:
        index = torch.zeros([], dtype=torch.int64)
    return line.use(line.define(literal(torch.int64, lengths, index.flatten().tolist())))


@keeping_x
def source_like(line):
    return like_first(line, line.index_lengths, line.x.dtype)


@keeping_x
def row_of_x(line):
    """What select along the first dimension gives."""
    line.dim = 0
    return like_first(line, line.x.shape[1:], line.x.dtype, [line.x.dtype, torch.float32])


# --- dimensions, positions and lengths


def dim(line):
    rank = line.x.dim()
    line.dim = line.draw.integer(-max(rank, 1), max(rank, 1) - 1)
    if line.draw.rarely(30):
        line.dim = rank + 1
    return str(line.dim)


def other_dim(line):
    first, rank = line.dim, max(line.x.dim(), 1)
    line.dim = (first + line.draw.integer(1, max(rank - 1, 1))) % rank
    return str(line.dim)


def last_dim(line):
    return str(line.dim)


def new_dim(line):
    return str(line.draw.integer(-line.x.dim() - 1, line.x.dim()))


def dims(line):
    rank = line.x.dim()
    chosen = tuple(d for d in range(rank) if line.draw.integer(0, 1))
    return str(chosen)


def permutation(line):
    rank = line.x.dim()
    return str(tuple(random.Random(line.draw.integer(0, 99)).sample(range(rank), rank)))


def position(line):
    bound = line_length(line)
    return str(line.draw.integer(-bound, bound if line.draw.rarely(20) else max(bound - 1, 0)))


def start(line):
    line.start = line.draw.integer(0, line_length(line))
    return str(line.start)


def length_(line):
    return str(line.draw.integer(0, line_length(line) - line.start + line.draw.rarely(20)))


def window(line):
    line.window = line.draw.integer(1, max(line_length(line), 1))
    return str(line.window)


def step(line):
    return str(line.draw.integer(1, 3))


def offset(line):
    return str(line.draw.integer(-2, 2))


def slices(line):
    parts = []
    for n in line.x.shape:
        kind = line.draw.integer(0, 5)
        if kind == 0 and n:
            parts.append(str(line.draw.integer(-n, n - 1)))
        elif kind == 1:
            parts.append(f"{line.draw.integer(0, n)}:")
        elif kind == 2:
            parts.append(f"::{line.draw.integer(1, 3)}")
        elif kind == 3:
            parts.append(f"{line.draw.integer(-n, n)}:{line.draw.integer(-n, n)}")
        elif kind == 4 and line.draw.rarely(3):
            parts.append("None, :")
        else:
            parts.append(":")
    return ", ".join(parts) if parts else "..."


def strided(line):
    """Any strides over what the storage holds."""
    elements = line.x.untyped_storage().nbytes() // line.x.element_size()
    lengths, strides, reach = [], [], 0
    for _ in range(line.draw.integer(0, 3)):
        n, s = line.draw.integer(0, 4), line.draw.integer(0, 5)
        if reach + max(n - 1, 0) * s < elements:
            lengths.append(n)
            strides.append(s)
            reach += max(n - 1, 0) * s
    start = line.draw.integer(0, max(elements - 1 - reach, 0))
    if elements == 0:
        lengths, strides, start = [0], [1], 0
    return f"{tuple(lengths)}, {tuple(strides)}, {start}"


def expanded(line):
    lengths = [line.draw.integer(0, 3) if n == 1 else -1 for n in line.x.shape]
    return str(tuple(([line.draw.integer(1, 2)] if line.draw.rarely(3) else []) + lengths))


def regrouped(line):
    """Other lengths with the same product."""
    lengths = list(line.x.shape)
    at = line.draw.integer(0, len(lengths))
    kind = line.draw.integer(0, 3)
    if kind == 0:
        lengths.insert(at, 1)
    elif kind == 1 and at + 1 < len(lengths):
        lengths[at : at + 2] = [lengths[at] * lengths[at + 1]]
    elif kind == 2 and at < len(lengths) and lengths[at] % 2 == 0:
        lengths[at : at + 1] = [2, lengths[at] // 2]
    elif kind == 3 and line.x.numel():
        lengths = [-1]
    return str(tuple(lengths))


def resized(line):
    """Lengths that need no more memory than there is."""
    lengths = list(line.x.shape)
    if lengths and line.draw.rarely(2):
        lengths[0] = line.draw.integer(0, lengths[0])
    return str(tuple(lengths[::-1]))


def repeats(line):
    count = line.x.dim() + line.draw.rarely(3)
    return str(tuple(line.draw.integer(0, 2) for _ in range(count)))


# --- numbers and names


def small(line):
    return str(line.draw.integer(0, 3))


def boolean(line):
    return str(bool(line.draw.integer(0, 1)))


def number(line):
    return line.draw.choice(["0", "1", "2", "-1", "3", "0.5", "-1.5", "2.0", "0.1", "True"])


def scalar(line):
    return line.draw.choice(["0", "1", "2", "-3", "7", "0.5", "-2.5", "0.1", "True", "(1+2j)"])


def scalar_like(line):
    if line.draw.rarely(8):
        return scalar(line)
    if line.x.dtype == torch.bool:
        return boolean(line)
    if line.x.dtype.is_complex or line.x.is_floating_point():
        return line.draw.choice(["0", "1.5", "-2", "0.1", "3"])
    return line.draw.choice(["0", "1", "2", "7"])


def dtype(line):
    return str(line.draw.choice(DTYPES))


def same_width(line):
    """A dtype of any width: views of bits need one that divides."""
    return str(line.draw.choice([torch.int32, torch.float32, torch.int64, torch.float64]))


def reduction(line):
    return line.draw.choice(["sum", "prod", "mean", "amax", "amin"])


def fill(line, gap):
    if gap == "length":
        gap = "length_"
    return globals()[gap](line)
