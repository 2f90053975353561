"""Margin losses, fractional pooling, segment reductions and hashes against CPU PyTorch."""

import math

import pytest
import torch
import torch.nn.functional as F
from agreement import agree_on
from rule_inputs import all_layouts, out_forms, values, with_gradients, words

REDUCTIONS = words("none mean sum")
NAN, INF = math.nan, math.inf
aten = torch.ops.aten


def raises_on_tpu(function, *arguments, error=RuntimeError, match):
    """What CPU raises at once is raised here when the device is read; the device works on."""
    with pytest.raises(error, match=match):
        function(*arguments)
    on_tpu = [a.tpu() if isinstance(a, torch.Tensor) else a for a in arguments]
    with pytest.raises(error, match=match):
        result = function(*on_tpu)
        [r.cpu() for r in (result if isinstance(result, tuple) else (result,))]
        torch.tpu.synchronize()


# --- margin losses


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_loss(reduction, p):
    x, target = values(5, 4), torch.tensor([0, 3, 1, 3, 2])
    weight = values(4, low=0.1, high=2, seed=1)

    def run(x, target, weight):
        options = {"p": p, "reduction": reduction}
        plain = with_gradients(lambda x: F.multi_margin_loss(x, target, **options))(x)
        x = x.detach()
        heavy = with_gradients(
            lambda x: F.multi_margin_loss(x, target, margin=0.6, weight=weight, **options)
        )(x)
        return plain, heavy

    agree_on(run, x, target, weight, tolerance=1e-5)
    agree_on(run, x.double(), target, weight.double(), tolerance=1e-12)
    agree_on(run, values(4, 5).t(), target[:5], weight, tolerance=1e-5)
    row = lambda x, t: with_gradients(  # noqa: E731
        lambda x: F.multi_margin_loss(x, t, p=p, reduction=reduction)
    )(x)
    agree_on(row, x[0], target[1], tolerance=1e-5)
    agree_on(row, x[0], target[1:2], tolerance=1e-5)
    agree_on(row, x[0, 0], target[0], tolerance=1e-5)
    # Reductions of no rows are left uninitialised by CPU.
    agree_on(lambda x, t: F.multi_margin_loss(x, t, p=p, reduction="none"), x[:0], target[:0])


def test_multi_margin_loss_backward_of_one_number():
    x, target = values(3, 4), torch.tensor([0, 3, 1])
    grad = torch.tensor(0.7)
    for reduction in (0, 1, 2):
        agree_on(
            lambda g, x, t, r=reduction: aten.multi_margin_loss_backward(g, x, t, 1, 1, None, r),
            grad,
            x,
            target,
            tolerance=1e-6,
        )


def test_multi_margin_loss_errors():
    x, target = values(3, 4), torch.tensor([0, 3, 1])
    loss = F.multi_margin_loss
    agree_on(lambda x, t: loss(x, t, p=3), x, target)
    agree_on(loss, x.bfloat16(), target)
    agree_on(loss, x.long(), target)
    agree_on(loss, x, target.int())
    agree_on(loss, x, target[:2])
    agree_on(loss, x[:, :0], target)
    agree_on(loss, x[None], target)
    agree_on(lambda x, t: loss(x, t, weight=x[0, :3]), x, target)
    raises_on_tpu(loss, x, target + 1, match="target out of range")
    agree_on(loss, x, target, tolerance=1e-6)


def test_multi_margin_loss_out():
    def run(x, target):
        outs = [torch.empty(n, device=x.device)[::step] for n, step in ((3, 1), (0, 1), (6, 2))]
        for out in outs:
            aten.multi_margin_loss.out(x, target, 1, 1, None, 0, out=out)
        return outs

    agree_on(run, values(3, 4), torch.tensor([0, 3, 1]), tolerance=1e-6)


TARGETS = torch.tensor([[3, 0, -1, 1], [2, 2, 1, 0], [-1, 0, 1, 2], [1, 3, 2, 0]])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_multilabel_margin_loss(reduction):
    x = values(4, 4)

    def run(x, target):
        return with_gradients(lambda x: F.multilabel_margin_loss(x, target, reduction=reduction))(x)

    agree_on(run, x, TARGETS, tolerance=1e-5)
    agree_on(run, x.double(), TARGETS, tolerance=1e-12)
    agree_on(run, x.t(), TARGETS.t(), tolerance=1e-5)
    agree_on(run, x[0], TARGETS[0], tolerance=1e-5)
    agree_on(run, x[0, 0], TARGETS[2, 1], tolerance=1e-5)
    agree_on(lambda x, t: F.multilabel_margin_loss(x, t, reduction="none"), x[:0], TARGETS[:0])


def test_multilabel_margin_loss_says_what_is_target():
    agree_on(lambda x, t: aten.multilabel_margin_loss_forward(x, t, 1), values(4, 4), TARGETS)
    agree_on(lambda x, t: aten.multilabel_margin_loss_forward(x, t, 0), values(4, 4).t(), TARGETS)


