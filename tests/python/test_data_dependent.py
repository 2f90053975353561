"""Operators whose results' sizes depend on data, and indexing by masks, against CPU PyTorch."""

import child
import pytest
import torch
from agreement import agree_on

NAN = float("nan")
X = torch.tensor([[1.0, 0.0, 2.0, -1.0], [0.0, -0.0, NAN, 4.0], [5.0, 0.0, 0.0, 6.0]])
MASK = X > 0
INDEX = torch.tensor([2, 0, 2])


@pytest.mark.parametrize(
    "x",
    [
        X,
        X.t(),
        MASK,
        X[1],
        X.nan_to_num().to(torch.int64),
        X.to(torch.bfloat16),
        X.reshape(2, 3, 2),
        torch.zeros(3, 2),
        torch.ones(3, 2),
        torch.zeros(0, 3),
        torch.tensor(3.0),
        torch.tensor(0),
        torch.complex(X, X.flip(0)),
    ],
    ids=lambda x: f"{x.dtype}{list(x.shape)}",
)
def test_nonzero(x):
    agree_on(torch.nonzero, x)
    agree_on(torch.argwhere, x)
    agree_on(lambda t: torch.nonzero(t, as_tuple=True), x)
    agree_on(
        lambda t: torch.nonzero(t, out=torch.empty(0, dtype=torch.int64, device=t.device)),
        x,
    )


def test_without_a_look_at_device_memory():
    """As on a TPU, whose memory the host cannot read: results are cut to size by programs."""
    printed = child.check(
        """
        import torch
        x = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 4.0]], device="tpu")
        print(torch.nonzero(x).tolist(), torch.nonzero(x).stride())
        print(torch.masked_select(x, x > 1).tolist(), x[x > 9].tolist())
        print(torch.nonzero(x).untyped_storage().nbytes())
        """,
        TORCH_TPU_DIRECT_READ="0",
    )
    assert printed.splitlines() == [
        "[[0, 0], [0, 2], [1, 1], [1, 2]] (1, 4)",
        "[2.0, 3.0, 4.0] []",
        "64",
    ]


def test_nonzero_has_a_storage_of_its_size():
    x = torch.zeros(1000, device="tpu")
    x[7] = 1
    assert torch.nonzero(x).untyped_storage().nbytes() == 8


@pytest.mark.parametrize(
    "x, mask",
    [
        (X, MASK),
        (X.t(), MASK.t()),
        (X, MASK[1]),
        (X[1], MASK),
        (X, torch.tensor(True)),
        (torch.tensor(2), MASK),
        (X, torch.zeros_like(MASK)),
        (X, torch.ones_like(MASK)),
        (X[:0], MASK[:0]),
        (MASK, MASK),
        (X.to(torch.bfloat16), MASK),
    ],
)
def test_masked_select(x, mask):
    agree_on(torch.masked_select, x, mask)


def test_masked_select_gradient():
    def gradient(x, mask):
        x = x.requires_grad_()
        return torch.autograd.grad(torch.masked_select(x, mask).pow(2).sum(), x)

    agree_on(gradient, X.nan_to_num(), MASK)


def test_masked_select_errors():
    agree_on(torch.masked_select, X, X)
    agree_on(torch.masked_select, X, MASK[:, :3])


READS = [
    lambda x, m, i: x[m],
    lambda x, m, i: x[m[:, 0]],
    lambda x, m, i: x[:, m[1]],
    lambda x, m, i: x[m[:, 0], 1:3],
    lambda x, m, i: x[m[0, :3], m[0]],
    lambda x, m, i: x[i[:2], m[0]],
    lambda x, m, i: x[None, m],
    lambda x, m, i: x[m & ~m],
    lambda x, m, i: x[m.t().t()],
    lambda x, m, i: x.t()[m.t()],
    lambda x, m, i: x[torch.tensor(True)],
    lambda x, m, i: x[torch.tensor(False)],
]


