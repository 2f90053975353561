"""Writes to tensors whose elements share memory, with each other or with an argument."""

import pytest
import torch
from agreement import agree_on

X = torch.arange(10.0)
INDEX = torch.tensor([0, 2])
MASK = torch.tensor([[True, False, False], [False, True, False], [False] * 3, [False] * 3])

# Of a [4, 3] tensor whose rows hold one number each.
EXPANDED = {
    "masked_fill number": lambda x, m, i: x.masked_fill_(m, 9),
    "masked_fill tensor": lambda x, m, i: x.masked_fill_(m, x.new_tensor(9)),
    "masked_fill of rows": lambda x, m, i: x.masked_fill_(m[:, :1], 9),
    "assign by mask": lambda x, m, i: x.__setitem__(m, 9.0),
    "index_fill": lambda x, m, i: x.index_fill_(0, i, 5),
    "index_fill across": lambda x, m, i: x.index_fill_(1, i, x.new_tensor(5)),
    "index_fill nothing": lambda x, m, i: x.index_fill_(1, i[:0], 5),
    "index_put": lambda x, m, i: x.index_put_((i,), x.new_tensor(7)),
    "index_put many": lambda x, m, i: x.index_put_((i,), x.new_ones(2, 1) * 4),
    "index_put across": lambda x, m, i: x.index_put_((i, i), x.new_tensor([3, 4])),
    "index_put add": lambda x, m, i: x.index_put_((i,), x.new_tensor(7), accumulate=True),
    "index_put mask": lambda x, m, i: x.index_put_((m,), x.new_tensor(7)),
    "assign by index": lambda x, m, i: x.__setitem__(i, 9.0),
    "triu": lambda x, m, i: x.triu_(),
    "tril": lambda x, m, i: x.t().tril_(1),
    "fill_diagonal": lambda x, m, i: x.fill_diagonal_(8),
    # These are refused.
    "add": lambda x, m, i: x.add_(1),
    "index_add": lambda x, m, i: x.index_add_(0, i, x.new_ones(2, 3)),
    "index_copy": lambda x, m, i: x.index_copy_(0, i, x.new_ones(2, 3)),
    "masked_scatter": lambda x, m, i: x.masked_scatter_(m, x.new_ones(9)),
}


@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated")
@pytest.mark.parametrize("name", EXPANDED)
def test_writes_to_expanded_tensors(name):
    def run(x, mask, index):
        view = x[1:5, None].expand(4, 3)
        EXPANDED[name](view, mask, index)
        return x, view

    agree_on(run, X, MASK, INDEX)
    agree_on(run, X.long(), MASK, INDEX)


@pytest.mark.parametrize("name", ["masked_fill number", "index_fill", "index_put"])
def test_warns_of_expanded_tensors(name):
    x = torch.zeros(4, device="tpu")[:, None].expand(4, 3)
    with pytest.warns(UserWarning, match="on expanded tensors is deprecated"):
        EXPANDED[name](x, MASK.tpu(), INDEX.tpu())


def out_of(width, function):
    """`function(argument, out)` where the two share some of their memory, or all."""

    def run(x, index):
        function(x[:4], index, x[1 : 1 + width])
        return x

    return run


REFUSED = {
    "cumsum": (4, lambda x, i, out: torch.cumsum(x, 0, out=out)),
    "cat": (4, lambda x, i, out: torch.cat([x[:2], x[2:]], out=out)),
    "stack": (4, lambda x, i, out: torch.stack([x[:2], x[2:]], out=out.view(2, 2))),
    "gather": (2, lambda x, i, out: torch.gather(x, 0, i, out=out)),
    "index_select": (2, lambda x, i, out: torch.index_select(x, 0, i, out=out)),
    "take": (2, lambda x, i, out: torch.take(x, i, out=out)),
    "add": (4, lambda x, i, out: torch.add(x, 1, out=out)),
    "scatter": (4, lambda x, i, out: torch.scatter(x, 0, i, 1.0, out=out)),
    "sort": (4, lambda x, i, out: torch.sort(x, out=(out, i.new_empty(4)))),
    "topk": (2, lambda x, i, out: torch.topk(x, 2, out=(out, i.new_empty(2)))),
    "max": (2, lambda x, i, out: torch.max(x.view(2, 2), 0, out=(out, i.new_empty(2)))),
    "addmm": (
        4,
        lambda x, i, out: torch.addmm(x.view(2, 2), x.view(2, 2), x.view(2, 2), out=out.view(2, 2)),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_results_that_overlap_an_argument(name):
    width, function = REFUSED[name]
    run = out_of(width, function)
    agree_on(run, X, INDEX)
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        run(X.tpu(), INDEX.tpu())


def test_results_that_are_an_argument():
    def run(x, index):
        places = index.new_empty(4)
        torch.cumsum(x[:4], 0, out=x[:4])
        torch.sort(x[2:6], descending=True, out=(x[2:6], places))
        square = x[:4].view(2, 2)
        torch.addmm(square, square.clone(), square.clone(), out=square)
        torch.scatter(x, 0, index, 1.0, out=x)
        return x, places

    agree_on(run, X, INDEX)