def test_multilabel_margin_loss_errors():
    x, loss = values(4, 4), F.multilabel_margin_loss
    agree_on(loss, x.bfloat16(), TARGETS)
    agree_on(loss, x, TARGETS.int())
    agree_on(loss, x, TARGETS[:, :2])
    agree_on(loss, x[:, :0], TARGETS[:, :0])
    agree_on(loss, x[None], TARGETS[None])
    raises_on_tpu(loss, x, TARGETS + 1, match="argument #2 'target' is out of range")
    raises_on_tpu(loss, x, TARGETS - 1, match="argument #2 'target' is out of range")


# --- fractional max pooling


def tied(*shape):
    """Numbers with many equal ones among them."""
    return values(*shape, low=-3, high=3).round()


POOLS = {
    2: (F.fractional_max_pool2d, (2, 3), (3, 4), (2, 3, 7, 8)),
    3: (F.fractional_max_pool3d, (2, 2, 3), (2, 3, 4), (2, 2, 5, 7, 8)),
}


@pytest.mark.parametrize("rank", POOLS)
def test_fractional_max_pool(rank):
    pool, kernel, size, shape = POOLS[rank]

    def run(x, samples):
        def pooled(x):
            return pool(x, kernel, size, return_indices=True, _random_samples=samples)

        return with_gradients(pooled)(x)

    for seed in range(3):
        samples = values(*shape[:2], rank, low=0, high=1, seed=seed)
        agree_on(run, tied(*shape), samples)
    agree_on(run, values(*shape).double(), samples.double(), tolerance=1e-12)
    # The samples are rounded to the input's dtype, and so is each step to the windows' starts.
    for dtype in (torch.bfloat16, torch.float16):
        wide = values(*shape[:-1], 60, seed=2).to(dtype)
        size = (*size[:-1], 29)
        agree_on(run, wide, samples.to(dtype), tolerance=2e-2)
    x = tied(*shape)
    x[0, 0, 1] = NAN
    x[0, 1] = -INF
    agree_on(
        lambda x, s: pool(x, kernel, size, True, s), x[..., :30].repeat_interleave(4, -1), samples
    )


@pytest.mark.parametrize("rank", POOLS)
def test_fractional_max_pool_layouts(rank):
    pool, kernel, size, shape = POOLS[rank]
    call = lambda x, s: pool(x, kernel, size, return_indices=True, _random_samples=s)  # noqa: E731
    x, samples = values(*shape), values(*shape[:2], rank, low=0, high=1)
    agree_on(call, x[0], samples[:1])
    agree_on(call, x.flip(0).transpose(0, 1), samples.transpose(0, 1))
    agree_on(call, x[:0], samples[:0])
    one = (1,) * rank
    agree_on(lambda x, s: pool(x, one, one, True, _random_samples=s), x, samples)


@pytest.mark.parametrize("rank", POOLS)
def test_fractional_max_pool_errors(rank):
    pool, kernel, size, shape = POOLS[rank]
    call = lambda x, s: pool(x, kernel, size, return_indices=True, _random_samples=s)  # noqa: E731
    x, samples = values(*shape), values(*shape[:2], rank, low=0, high=1)
    agree_on(call, x, samples.double())
    agree_on(call, x, samples[0])
    agree_on(call, x, samples[:, :1])
    agree_on(call, x, samples[:1])
    agree_on(call, x, samples[..., :1])
    agree_on(call, x.int(), samples.int())
    agree_on(lambda x, s: pool(x, kernel, shape[2:], True, _random_samples=s), x, samples)


# --- segments

REDUCE = words("sum mean prod max min")


@pytest.mark.parametrize("reduce", REDUCE)
def test_segment_reduce(reduce):
    lengths = torch.tensor([2, 0, 3, 1])
    offsets = torch.tensor([0, 2, 2, 5, 6])

    def run(x, lengths, offsets):
        a = with_gradients(lambda x: torch.segment_reduce(x, reduce, lengths=lengths))(x)
        x = x.detach()
        b = with_gradients(lambda x: torch.segment_reduce(x, reduce, offsets=offsets, initial=2))(x)
        return a, b

    agree_on(run, values(6), lengths, offsets, tolerance=1e-5)
    agree_on(run, values(6, 2, 3), lengths.int(), offsets.int(), tolerance=1e-5)
    agree_on(run, values(3, 6).t(), lengths, offsets, tolerance=1e-5)
    agree_on(run, values(6, 2).double(), lengths, offsets, tolerance=1e-12)
    for dtype in (torch.bfloat16, torch.float16):
        agree_on(run, values(6, 2).to(dtype), lengths, offsets, tolerance=3e-2)


@pytest.mark.parametrize("reduce", REDUCE)
def test_segment_reduce_of_special_values(reduce):
    x = torch.tensor([1, 0, 2, NAN, 0, 0, 3, NAN, 0, NAN, NAN, 5, 2, 2, INF])
    lengths = torch.tensor([3, 1, 3, 5, 0, 3])
    for initial in (None, 3.0):
        agree_on(
            lambda x, n, i=initial: with_gradients(
                lambda x: torch.segment_reduce(x, reduce, lengths=n, initial=i)
            )(x),
            x,
            lengths,
            tolerance=1e-6,
        )