@pytest.mark.parametrize("read", range(len(READS)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_read_by_mask(read, dtype):
    agree_on(READS[read], X.to(dtype), MASK, INDEX)


@pytest.mark.parametrize("read", range(len(READS)))
def test_gradient_of_read_by_mask(read):
    def gradient(x, m, i):
        x = x.requires_grad_()
        return torch.autograd.grad(READS[read](x, m, i).pow(2).sum(), x)

    agree_on(gradient, X.nan_to_num(), MASK, INDEX)


def put(x, key, value, accumulate=False):
    return x.index_put_(key, value, accumulate=accumulate)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("value", [torch.tensor(9.0), torch.tensor([9.0])])
def test_put_one_value_by_mask(value, accumulate):
    agree_on(lambda x, m, v: put(x, (m,), v, accumulate), X, MASK, value)
    agree_on(lambda x, m, v: put(x, (m[:, 0],), v, accumulate), X, MASK, value)
    agree_on(lambda x, m, v: x.index_put((m,), v, accumulate=accumulate), X, MASK, value)
    agree_on(lambda x, m, v: put(x.t(), (m.t(),), v, accumulate), X, MASK, value)


def test_put_one_value_by_mask_compiles_once():
    x, mask = X.to("tpu"), MASK.to("tpu")
    x[mask] = 1.0
    x[~mask] = 2.0
    before = torch.tpu.compilations()["count"]
    for value in range(5):
        x[x < value] = value + 0.5
        x[x < value] = 7
    # The comparison alone; neither the value nor how many elements it goes to matters.
    assert torch.tpu.compilations()["count"] <= before + 1


def assign(x, key, value):
    x[key] = value
    return x


@pytest.mark.parametrize("accumulate", [False, True])
def test_put_by_mask(accumulate):
    count = int(MASK.sum())
    agree_on(lambda x, m, v: put(x, (m,), v, accumulate), X, MASK, torch.arange(count) + 10.0)
    agree_on(lambda x, m, v: put(x, (m[:, 0],), v, accumulate), X, MASK, torch.arange(4) + 10.0)
    agree_on(
        lambda x, m, v: put(x, (m[0, :3], m[0]), v, accumulate), X, MASK, torch.arange(2) + 10.0
    )
    agree_on(lambda x, m, v: x.index_put((m,), v), X, MASK, torch.arange(count) + 10.0)


def test_assign_by_mask():
    agree_on(lambda x, m: assign(x, m, 3), X, MASK)
    agree_on(lambda x, m: assign(x, m, x[m] * 2), X, MASK)
    agree_on(lambda x, m: assign(x, (slice(None), m[0]), x[:, :2]), X, MASK)
    agree_on(lambda x, m: assign(x, m & ~m, 3), X, MASK)
    agree_on(lambda x, m: assign(x.int(), m, 3), X.nan_to_num(), MASK)


def test_mask_errors():
    agree_on(lambda x, m: x[m[:2]], X, MASK)
    agree_on(lambda x, m: x[m[:, :, None]], X, MASK)
    agree_on(lambda x, m: assign(x, m[:2], 1), X, MASK)
    agree_on(lambda x, m: assign(x, m, x[0, :2].clone()), X, MASK)
    agree_on(lambda x, m: x[x], X, MASK)
    # The device works afterwards.
    agree_on(lambda x, m: x[m], X, MASK)


def test_indices_on_the_cpu():
    x = X.nan_to_num()
    on_tpu = x.to("tpu")
    for key in [INDEX, (INDEX, INDEX), MASK, (slice(None), MASK[0]), torch.tensor(1), [0, 2]]:
        torch.testing.assert_close(on_tpu[key].cpu(), x[key], rtol=0, atol=0)
    for key, value in [(INDEX, 5.0), (MASK, 6.0), (torch.tensor(1), 7.0)]:
        mine, theirs = on_tpu.clone(), x.clone()
        mine[key] = value
        theirs[key] = value
        torch.testing.assert_close(mine.cpu(), theirs, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        _ = x[MASK.to("tpu")]


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_byte_masks():
    bytes_ = MASK.to(torch.uint8)
    agree_on(lambda x, m: x[m], X, bytes_)
    agree_on(lambda x, m: put(x, (m,), x[m] + 1), X, bytes_)


@pytest.mark.parametrize(
    "repeats",
    [
        torch.tensor([1, 0, 3, 2]),
        torch.tensor([2, 1], dtype=torch.int32),
        torch.tensor([0, 0]),
        torch.empty(0, dtype=torch.int64),
    ],
)
def test_repeat_interleave(repeats):
    agree_on(torch.repeat_interleave, repeats)
    total = int(repeats.sum())
    agree_on(lambda r: torch.repeat_interleave(r, output_size=total), repeats)
    x = torch.arange(2.0 * len(repeats)).reshape(len(repeats), 2)
    agree_on(lambda x, r: torch.repeat_interleave(x, r, dim=0), x, repeats)


def test_repeat_interleave_errors():
    agree_on(torch.repeat_interleave, torch.tensor([1, -1]))
    agree_on(torch.repeat_interleave, torch.tensor([[1]]))


@pytest.mark.parametrize("minlength", [0, 3, 9])
def test_bincount(minlength):
    x = torch.tensor([1, 4, 4, 0, 1, 1], dtype=torch.int32)
    agree_on(lambda x: torch.bincount(x, minlength=minlength), x)
    agree_on(lambda x: torch.bincount(x[:0], minlength=minlength), x)
    for dtype in (torch.float32, torch.float64, torch.int64):
        weights = torch.arange(6).to(dtype)
        agree_on(lambda x, w: torch.bincount(x, w, minlength=minlength), x, weights)


def test_bincount_errors():
    agree_on(torch.bincount, torch.tensor([1, -1]))
    agree_on(torch.bincount, torch.tensor([[1]]))
    agree_on(torch.bincount, torch.tensor([1.0]))
    agree_on(torch.bincount, torch.tensor([1, 2]), torch.tensor([1.0]))
    agree_on(lambda x: torch.bincount(x, minlength=-1), torch.tensor([1]))


UNIQUE = [
    torch.tensor([3, 1, 2, 1, 3, 3]),
    torch.tensor([[3.0, NAN, 1.0], [1.0, NAN, -0.0]]),
    torch.tensor([True, False, True]),
    torch.tensor(7),
    torch.zeros(0, 3),
    torch.tensor([[1, 2, 2], [1, 2, 2], [0, 2, 2]], dtype=torch.uint8).t(),
]


@pytest.mark.parametrize("x", UNIQUE, ids=lambda x: f"{x.dtype}{list(x.shape)}")
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("counts", [False, True])
def test_unique(x, inverse, counts):
    options = {"return_inverse": inverse, "return_counts": counts}
    agree_on(lambda x: torch.unique(x, **options), x)
    agree_on(lambda x: torch._unique2(x, True, inverse, counts), x)
    agree_on(lambda x: torch.unique_consecutive(x, **options), x)
    if x.dim() == 2:
        agree_on(lambda x: torch.unique_consecutive(x, dim=0, **options), x)
        if x.numel() > 0:
            agree_on(lambda x: torch.unique_consecutive(x, dim=1, **options), x)


ROWS = [
    torch.tensor([[3, 1, 2], [0, 1, 2], [3, 1, 2], [3, 0, 9], [3, 1, 2]]),
    torch.tensor([[0.0, 1.0], [-0.0, 1.0], [NAN, 1.0], [NAN, 1.0], [-2.0, 5.0]]),
    torch.tensor([[True, False, True], [False, True, False], [True, False, True]]),
    torch.arange(24).remainder(5).reshape(4, 3, 2).repeat(2, 1, 2),
    # More columns than fit one number.
    torch.arange(7 * 200).remainder(3).reshape(7, 200).to(torch.bfloat16),
    torch.arange(40 * 50).remainder(40).div(20).floor().reshape(40, 50).to(torch.uint8),
    torch.arange(6).reshape(2, 3).remainder(2).t(),
    torch.zeros(1, 4),
    torch.tensor([2, 0, 2]),
    torch.zeros(0, 3),
    torch.zeros(0, 0),
]


@pytest.mark.parametrize("x", ROWS, ids=lambda x: f"{x.dtype}{list(x.shape)}")
@pytest.mark.parametrize("dim", [0, -1])
def test_unique_slices(x, dim):
    everything = {"return_inverse": True, "return_counts": True, "dim": dim}
    agree_on(lambda x: torch.unique(x, **everything), x)
    agree_on(lambda x: torch.unique(x, dim=dim), x)
    agree_on(lambda x: torch.ops.aten.unique_dim(x, dim, True, False, False), x)
    if not x.isnan().any():
        agree_on(lambda x: torch.unique_consecutive(x, **everything), x)


def test_unique_slices_errors():
    x = torch.zeros(2, 3)
    agree_on(lambda x: torch.unique(x, dim=2), x)
    agree_on(lambda x: torch.unique(x, dim=0), x[0, 0])
    agree_on(lambda x: torch.unique_consecutive(x, dim=0), x[0, 0])
    agree_on(lambda x: torch.ops.aten.unique_dim_consecutive(x, 0), x[0, 0])
    agree_on(lambda x: torch.unique(x, dim=1), torch.complex(x, x))


def test_equal():
    x = X.nan_to_num()
    agree_on(torch.equal, x, x)
    agree_on(torch.equal, x, x + 1)
    agree_on(torch.equal, x, x[:2])
    agree_on(torch.equal, x.trunc(), x.to(torch.int64))
    agree_on(torch.equal, x[:0], x[:0])
    agree_on(torch.equal, X, X)
    with pytest.raises(RuntimeError, match="Cannot compare two tensors on different devices"):
        torch.equal(x, x.to("tpu"))


def test_combinations():
    x = torch.arange(5)
    agree_on(torch.combinations, x)
    agree_on(lambda x: torch.combinations(x, r=3, with_replacement=True), x)
