"""Operators that address elements by index tensors, against CPU PyTorch."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from agreement import agree_on
from rule_inputs import out_forms, values, with_gradients, words

X = values(4, 5, 6)
ROWS = torch.tensor([2, 0, 3, 2])
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]


def integers(*shape, high, seed=0):
    return values(*shape, dtype=torch.int64, low=0, high=high, seed=seed)


@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32])
def test_index_select(index_dtype):
    index = ROWS.to(index_dtype)
    for dim in (0, 1, -1):
        agree_on(lambda x, i, d=dim: torch.index_select(x, d, i), X, index)
    agree_on(lambda x, i: x.mT.index_select(2, i[::2]), X, index)
    agree_on(lambda x, i: x[:1].expand(4, 5, 6).index_select(0, i), X, index)
    agree_on(lambda x, i: x.index_select(0, i[:0]), X, index)
    agree_on(lambda x, i: x[0, 0, 0].index_select(0, i[:1] * 0), X, index)
    agree_on(lambda x, i: with_gradients(lambda x: x.index_select(1, i))(x), X, index)


def test_index_select_forms():
    agree_on(out_forms(lambda x, i, **out: torch.index_select(x, 1, i, **out), False), X[0], ROWS)
    agree_on(lambda x, i: x.index_select(0, i.float()), X, ROWS)
    agree_on(lambda x, i: x.index_select(0, i.view(2, 2)), X, ROWS)
    agree_on(lambda x, i: x.index_select(3, i), X, ROWS)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gather(dtype):
    x, index = values(4, 5, dtype=dtype, low=0, high=5), integers(3, 4, high=4)
    agree_on(lambda x, i: [x.gather(0, i), x.gather(1, i), x.mT.gather(0, i[:, :2])], x, index)
    agree_on(lambda x, i: [x.gather(0, i[:0]), x[0, 0].gather(0, i[0, 0] * 0)], x, index)
    agree_on(lambda x, i: torch.take_along_dim(x[:, :4], i[:1], 0), x, index)
    if dtype is torch.float32:
        agree_on(lambda x, i: with_gradients(lambda x: x.gather(1, i))(x), x, index)
        agree_on(lambda x, i: x.gather(0, i.int()), x, index)
        agree_on(lambda x, i: x.gather(0, i[0]), x, index)
        agree_on(lambda x, i: x.gather(0, torch.cat([i, i], 1)), x, index)


@pytest.mark.parametrize("reduce", [None, *words("sum prod amax amin mean add multiply")])
def test_scatter(reduce):
    index = torch.tensor([[0, 1, 2, 0], [3, 0, 0, 1], [2, 2, 2, 2]])
    if reduce is None:  # which of several sources wins is not said
        index = torch.tensor([[0, 1, 2, 0], [3, 0, 0, 1], [2, 2, 1, 2]])
    # Dimension 0 of x has 4 elements, its dimension 1 has 5.
    for dtype in DTYPES[:-1]:
        x = values(4, 5, dtype=dtype, low=1, high=5)
        source = values(3, 4, dtype=dtype, low=1, high=5, seed=1)

        def run(x, i, s):
            if reduce in ("add", "multiply"):
                numbers = x.scatter(0, i, 3, reduce=reduce)
                return (
                    x.scatter(0, i, s, reduce=reduce),
                    numbers,
                    x.clone().scatter_(1, i, s, reduce=reduce),
                )
            if reduce is None:
                return x.scatter(0, i, s), x.scatter(0, i, 2), x.clone().mT.scatter_(0, i, 1)
            results = [
                x.scatter_reduce(dim, i, s, reduce, include_self=include)
                for dim, include in itertools.product((0, 1), (True, False))
            ]
            return results, x.clone().mT.scatter_reduce_(1, i, s, reduce)

        agree_on(run, x, index, source, tolerance=2e-2 if dtype is torch.bfloat16 else 1e-5)


def test_scatter_gradients():
    x, source, index = values(4, 5), values(3, 4, seed=1), integers(3, 4, high=4)

    def run(x, s, i):
        results = [with_gradients(lambda x, s: x.scatter_add(0, i, s))(x, s)]
        for reduce in ("sum", "amax", "amin", "mean", "prod"):
            function = lambda x, s, r=reduce: x.scatter_reduce(0, i, s, r)  # noqa: E731
            results.append(with_gradients(function)(x.detach(), s.detach()))
        unique = torch.arange(4, device=i.device).expand(3, 4)
        results.append(with_gradients(lambda x, s: x.scatter(1, unique, s))(x.detach(), s.detach()))
        return results

    agree_on(run, x, source, index, tolerance=1e-4)


def test_scatter_forms():
    x, source, index = values(4, 5), values(3, 4, seed=1), integers(3, 4, high=4)

    def run(x, s, i):
        out = torch.empty(0, device=x.device)
        torch.scatter_add(x, 0, i, s, out=out)
        view = x.clone()[:, 1:]
        view.scatter_add_(0, i, s)
        overlap = x[:, :1].clone()
        return out, view, overlap.scatter_add(0, i[:, :1], s)

    agree_on(run, x, source, index, tolerance=1e-6)
    agree_on(lambda x, s, i: x.scatter_add(0, i[:0], s), x, source, index)
    agree_on(lambda x, s, i: x.scatter(0, i, s.double()), x, source, index)
    agree_on(lambda x, s, i: x.scatter(0, i, s[:2]), x, source, index)


@pytest.mark.parametrize("name", words("index_add index_copy index_fill index_reduce"))
def test_slices_by_index(name):
    index = torch.tensor([2, 0, 3])

    def call(target, dim, index, source):
        if name == "index_fill":
            return target.index_fill(dim, index, 1.5), target.index_fill_(dim, index, source.sum())
        if name == "index_reduce":
            reduces = ("prod", "mean", "amax", "amin")
            many = [target.index_reduce(dim, index, source, r) for r in reduces]
            many += [
                target.index_reduce(dim, index, source, r, include_self=False) for r in reduces
            ]
            return many, target.index_reduce_(dim, index, source, "amax")
        in_place = getattr(target, name + "_")
        return getattr(target, name)(dim, index, source), in_place(dim, index, source)

    def run(x, i, s):
        results = [call(x.clone(), d, i, s.narrow(d, 0, 3)) for d in (0, 1, -1)]
        narrow = i.int() if name in ("index_add", "index_reduce") else i
        results.append(call(x.clone().mT, 0, narrow, s.mT[:3]))
        repeated = torch.tensor([1, 1, 1], device=x.device)
        if name in ("index_add", "index_reduce"):
            results.append(call(x.clone(), 0, repeated, s[:3]))
        results.append(call(x.clone(), 0, i[:0], s[:0]))
        return results

    agree_on(run, X, index, values(4, 5, 6, seed=1), tolerance=1e-5)


def test_index_add_kinds():
    x, source, index = values(4, 5), values(3, 5, seed=1), torch.tensor([2, 0, 2])
    agree_on(lambda x, s, i: x.index_add(0, i, s, alpha=-2), x, source, index, tolerance=1e-6)
    agree_on(
        lambda x, s, i: x.index_add(0, i, s), x.bfloat16(), source.bfloat16(), index, tolerance=2e-2
    )
    agree_on(lambda x, s, i: x.long().index_add(0, i, s.long()), x, source, index)

    def gradients(x, s, i):
        add = with_gradients(lambda x, s: x.index_add(0, i, s))(x, s)
        copy = with_gradients(lambda x, s: x.index_copy(0, i[:2], s[:2]))(x.detach(), s.detach())
        fill = with_gradients(lambda x: x.index_fill(0, i, 2))(x.detach())
        return add, copy, fill

    agree_on(gradients, x, source, index, tolerance=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked(dtype):
    x, mask = values(4, 5, dtype=dtype, low=0, high=5), values(4, 5, dtype=torch.bool, seed=1)
    source = values(20, dtype=dtype, low=0, high=5, seed=2)

    def run(x, m, s):
        view = x.clone().mT
        view[1:].masked_fill_(m.mT[1:], 1)
        filled = [x.masked_fill(m, 2), x.masked_fill(m[:1], s[0]), x.masked_fill(m[:, :1], True)]
        return filled, view, x.masked_scatter(m, s), x.mT.clone().masked_scatter_(m.mT, s)

    agree_on(run, x, mask, source)


def test_masked_gradients_and_errors():
    x, mask = values(4, 5), values(4, 5, dtype=torch.bool, seed=1)
    source = values(20, seed=2)

    def gradients(x, m, s):
        fill = with_gradients(lambda x: x.masked_fill(m, 2.0))(x)
        by_tensor = with_gradients(lambda x, v: x.masked_fill(m, v.sum()))(x.detach(), s)
        scatter = with_gradients(lambda x, s: x.masked_scatter(m, s))(x.detach(), s.detach())
        return fill, by_tensor, scatter

    agree_on(gradients, x, mask, source, tolerance=1e-5)
    agree_on(lambda x, m: x.masked_fill(m.long(), 1), x, mask)
    agree_on(lambda x, m: x.long().masked_fill(m, 1.5), x, mask)
    agree_on(lambda x, m: x.masked_fill(m[:, :3], 1), x, mask)


def test_take_and_put():
    x, index = values(4, 5), torch.tensor([[3, -1, 19], [0, 3, 7]])

    def run(x, i):
        view = x.clone().mT
        put = view.put_(i[0], x[0, :3])
        added = x.put(i, x[:2, :3], accumulate=True)
        return x.take(i), x.mT.take(i), put, added, with_gradients(lambda x: x.take(i))(x)

    agree_on(run, x, index, tolerance=1e-6)


INDICES = {
    "tensor": lambda i, m: (i,),
    "negative": lambda i, m: (i - 4,),
    "pair": lambda i, m: (i, i),
    "broadcast": lambda i, m: (i[:, None], i[None]),
    "after_slice": lambda i, m: (slice(None), i),
    "split_by_slice": lambda i, m: (i, slice(1, 4), i),
    "with_none": lambda i, m: (None, i, slice(None)),
    "with_ellipsis": lambda i, m: (Ellipsis, i),
    "with_integer": lambda i, m: (1, slice(None), i),
    "int32": lambda i, m: (i.int(),),
    "list": lambda i, m: ([0, 2, -1],),
    "empty": lambda i, m: (i[:0],),
    "matrix": lambda i, m: (i.view(2, 2), slice(None, None, 2)),
    "step": lambda i, m: (slice(None, None, 2), slice(-3, None), i),
}


@pytest.mark.parametrize("name", INDICES)
def test_advanced_indexing(name):
    def run(x, i, m):
        key = INDICES[name](i, m)
        read, gradient = with_gradients(lambda x: x[key])(x)
        written, filled, added, view = (x.detach().clone() for _ in range(4))
        written[key] = read[0] * 0 + 2
        filled[key] = 3
        if isinstance(key[0], torch.Tensor) and all(isinstance(k, torch.Tensor) for k in key):
            added.index_put_(key, torch.tensor(1.0, device=x.device), accumulate=True)
        if name in ("tensor", "pair", "after_slice"):
            view.transpose(0, 1)[key] = 4
        return read, gradient, written, filled, added, view

    agree_on(run, values(4, 5, 6), ROWS, None, tolerance=1e-5)


@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put(accumulate):
    indices = (torch.tensor([0, 2, 0]), torch.tensor([1, 1, 3]))

    for dtype in DTYPES:
        x = values(4, 5, dtype=dtype, low=0, high=3)
        source = values(3, dtype=dtype, low=1, high=4, seed=1)
        run = lambda x, s, *i: x.index_put(i, s, accumulate=accumulate)  # noqa: E731
        agree_on(run, x, source, *indices, tolerance=2e-2)
    x, source = values(4, 5), values(3, seed=1)
    agree_on(
        lambda x, s, *i: with_gradients(lambda x, s: x.index_put(i, s, accumulate=accumulate))(
            x, s
        ),
        x,
        source,
        *indices,
        tolerance=1e-5,
    )
    repeated = torch.tensor([1, 1, 1])
    if accumulate:
        agree_on(
            lambda x, s, i: x.index_put((i,), s[:, None], accumulate=True),
            x,
            source,
            repeated,
            tolerance=1e-5,
        )
    agree_on(lambda x, s, *i: x.index_put(i, s[:2]), x, source, *indices)


@pytest.mark.parametrize(
    "case",
    [
        lambda x, i: x[i],
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.gather(0, i[:, None]),
        lambda x, i: x.scatter(0, i[:, None], 1.0),
        lambda x, i: x.index_put((i,), x[0, 0]),
        lambda x, i: x.index_add(0, i, x[: i.numel()]),
        lambda x, i: x.take(i * 100),
        lambda x, i: F.embedding(i, x),
    ],
)
def test_out_of_range(case):
    x, index = values(4, 5).tpu(), torch.tensor([0, 4]).tpu()
    with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
        case(x, index).cpu()
    assert torch.equal((x * 1).cpu(), values(4, 5))


def test_wide_indices():
    # Beyond 32 bits they must not be narrowed into range.
    with pytest.raises(IndexError):
        values(4).tpu()[torch.tensor([2**32 + 1]).tpu()].cpu()


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("by_frequency", [False, True])
def test_embedding(padding, by_frequency):
    weight, index = values(5, 4), torch.tensor([[2, 0, 3], [2, 2, 4]])

    def run(w, i):
        embed = lambda w: F.embedding(i, w, padding, scale_grad_by_freq=by_frequency)  # noqa: E731
        return with_gradients(embed)(w)

    agree_on(run, weight, index, tolerance=1e-5)
    agree_on(run, weight.bfloat16(), index.int(), tolerance=2e-2)
    agree_on(run, weight, index[:0])


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_embedding_with_a_largest_norm(p):
    def run(w, i):
        return F.embedding(i, w, max_norm=1.2, norm_type=p), w

    agree_on(run, values(5, 4), torch.tensor([2, 0, 2]), tolerance=1e-5)


@pytest.mark.parametrize("mode", words("sum mean max"))
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("last_offset", [False, True])
def test_embedding_bag(mode, padding, last_offset):
    weight, index = values(10, 4), torch.tensor([1, 3, 3, 9, 0, 3, 2, 1])
    offsets = torch.tensor([0, 2, 2, 5, 8])

    def run(w, i, o):
        def bags(w):
            starts = o if last_offset else o[:-1]
            arguments = {"mode": mode, "padding_idx": padding, "include_last_offset": last_offset}
            return F.embedding_bag(i, w, starts, **arguments)

        return with_gradients(bags)(w)

    agree_on(run, weight, index, offsets, tolerance=1e-5)
    agree_on(run, weight.bfloat16(), index.int(), offsets.int(), tolerance=3e-2)


def test_embedding_bag_kinds():
    weight, index = values(10, 4), torch.tensor([[1, 9, 9], [4, 0, 9]])
    factors = values(2, 3, seed=1)

    def weighted(w, f, i):
        return with_gradients(lambda w, f: F.embedding_bag(i, w, per_sample_weights=f, mode="sum"))(
            w, f
        )

    agree_on(weighted, weight, factors, index, tolerance=1e-5)

    def by_frequency(w, i):
        return with_gradients(lambda w: F.embedding_bag(i, w, scale_grad_by_freq=True))(w)

    agree_on(by_frequency, weight, index, tolerance=1e-5)
    agree_on(lambda w, i: F.embedding_bag(i[:0, :0].flatten(), w, i[0] * 0), weight, index)
    agree_on(lambda w, i: F.embedding_bag(i, w, i), weight, index)
    for bad in ([1, 10], [-1, 0]):
        with pytest.raises(RuntimeError):
            F.embedding_bag(torch.tensor([bad]).tpu(), weight.tpu()).cpu()
    with pytest.raises(RuntimeError, match="has to be 0"):
        offsets = torch.tensor([1]).tpu()
        F.embedding_bag(index[0].tpu(), weight.tpu(), offsets).cpu()


def test_slices_written_out_of_place():
    def run(x, row, plane):
        return [
            x.select_scatter(row, 1, 2),
            x.slice_scatter(plane, 0, 1, 3),
            x.diagonal_scatter(torch.ones(6, 4, device=x.device), 0, 0, 1),
            torch.as_strided_scatter(x, row, (4, 6), (30, 1), 6),
        ]

    agree_on(run, X, values(4, 6, seed=1), values(2, 5, 6, seed=2))


def test_one_hot_and_bincount_shapes():
    agree_on(lambda i: F.one_hot(i, 6), torch.tensor([[0, 5], [2, 2]]))
    agree_on(lambda i: torch.isin(i, torch.tensor([2, 5], device=i.device)), torch.arange(7))
    agree_on(lambda x, i: torch.bucketize(x, i), values(3, 4), torch.tensor([-1.0, 0.0, 0.5]))


def test_writing_what_is_read():
    """Operators whose CPU kernels refuse a target that overlaps an operand."""
    x = values(6)
    flat, mask = torch.tensor([1, 0, 3]), torch.arange(6) % 2 == 0

    def assigned(x, index, value):
        x[index] = value
        return x

    agree_on(lambda x, m: assigned(x, m, x[1:2][0]), x, mask)
    agree_on(lambda x, i: assigned(x, i, x[1:4]), x, flat)
    agree_on(lambda x, i: x.put_(i, x[:3]), x, flat)
    agree_on(lambda x, i: torch.index_select(x, 0, i, out=x[:3]), x, flat)
    agree_on(lambda x, i: torch.take(x, i, out=x[:3]), x, flat)
    # The same storage, other elements.
    agree_on(lambda x, i: assigned(x[:4], i, x[4]), x, flat)


def test_writing_out_of_place_keeps_gaps():
    """The result is a clone of the memory; a broadcast self becomes dense."""
    row = values(6, seed=1)
    agree_on(lambda x, r: x[:, ::2].select_scatter(r, 1, 0), values(6, 8), row)
    agree_on(lambda x, r: x[:, ::2].t().select_scatter(r, 0, 1), values(6, 8), row)
    agree_on(lambda x, r: x[:, ::2].diagonal_scatter(r[:4]), values(6, 8), row)
    agree_on(lambda x, r: x[:, ::2].slice_scatter(r[None, :4], 0, 2, 3), values(6, 8), row)
    agree_on(lambda x, r: x.expand(4, 6).select_scatter(r, 0, 0), values(6), row)
