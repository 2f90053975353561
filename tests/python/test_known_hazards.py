"""Cases that are easily wrong without an error: gradients, integer powers, 0-d tensors."""

import pytest
import torch
import torch.nn.functional as F
from agreement import agree_on
from rule_inputs import values, with_gradients

# --- indices with a slice between them: the indexed dimension moves to the front

SPLIT = {
    "tensor, slice, tensor": lambda x, i, j: x[i, :, j],
    "column, slice, row": lambda x, i, j: x[i[:, None], :, j],
    "number, slice, tensor": lambda x, i, j: x[1, :, j],
    "slice, tensor, slice, tensor": lambda x, i, j: x[None][:, i, :, j],
    "step between": lambda x, i, j: x[i, 1::2, j],
    "new axis between": lambda x, i, j: x[i, None, :, j],
    "mask, slice, number": lambda x, i, j: x[x.detach()[:, 0, 0] > 0, :, 2],
    "twice the same element": lambda x, i, j: x[i * 0, :, j * 0],
}


@pytest.mark.parametrize("name", SPLIT)
def test_gradient_of_split_indices(name):
    function = with_gradients(SPLIT[name])
    i, j = torch.tensor([0, 2, -1]), torch.tensor([4, 0, 4])
    agree_on(lambda x, i, j: function(x, i, j), values(3, 4, 5), i, j)
    agree_on(lambda x, i, j: function(x.mT, i, j), values(3, 5, 4).double(), i, j)


@pytest.mark.parametrize("accumulate", [False, True])
def test_writing_through_split_indices(accumulate):
    def write(x, i, j, new):
        return x.index_put_((i, torch.arange(4, device=x.device)[:, None], j), new, accumulate)

    i, j = torch.tensor([0, 2, -1]), torch.tensor([4, 0, 3])
    agree_on(with_gradients(write), values(3, 4, 5).round(), i, j, values(4, 3, seed=1).round())

    def assign(x, i, j, new):
        x[i, :, j] = new
        return x

    agree_on(assign, values(3, 4, 5), i, j, values(3, 4, seed=1))


# --- borders and windows


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("align", [False, True])
def test_gradient_of_grid_sample_with_reflection(mode, align):
    sample = with_gradients(
        lambda x, grid: F.grid_sample(x, grid, mode, "reflection", align_corners=align)
    )
    # Up to several reflections away on either side.
    agree_on(
        sample, values(2, 3, 5, 4).double(), values(2, 6, 5, 2, seed=1).double() * 3, tolerance=1e-9
    )


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("include", [False, True])
def test_gradient_of_avg_pool1d(padding, ceil, include):
    pool = with_gradients(lambda x: F.avg_pool1d(x, 3, 2, padding, ceil, include))
    agree_on(pool, values(2, 3, 8), tolerance=1e-6)
    agree_on(pool, values(3, 8).double(), tolerance=1e-12)


# --- integers to a negative power: 1 and -1 have one, of others 0 is left

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("base", [-3, -1, 0, 1, 2])
def test_powers_of_integers(base, dtype):
    exponents = torch.tensor([-3, -2, -1, 0, 1, 2, 5]).to(dtype)
    agree_on(lambda e: base**e, exponents)
    agree_on(lambda e: e.__rpow__(base), exponents)
    agree_on(lambda e: torch.pow(base, e), exponents)
    agree_on(lambda b, e: b**e, torch.full_like(exponents, base), exponents)
    agree_on(lambda e: (base + 0.5) ** e, exponents, tolerance=1e-6)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_negative_number_as_exponent_is_an_error(dtype):
    x = torch.tensor([1, 2, 3], dtype=dtype)
    agree_on(lambda x: x**-1, x)
    agree_on(lambda x: x.pow_(-2), x)
    agree_on(lambda x: x**-1.0, x)


# --- ranges: the numbers are of the result's dtype before anything is computed


@pytest.mark.parametrize(
    "arguments",
    [(0.5, 5.7), (0.5, 5.7, 1.5), (-2.5, 5.7, 1.2), (5.7, -2.5, -1.9), (2.9,), (-0.9, 3)],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, None])
def test_arange_of_floats(arguments, dtype):
    agree_on(
        lambda like: torch.arange(*arguments, dtype=dtype, device=like.device),
        torch.zeros(()),
        tolerance=1e-6 if dtype is None else 0.0,
    )
    if dtype is not None:
        out = torch.empty(0, dtype=dtype)
        agree_on(lambda out: torch.arange(*arguments, out=out), out)


# --- tensors without dimensions


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_index_reduce_of_a_number(reduce, include):
    def run(x, i, new):
        return x.index_reduce(0, i, new, reduce, include_self=include)

    x, new = torch.tensor(3.0), torch.tensor(2.0)
    agree_on(run, x, torch.tensor([0]), new)
    agree_on(run, x, torch.tensor(0), new)
    agree_on(run, x, torch.tensor([0]), new[None])
    agree_on(run, x.long(), torch.tensor([0]), new.long())
    agree_on(with_gradients(lambda x, new: run(x, new.new_zeros(1).long(), new)), x, new)
    for out_of_range in (1, -1):
        with pytest.raises(IndexError):
            run(x.tpu(), torch.tensor([out_of_range]).tpu(), new.tpu()).cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("wanted", [False, True])
def test_unique_of_a_number(wanted, dtype):
    x = torch.tensor(3).to(dtype)
    both = {"return_inverse": wanted, "return_counts": wanted}
    agree_on(lambda x: torch.unique(x, **both), x)
    agree_on(lambda x: torch.unique(x, sorted=False, **both), x)
    agree_on(lambda x: torch.unique_consecutive(x, **both), x)
    agree_on(lambda x: torch.unique(x[:0], **both), x[None])


OTHERS_OF_A_NUMBER = {
    "index_add": lambda x, i: x.index_add(0, i, x),
    "index_copy": lambda x, i: x.index_copy(0, i, x * 2),
    "index_fill": lambda x, i: x.index_fill(0, i, 5),
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[0]),
    "scatter": lambda x, i: x.scatter(0, i[0], x * 2),
    "scatter_add": lambda x, i: x.scatter_add(0, i[0], x),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i[0], x, "prod"),
    "sort": lambda x, i: x.sort(),
    "topk": lambda x, i: x.topk(1),
    "kthvalue": lambda x, i: x.kthvalue(1),
    "mode": lambda x, i: x.mode(),
    "median": lambda x, i: x.median(0),
    "cumsum": lambda x, i: x.cumsum(0),
    "cummax": lambda x, i: x.cummax(0),
    "flip": lambda x, i: x.flip(0),
    "roll": lambda x, i: x.roll(1),
    "max": lambda x, i: x.max(0),
    "argmin": lambda x, i: x.argmin(0),
    "softmax": lambda x, i: x.softmax(0),
    "take": lambda x, i: x.take(i),
    "nonzero": lambda x, i: x.nonzero(),
    "masked_select": lambda x, i: x.masked_select(x > 0),
    "renorm": lambda x, i: x.renorm(2, 0, 1),
    "diff": lambda x, i: x.diff(),
}


@pytest.mark.parametrize("name", OTHERS_OF_A_NUMBER)
def test_dimension_of_a_number(name):
    agree_on(OTHERS_OF_A_NUMBER[name], torch.tensor(3.0), torch.tensor([0]))