@pytest.mark.parametrize("reduce", REDUCE)
def test_segment_reduce_of_rows(reduce):
    lengths = torch.tensor([[2, 3, 0], [1, 1, 3]])
    offsets = torch.tensor([[0, 2, 5], [0, 1, 5]])

    def run(x, lengths, offsets):
        a = with_gradients(lambda x: torch.segment_reduce(x, reduce, lengths=lengths, axis=1))(x)
        x = x.detach()
        b = with_gradients(lambda x: torch.segment_reduce(x, reduce, offsets=offsets, axis=1))(x)
        return a, b

    agree_on(run, values(2, 5), lengths, offsets, tolerance=1e-5)
    agree_on(run, values(2, 5, 3), lengths, offsets, tolerance=1e-5)


def test_segment_reduce_unsafe():
    lengths = torch.tensor([2, 1])
    agree_on(
        lambda x, n: torch.segment_reduce(x, "sum", lengths=n, unsafe=True), values(6), lengths
    )
    offsets = torch.tensor([1, 3, 5])
    agree_on(lambda x, n: torch.segment_reduce(x, "max", offsets=n), values(6), offsets)


def test_segment_reduce_of_nothing():
    x, lengths = values(6, 2), torch.tensor([0, 0])
    for reduce in REDUCE:
        agree_on(lambda x, n, r=reduce: torch.segment_reduce(x, r, lengths=n), x[:0], lengths)
    agree_on(lambda x, n: torch.segment_reduce(x, "sum", offsets=n), x[:0], torch.tensor([0]))
    agree_on(
        lambda x, n: torch.segment_reduce(x, "mean", lengths=n), x[:, :0], torch.tensor([2, 4])
    )


def test_segment_reduce_errors():
    x, lengths = values(6, 2), torch.tensor([2, 4])
    agree_on(lambda x: torch.segment_reduce(x, "sum"), x)
    agree_on(lambda x, n: torch.segment_reduce(x, "foo", lengths=n), x, lengths)
    agree_on(lambda x, n: torch.segment_reduce(x, "sum", indices=n), x, lengths)
    agree_on(lambda x, n: torch.segment_reduce(x, "sum", lengths=n, axis=1), x, lengths)
    agree_on(lambda x, n: torch.segment_reduce(x, "sum", lengths=n, axis=2), x, lengths)
    agree_on(lambda x, n: torch.segment_reduce(x, "sum", lengths=n), x.int(), lengths)
    agree_on(lambda x, n: torch.segment_reduce(x, "sum", lengths=n), x, lengths.short())
    call = lambda x, n: torch.segment_reduce(x, "sum", lengths=n)  # noqa: E731
    raises_on_tpu(call, x, torch.tensor([-1, 7]), match="lengths contains negative value")
    raises_on_tpu(call, x, torch.tensor([1, 7]), match="Expected all rows of lengths along axis")


# --- hashes

HASHED = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
HASHED += [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", HASHED, ids=str)
def test_hash_tensor(dtype):
    x = values(5, 6, low=-50, high=50).to(dtype)
    agree_on(all_layouts(lambda x: torch.hash_tensor(x, dim=0, keepdim=True)), x[:4])
    agree_on(lambda x: torch.hash_tensor(x), x)
    agree_on(lambda x: torch.hash_tensor(x, dim=1), x)
    agree_on(lambda x: torch.hash_tensor(x, dim=(0, -1)), x)
    agree_on(lambda x: torch.hash_tensor(x[0, 0]), x)
    agree_on(lambda x: torch.hash_tensor(x[0, 0], dim=0), x)


def test_hash_tensor_of_each_kind_of_number():
    tiny = 2.0**-149
    x = [0.0, -0.0, 1.0, -1.5, INF, -INF, NAN, tiny, -3 * tiny, 2.0**-127, 2.0**-126, 3.4e38]
    agree_on(lambda x: torch.hash_tensor(x[:, None], dim=1), torch.tensor(x))
    agree_on(lambda x: torch.hash_tensor(x[:, None], dim=1), torch.tensor(x, dtype=torch.float64))
    agree_on(lambda x: torch.hash_tensor(x[:, None], dim=1), torch.tensor(x, dtype=torch.bfloat16))


def test_hash_tensor_errors():
    x = values(3, 4)
    agree_on(lambda x: torch.hash_tensor(x, mode=1), x)
    agree_on(lambda x: torch.hash_tensor(x[:0]), x)
    agree_on(lambda x: torch.hash_tensor(x[:0], dim=0), x)
    agree_on(torch.hash_tensor, x.to(torch.complex64))
    agree_on(torch.hash_tensor, x.to(torch.uint16))
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match="dtype"):
            torch.hash_tensor(x.to(device), out=torch.empty((), device=device))


def test_hash_tensor_out():
    agree_on(out_forms(lambda x, **out: torch.hash_tensor(x, dim=0, **out)), values(3, 4))
