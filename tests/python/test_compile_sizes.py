"""Sizes that vary in compiled graphs: padded to a few, and equal to the CPU's results."""

import concurrent.futures
import copy
import warnings

import compiled_graphs
import pytest
import sympy
import torch
import torch.nn.functional as F
from agreement import moved, same
from torch import nn
from torch._dynamo.utils import counters

from torch_tpu.compile import extents
from torch_tpu.compile.buckets import bucket_of

SIZES = (5, 6, 7, 11, 12)


@pytest.fixture(autouse=True)
def fresh():
    compiled_graphs.forget()


def tensor(*shape, seed=0, high=None):
    generator = torch.Generator().manual_seed(seed)
    if high is not None:
        return torch.randint(0, high, shape, generator=generator)
    return torch.randn(shape, generator=generator)


class Programs:
    """How many programs of graphs were compiled inside of `with`, and what was said of sizes."""

    def __enter__(self):
        self._last = max((e.number for e in torch.tpu.compile_log()), default=0)
        self._catch = warnings.catch_warnings(record=True)
        self._warned = self._catch.__enter__()
        warnings.simplefilter("always")
        return self

    def __exit__(self, *failure):
        self._catch.__exit__(*failure)
        new = [e for e in torch.tpu.compile_log() if e.number > self._last]
        self.count = sum(e.operation.startswith("compiled") for e in new)
        said = [str(w.message) for w in self._warned]
        self.said = [m for m in said if "a program has fixed shapes" in m]


def agrees(function, inputs, sizes=SIZES, *, padded=True, gradients=True, tolerance=1e-5):
    """`function` compiled once for all `sizes`, against eager PyTorch on the CPU: results, their
    strides, and the gradients of floating-point inputs. Dimensions of `size` are marked to vary."""
    compiled = torch.compile(function)
    with Programs() as programs:
        for size in sizes:
            outcome = []
            for call, device in ((function, "cpu"), (compiled, "tpu")):
                given = moved(inputs(size), device)
                floats = [t for t in given if t.is_floating_point()]
                for t in floats:
                    t.requires_grad_(gradients)
                for t in given if device == "tpu" else ():
                    for d in range(t.dim()):
                        if t.shape[d] == size:
                            torch._dynamo.mark_dynamic(t, d)
                result = call(*given)
                results = result if isinstance(result, tuple) else (result,)
                if gradients:
                    sum(r.float().square().sum() for r in results).backward()
                outcome.append((results, [t.grad for t in floats]))
            same(outcome[1], outcome[0], tolerance=tolerance)
            for made, expected in zip(outcome[1][0], outcome[0][0], strict=True):
                assert made.stride() == expected.stride()
    assert counters["stats"]["unique_graphs"] == 1
    assert torch.tpu.fallbacks() == []
    if padded:
        assert programs.said == []
        buckets = {bucket_of(size) for size in sizes}
        assert programs.count <= len(buckets) * (2 if gradients else 1)
    else:
        assert len(programs.said) == 1
    return programs


# --- operators

