"""Operators that move elements, and factories, against CPU PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from agreement import agree, agree_on
from rule_inputs import LAYOUTS, all_layouts, values, with_gradients

X = values(2, 3, 4)
Y = values(2, 3, 4, seed=1)

MOVES = {
    "flip": lambda x: [x.flip(0), x.flip(-1, 0), x.flip([])],
    "roll": lambda x: [x.roll(2), x.roll(-1, 0), x.roll((1, 5), (0, 2))],
    "rot90": lambda x: [torch.rot90(x, k, (0, 2)) for k in range(-1, 4)],
    "repeat": lambda x: [x.repeat(2, 1, 3), x.repeat(2, 1, 1, 2), x.repeat(0, 1, 1)],
    "tile": lambda x: [x.tile(2), x.tile(2, 1, 1, 2)],
    "repeat_interleave": lambda x: [x.repeat_interleave(2), x.repeat_interleave(3, 1)],
    "fliplr": lambda x: [x.fliplr(), x.flipud()],
    "diag": lambda x: [x[0, 0].diag(), x[0].diag(1), x.diagonal(0, 1, 2).contiguous()],
    "diag_embed": lambda x: [x.diag_embed(), x.diag_embed(1), x.diag_embed(-2, 0, 2)],
    "tril": lambda x: [x.tril(), x.tril(1), x.tril(-2), x.triu(), x.triu(1), x.triu(-9)],
    "trace": lambda x: [x[0, :, :3].trace(), x[0].trace()],
    "unfold": lambda x: [x.unfold(2, 2, 1), x.unfold(1, 2, 2).clone()],
    "reshape": lambda x: [x.mT.reshape(6, 4), x.flatten(1), x.unflatten(2, (2, 2))],
    "permute": lambda x: [
        x.permute(2, 0, 1).contiguous(),
        x.movedim(0, 2).clone(),
        x.swapdims(0, 1),
    ],
    "block_diag": lambda x: [torch.block_diag(x[0], x[1, 0], x[0, 0, 0])],
    "cartesian_prod": lambda x: [torch.cartesian_prod(x[0, 0], x[1, 1])],
    "combinations": lambda x: [torch.combinations(x[0, 0], 2)],
    "channel_shuffle": lambda x: [F.channel_shuffle(x.reshape(1, 6, 2, 2), 3)],
    "pixel_shuffle": lambda x: [F.pixel_shuffle(x.reshape(1, 4, 2, 3), 2)],
    "pixel_unshuffle": lambda x: [F.pixel_unshuffle(x.reshape(1, 1, 6, 4), 2)],
    "vander": lambda x: [torch.vander(x[0, 0], 3)],
    "hsplit": lambda x: [p.clone() for p in (*x.hsplit(3), *x.split([1, 3], 2), *x.chunk(3, 2))],
    "unbind": lambda x: [p * 1 for p in x.unbind(1)],
    "tensor_split": lambda x: [p + 0 for p in x.tensor_split(3, 2)],
    "squeeze": lambda x: [x[:, :1].squeeze(1) * 1, x.unsqueeze(1) * 1],
    "expand": lambda x: [x[:, :1].expand(5, 2, 3, 4).contiguous(), x[..., :1].expand_as(x) * 2],
    "atleast": lambda x: [torch.atleast_3d(x[0, 0]) * 1],
    "view_as_complex": lambda x: [
        torch.view_as_real(torch.view_as_complex(x.reshape(2, 3, 2, 2)) * 1j)
    ],
}


@pytest.mark.parametrize("name", MOVES)
def test_moves(name):
    differentiable = name != "vander"
    agree_on(with_gradients(MOVES[name]) if differentiable else MOVES[name], X, tolerance=1e-6)
    agree_on(MOVES[name], X.bfloat16(), tolerance=1e-2)
    if name not in ("vander", "view_as_complex"):
        agree_on(MOVES[name], values(2, 3, 4, dtype=torch.int64))
        agree_on(MOVES[name], values(2, 3, 4, dtype=torch.bool))


@pytest.mark.parametrize("name", ["flip", "roll", "tril", "triu", "repeat"])
def test_moves_in_every_layout(name):
    function = {
        "flip": lambda x: x.flip(-1) if x.dim() else x.flip([]),
        "roll": lambda x: x.roll(1),
        "tril": lambda x: torch.atleast_2d(x).tril(),
        "triu": lambda x: torch.atleast_2d(x).triu(1),
        "repeat": lambda x: x.repeat(2, *[1] * x.dim()),
    }[name]
    agree_on(all_layouts(function), values(4, 6))


def test_moves_in_place():
    def run(x):
        y = x.clone()
        y[0].mT.tril_()
        y[1].triu_(1)
        out = torch.empty(0, device=x.device)
        torch.triu(x, out=out)
        return y, out

    agree_on(run, X)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat(dim):
    agree_on(with_gradients(lambda a, b: torch.cat([a, b, a], dim)), X, Y)
    agree_on(lambda a, b: torch.cat([a.mT, b.mT], dim), X, Y)
    agree_on(lambda a, b: torch.cat([a, b.double()], dim), X, Y)
    agree_on(lambda a, b: torch.cat([a.bool(), b.long()], dim), X, Y)
    agree_on(lambda a, b: torch.cat([a, b[0, 0, :0], a], dim), X, Y)
    agree_on(lambda a, b: torch.stack([a, b], dim), X, Y)
    agree_on(with_gradients(lambda a, b: torch.stack([a, b], dim)), X, Y)


def test_cat_kinds():
    image = values(2, 3, 4, 5).to(memory_format=torch.channels_last)
    agree_on(lambda x: [torch.cat([x, x], 1), torch.cat([x, x.contiguous()], 1)], image)
    agree_on(lambda a: torch.cat([a]), X)
    agree_on(lambda a: torch.cat([a[:0], a[:0]]), X)
    agree_on(lambda a: [torch.hstack([a, a]), torch.vstack([a, a]), torch.dstack([a, a])], X)
    agree_on(lambda a: torch.cat([a, a[:, :2]], 0), X)
    agree_on(lambda a: torch.cat([a, a], 3), X)
    agree_on(lambda a: torch.cat([]), X)
    agree_on(lambda a: torch.cat([a] * 40, 1), X)

    def out(a, b):
        whole = torch.zeros(4, 3, 8, device=a.device)
        torch.cat([a, b], out=whole[..., ::2])
        fresh = torch.empty(0, device=a.device, dtype=torch.float64)
        torch.cat([a, b], out=fresh)
        return whole, fresh

    agree_on(out, X, Y)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("pad", [[1, 2], [1, 0, 2, 1], [2, 1, 0, 1, 1, 1]])
def test_pad(mode, pad):
    x = values(2, 3, *[4, 5, 3][: len(pad) // 2])
    agree_on(with_gradients(lambda x: F.pad(x, pad, mode)), x, tolerance=1e-6)
    agree_on(lambda x: F.pad(x, pad, mode), x.mT if x.dim() > 3 else x[..., ::2].repeat(1, 1, 2))
    if mode != "circular":
        agree_on(lambda x: F.pad(x, pad, mode), x.bfloat16())


def test_constant_pad():
    agree_on(with_gradients(lambda x: F.pad(x, [-1, 2, 1, -1], value=3)), X)
    agree_on(lambda x: [F.pad(x, [1, 1], value=True), F.pad(x, [0, 0, 1, 0])], X.long())
    agree_on(lambda x: F.pad(x, [4, 0], "reflect"), X)
    image = values(2, 3, 4, 5).to(memory_format=torch.channels_last)
    agree_on(lambda x: F.pad(x, [1, 1, 1, 1]), image)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
def test_unfold_and_fold(stride, dilation):
    x = values(2, 3, 6, 7)
    unfold = lambda x: F.unfold(x, (2, 3), dilation, 1, stride)  # noqa: E731
    agree_on(with_gradients(unfold), x, tolerance=1e-5)
    columns = unfold(x)
    fold = lambda c: F.fold(c, (6, 7), (2, 3), dilation, 1, stride)  # noqa: E731
    agree_on(with_gradients(fold), columns, tolerance=1e-5)


def test_as_strided_gradients():
    run = with_gradients(lambda x: x.as_strided((3, 3), (2, 1), 1))  # overlapping
    agree_on(run, values(4, 4))
    agree_on(with_gradients(lambda x: x.unfold(1, 3, 1) * 2), values(2, 6))
    agree_on(with_gradients(lambda x: x.expand(3, 4, 5).diagonal(0, 1, 2)), values(4, 5))


FACTORIES = {
    "zeros": lambda **o: [torch.zeros(2, 3, **o), torch.zeros([], **o), torch.zeros(0, 2, **o)],
    "ones": lambda **o: [torch.ones(2, 3, **o), torch.ones([], **o)],
    "full": lambda **o: [torch.full((2, 3), 3, **o), torch.full([], 1, **o)],
    "eye": lambda **o: [torch.eye(3, **o), torch.eye(2, 4, **o), torch.eye(0, **o)],
    "arange": lambda **o: [
        torch.arange(5, **o),
        torch.arange(1, 9, 3, **o),
        torch.arange(7, 1, -2, **o),
    ],
    "scalar_tensor": lambda **o: [torch.scalar_tensor(3, **o)],
}


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_factories(name, dtype):
    agree(lambda device: FACTORIES[name](dtype=dtype, device=device))


def test_sequences():
    def run(device):
        return [
            torch.arange(0.5, 3, 0.25, device=device),
            torch.arange(1e6, 1e6 + 3, device=device),
            torch.arange(2**40, 2**40 + 3, device=device),
            torch.linspace(-1, 2, 7, device=device),
            torch.linspace(0, 10, 4, dtype=torch.int64, device=device),
            torch.linspace(3, 3, 1, device=device),
            torch.linspace(0, 1, 0, device=device),
            torch.logspace(-1, 2, 4, device=device),
            torch.logspace(0, 3, 4, base=2, device=device),
            torch.tril_indices(3, 4, 1, device=device),
            torch.triu_indices(4, 3, -1, device=device),
        ]

    agree(run, tolerance=1e-5)
    agree(lambda device: torch.arange(1, 5, -1, device=device))
    agree(lambda device: torch.arange(0, 5, 0, device=device))
    agree(lambda device: torch.arange(2.5, 7.5, dtype=torch.int64, device=device))


@pytest.mark.parametrize(
    "name", ["hann_window", "hamming_window", "blackman_window", "bartlett_window"]
)
def test_windows(name):
    agree(lambda d: [getattr(torch, name)(n, device=d) for n in (0, 1, 2, 9)], tolerance=1e-6)
    agree(lambda d: getattr(torch, name)(8, periodic=False, device=d), tolerance=1e-6)


def test_like_factories():
    image = values(2, 3, 4, 5).to(memory_format=torch.channels_last)

    def run(x):
        layouts = [layout(x[0, 0]) for layout in LAYOUTS.values()]
        fresh = [torch.zeros_like(v) for v in layouts] + [torch.full_like(v, 2) for v in layouts]
        kept = [torch.ones_like(x), torch.ones_like(x, memory_format=torch.contiguous_format)]
        new = [x.new_zeros(2, 3), x.new_full([2], 5, dtype=torch.int64), x.new_ones([])]
        return fresh, kept, new, torch.zeros_like(x, dtype=torch.bool)

    agree_on(run, image)


def test_fill():
    def run(x):
        y = x.clone()
        y[:, 1].fill_(2)
        y[0, 0, ::2].fill_(x[0, 0, 0])
        y.mT[1].zero_()
        return (
            y,
            x.long().fill_(2.7),
            torch.ones(3, device=x.device).fill_(float("nan")),
            y.bool().fill_(3),
        )

    agree_on(run, X)


def test_meshgrid_and_broadcast():
    a, b = torch.arange(3.0), torch.arange(4.0)
    agree_on(lambda a, b: [g * 1 for g in torch.meshgrid(a, b, indexing="ij")], a, b)
    agree_on(lambda a, b: [g * 1 for g in torch.meshgrid(a, b, indexing="xy")], a, b)
    agree_on(lambda a, b: [t * 1 for t in torch.broadcast_tensors(a[:, None], b)], a, b)


def test_repeat_interleave_with_counts():
    def run(x, counts):
        by_tensor = x.repeat_interleave(counts, 1, output_size=5)
        return by_tensor, with_gradients(lambda x: x.repeat_interleave(counts, 1, output_size=5))(x)

    agree_on(run, values(2, 3), torch.tensor([1, 0, 4]))


def test_padding_that_cuts_more_than_there_is():
    x = torch.arange(6.0).reshape(2, 3)
    agree_on(lambda x: F.pad(x, (-2, 2)), x)
    agree_on(lambda x: F.pad(x, (-4, 4)), x)
    agree_on(lambda x: F.pad(x, (4, -4)), x)
    agree_on(lambda x: F.pad(x, (-1, -1)), x)
    agree_on(lambda x: F.pad(x, (0, 0, -3, 3)), x)


def test_roll_of_no_elements():
    agree_on(lambda x: [x.roll(1, 5), x.roll((1, 2), (0, 1))], torch.zeros(2, 0))