FUNCTIONS = {
    "elementwise": lambda x: torch.where(x > 0, x.exp(), x * 2) + x.sigmoid(),
    "numbers": lambda x: x * x.shape[0] + 1 / x.shape[0],
    "sum": lambda x: (x.exp().sum(), x.sum(0), x.sum(1), x.sum((0, 1), keepdim=True)),
    "mean": lambda x: (x.exp().mean(), x.mean(0), x.mean(1, keepdim=True)),
    "extremes": lambda x: (x.amax(0), x.amin(), (-x.exp()).max(), x.exp().min(0).values),
    "variance": lambda x: (x.var(), x.std(0), torch.var_mean(x, (0, 1), correction=0)[0]),
    "norms": lambda x: (x.norm(), torch.linalg.vector_norm(x + 1, 1, 0)),
    "softmax": lambda x: (x.softmax(0), x.log_softmax(0), x.softmax(1), x.logsumexp(0)),
    "cumulative": lambda x: x.cumsum(0),
    "products": lambda x: (x.t() @ x, x @ x.t(), x @ torch.ones(4, 3, device=x.device)),
    "batched": lambda x: torch.bmm(x[:, :, None] + 1, x[:, None, :]),
    "merged": lambda x: (x.reshape(-1) + 1).view(x.shape[0], 2, 2).transpose(0, 1).reshape(2, -1),
    "ends": lambda x: (x[-1], x[0], x[-2:], x[1:], x[:-1], x[:3]),
    "padding": lambda x: F.pad(x, (1, 0, 2, 1), value=3.0).cumsum(0),
    "static cat": lambda x: torch.cat([x, x * 2, -x], 1),
    "behind each other": lambda x: (
        torch.cat([x, x[:2].exp()]),
        torch.cat([x[:1], x * 2, x.exp(), x[:, :1].expand(-1, 4)]).cumsum(0),
    ),
    "later parts": lambda x: (x[x.shape[0] - 3 :], x[-4:-1], x[1::2], x[x.shape[0] // 2 :].sum(0)),
    "stack": lambda x: torch.stack([x, x.exp()]),
    "split": lambda x: torch.cat(x.split(2, 1)[::-1], 1) + sum(x.unbind(1))[:, None],
    "positions": lambda x: x + torch.arange(x.shape[0], device=x.device)[:, None],
    "made": lambda x: x + torch.full((x.shape[0], 1), 2.0, device=x.device) + torch.ones_like(x),
    "later positions": lambda x: x[:3] + torch.arange(x.shape[0], x.shape[0] + 4, device=x.device),
    "filled": lambda x: torch.full_like(x, x.shape[0]) * x + x.new_full((4,), x.shape[0]),
    "squares": lambda x: (x @ x.t()).mean() + (x @ x.t()).std(),
    "triangles": lambda x: (x @ x.t()).tril(-1) + (x @ x.t()).triu(),
    "layer norm": lambda x: F.layer_norm(x, (4,), x.mean(0), x.mean(0)),
    "rms norm": lambda x: F.rms_norm(x, (4,), x.mean(0)),
    "flip": lambda x: x.flip(0).cumsum(0),
    "losses": lambda x: (
        F.mse_loss(x, x.tanh()),
        F.smooth_l1_loss(x, x.tanh(), reduction="sum"),
        F.binary_cross_entropy_with_logits(x, x.sigmoid().detach()),
        F.l1_loss(x, -x.exp()),
    ),
    "dropout of nothing": lambda x: F.dropout(x, 0.0) * 2,
    "expanded": lambda x: x.mean(0).expand(x.shape[0], 4) * x,
    "chosen by rows": lambda x: x.gather(1, x.argmax(1, keepdim=True)),
    "outer": lambda x: (x[:, None, :] - x[None, :, :]).square().sum(-1).mean(1),
    "rotated": lambda x: torch.view_as_real(torch.view_as_complex(x.view(-1, 2, 2)) * 1j).sum(1),
    "repeated": lambda x: x.repeat(2, 1, 3) * 2,
    "largest": lambda x: (x.topk(2, 0).values, (x * x).topk(3, 0, largest=False).values),
    "losses of each": lambda x: F.mse_loss(x, x.exp(), reduction="none"),
    "permuted out": lambda x: (x * 2).t(),
    "views of the input": lambda x: (x[2:], x[:, 1:3], x.t(), x[1:-1].mean(0).expand(3, 4)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators(name):
    agrees(FUNCTIONS[name], lambda s: (tensor(s, 4),))


def test_what_is_compared_and_counted():
    def f(x):
        return x.argmax(0), x.gt(0).any(0), x.gt(-9).all(), x.gt(0).sum(1), x.argmin(0), x.prod(0)

    agrees(f, lambda s: (-tensor(s, 4).exp(),), gradients=False)


def test_dimensions_that_are_padded_in_between():
    def f(x):
        merged = x.t().reshape(-1)
        return merged * 2, merged.exp().view(4, -1).sum(1), x.t().reshape(2, -1).exp()

    agrees(f, lambda s: (tensor(s, 4),), sizes=(5, 7, 11, 13))


def test_indices():
    def f(table, ids, x):
        embedded = F.embedding(ids, table)
        rows = x.index_select(0, ids[: x.shape[0]] % 3)
        return embedded, rows, x[ids % 2 - 1], table[ids].sum(0), x.gather(0, (ids % 3)[:, None])

    agrees(f, lambda s: (tensor(9, 3), tensor(s, high=9), tensor(s, 2)))


def test_cross_entropy():
    def f(x, target):
        ignored = target.masked_fill(target == 2, -100)
        return F.cross_entropy(x, ignored), F.cross_entropy(x, target, reduction="sum")

    agrees(f, lambda s: (tensor(s, 9), tensor(s, high=9)))


@pytest.mark.parametrize("kind", ["plain", "causal", "mask"])
def test_attention(kind):
    def f(q, k, v, mask):
        mask = mask if kind == "mask" else None
        out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=kind == "causal")
        return out.transpose(1, 2).flatten(2)

    def inputs(s):
        heads = [tensor(2, 3, s, 4, seed=i) for i in range(3)]
        return *heads, tensor(2, s, high=5).gt(0)[:, None, None, :] | torch.eye(s).bool()

    agrees(f, inputs)


@pytest.mark.parametrize("norm", [nn.GroupNorm, nn.BatchNorm2d])
@pytest.mark.parametrize("training", [True, False])
def test_images(norm, training):
    """Only the number of images varies: it is what `mark_dynamic` marks."""
    torch.manual_seed(0)
    cpu = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), norm(*([2, 8] if norm is nn.GroupNorm else [8])), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(8, 4, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, 5),
    ).train(training)  # fmt: skip
    tpu = copy.deepcopy(cpu).to("tpu")
    compiled = torch.compile(tpu)
    with Programs() as programs:
        for size in SIZES:
            x, target = tensor(size, 3, 8, 8), tensor(size, high=5)
            given = x.to("tpu")
            torch._dynamo.mark_dynamic(given, 0, min=2, max=64)
            if training:
                F.cross_entropy(cpu(x), target).backward()
                F.cross_entropy(compiled(given), target.to("tpu")).backward()
                gradients = [[p.grad for p in model.parameters()] for model in (tpu, cpu)]
                same(*gradients, tolerance=1e-5)
                same([*tpu.buffers()], [*cpu.buffers()], tolerance=1e-5)
            else:
                with torch.no_grad():
                    same(compiled(given), cpu(x), tolerance=1e-5)
    assert programs.said == [] and programs.count == (2 if training else 1) * 3


# --- numbers


def test_numbers_are_arguments():
    f = torch.compile(lambda x, n: x * n + n, dynamic=True)
    with Programs() as programs:
        for n in (3, 5, 9, 4):
            x = tensor(n + 2, 3)
            same(f(x.to("tpu"), n).cpu(), x * n + n, tolerance=1e-6)
    assert programs.count == len({bucket_of(n + 2) for n in (3, 5, 9, 4)})


def test_numbers_where_no_size_varies():
    f = torch.compile(lambda x, n: (x * n).cumsum(0) + n)
    with Programs() as programs:
        for n in (3, 5, 9, 4):
            x = tensor(3, 3)
            same(f(x.to("tpu"), n).cpu(), (x * n).cumsum(0) + n, tolerance=1e-6)
    # The first number is a constant: that it varies is not known yet.
    assert programs.count == 2


def test_numbers_that_are_not_sizes_of_inputs():
    """A program for each: the result's shape depends on them."""
    f = torch.compile(lambda x, n: x[:, None].expand(-1, n) + torch.zeros(n).numel(), dynamic=True)
    with Programs() as programs:
        for size, n in ((5, 3), (6, 3), (7, 4), (8, 4)):
            x = tensor(size)
            same(f(x.to("tpu"), n).cpu(), x[:, None].expand(-1, n) + n)
    assert programs.said == [] and programs.count == 2


# --- what cannot be padded

REFUSED = {
    "a size as a result's": lambda x: F.interpolate(x[None, None], (x.shape[0], 3)),
    "scaled by a size": lambda x: torch.addmm(x, x, torch.ones_like(x[:4]), alpha=x.shape[0]),
    "sort": lambda x: x.sort(0).values,
    "median": lambda x: x.median(0).values,
    "unfolded": lambda x: x.unfold(0, 2, 1).sum(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_padded_is_right_and_said_once(name):
    programs = agrees(REFUSED[name], lambda s: (tensor(s, 4),), padded=False)
    assert "test_compile_sizes.py" in programs.said[0]


def test_a_backward_pass_that_cannot_be_padded():
    """Nor is the forward pass then."""

    class Sorted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.exp())
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0].sort(0).values

    agrees(Sorted.apply, lambda s: (tensor(s, 4),), padded=False)


# --- how it is used


@pytest.mark.parametrize("dynamic", [True, None, False])
def test_dynamic(dynamic):
    def f(x):
        y = x.t() @ x
        return y + x.shape[0], x.reshape(-1).sum() * x.size(0), torch.zeros(x.shape[0]).numel()

    g = torch.compile(f, dynamic=dynamic)
    with Programs() as programs:
        for n in (3, 5, 3, 7, 2, 5):
            x = tensor(n, 4)
            same(moved(g(x.to("tpu")), "cpu"), f(x), tolerance=1e-4)
    assert programs.said == []
    # Traced once (or twice: for the first size, and then for all).
    assert counters["stats"]["unique_graphs"] == {True: 1, None: 2, False: 4}[dynamic]


def test_buckets():
    assert [bucket_of(n) for n in (2, 3, 4, 5, 6, 7, 9, 12, 13, 33, 48, 49)] == [
        2, 3, 4, 6, 6, 8, 12, 12, 16, 48, 48, 64,
    ]  # fmt: skip
    assert bucket_of(60, 62) == 62
    for n in range(2, 5000):
        assert n <= bucket_of(n) < 1.5 * n or n < 4


def test_no_more_than_what_is_marked():
    table = tensor(11, 4).to("tpu")

    def f(x):
        return x + table[: x.shape[0]]  # says that there are no more than 11 rows

    g = torch.compile(f, dynamic=True)
    with Programs() as programs:
        for n in (9, 11, 10):
            x = tensor(n, 4)
            same(g(x.to("tpu")).cpu(), x + table.cpu()[:n])
    assert programs.said == [] and programs.count == 1


def test_the_cache_keeps_what_is_padded(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def f(x):
        return (x.exp() @ x.t()).mean(0)

    for again in range(2):
        torch._dynamo.reset()
        counters.clear()
        g = torch.compile(f, dynamic=True)
        with Programs() as programs:
            for n in (5, 6, 7):
                x = tensor(n, 4).requires_grad_()
                t = x.detach().to("tpu").requires_grad_()
                f(x).sum().backward()
                g(t).sum().backward()
                same(t.grad.cpu(), x.grad, tolerance=1e-5)
        assert programs.said == []
        assert counters["aot_autograd"]["autograd_cache_hit"] == again


def test_backward_passes_stay_on_their_thread():
    """Also where a thread's first operators are those of a graph that is being recorded."""
    given = tensor(5, 4).to("tpu").requires_grad_()

    def train():
        torch.compile(lambda x: x.exp().sum(0), dynamic=True)(given).sum().backward()
        return torch._C._is_multithreading_enabled()

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        assert thread.submit(train).result() is False


def test_layouts():
    s, t = sympy.symbols("s t", integer=True, positive=True)
    layout = extents.plain([3, s, 8])
    merged = extents.reshaped(layout, [3 * s, 8])
    assert merged == ((3, s), (8,))
    assert extents.reshaped(merged, [3, s, 2, 4]) == ((3,), (s,), (2,), (4,))
    assert extents.reshaped(merged, [24 * s]) == ((3, s, 8),)
    assert extents.reshaped(extents.plain([6, s]), [2, 3 * s]) == ((2,), (3, s))
    assert extents.reshaped(extents.plain([s, t + 1]), [s * t + s]) == ((s, t + 1),)
    for shape in ([s, 24], [3, 8, s], [6, s, 4]):
        with pytest.raises(extents.CannotPad):
            extents.reshaped(layout, shape)
    assert extents.broadcast([((3, s), (8,)), ((), (8,)), ()]) == ((3, s), (8,))
    with pytest.raises(extents.CannotPad):
        extents.broadcast([((3, s),), ((s, 3),)])


# --- models


def causal(name, **settings):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, f"{name}Config")(vocab_size=50, **settings)
    )
    model.loss_type = "ForCausalLM"
    return model


def bert():
    transformers = pytest.importorskip("transformers")
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
            vocab_size=50, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def llama():
    return causal(
        "Llama", hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=64,
    )  # fmt: skip


def gpt2():
    return causal(
        "GPT2", n_embd=32, n_layer=2, n_head=2, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [bert, llama, gpt2])
def test_training_on_texts_of_any_length(make):
    """Batches and lengths vary. A graph of its own for the loss and one for the rest at most."""
    torch.manual_seed(0)
    cpu = make()
    tpu = copy.deepcopy(cpu).to("tpu")
    compiled = torch.compile(tpu, dynamic=True)
    with Programs() as programs:
        for rows, length in ((3, 10), (4, 11), (3, 17)):
            ids = tensor(rows, length, high=50, seed=length)
            mask = torch.ones_like(ids)
            mask[0, : length // 2] = 0
            batch = {"input_ids": ids, "attention_mask": mask, "labels": ids}
            expected = cpu(**batch)
            expected.loss.backward()
            result = compiled(**{name: value.to("tpu") for name, value in batch.items()})
            result.loss.backward()
            same(result.loss.detach().cpu(), expected.loss.detach(), tolerance=1e-5)
            same(result.logits.detach().cpu(), expected.logits.detach(), tolerance=1e-4)
            largest = max(p.grad.abs().max() for p in cpu.parameters() if p.grad is not None)
            for p, q in zip(tpu.parameters(), cpu.parameters(), strict=True):
                if q.grad is not None:
                    torch.testing.assert_close(
                        p.grad.cpu(), q.grad, rtol=0, atol=1e-5 * largest.item()
                    )
            for model in (tpu, cpu):
                model.zero_grad()
    assert programs.said == []
    # Buckets of rows and lengths: (3, 12), (4, 12), (3, 24).
    assert programs.count <= 3 * 4
