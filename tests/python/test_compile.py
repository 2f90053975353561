"""`torch.compile` on tpu: equal to eager PyTorch on the CPU, and as a CUDA user knows it."""

import concurrent.futures
import copy
import functools
from unittest import mock

import compiled_graphs
import pytest
import torch
from agreement import moved, same
from torch._dynamo.utils import counters

from torch_tpu.compile import backend


@pytest.fixture(autouse=True)
def fresh():
    compiled_graphs.forget()
    yield
    torch.tpu.set_eager_mode("strict")


def leaves(value):
    return torch.utils._pytree.tree_flatten(value)[0]


def compiled_agrees(function, *arguments, tolerance=1e-5, breaks=0, graphs=None, **options):
    """Calls `function` twice: eagerly on the CPU, compiled on the tpu.

    Results and the arguments afterwards must be the same; gradients too, where arguments want any.
    """

    def run(function, device):
        given = moved(arguments, device)
        for copied, original in zip(leaves(given), leaves(arguments), strict=True):
            if isinstance(original, torch.Tensor) and original.requires_grad:
                copied.requires_grad_()
        outcome = []
        for _ in range(2):
            torch.manual_seed(0)
            result = function(*given)
            outcome.append(result)
            wanted = [
                r.float().square().sum()
                for r in leaves(result)
                if isinstance(r, torch.Tensor) and r.requires_grad
            ]
            if wanted:
                sum(wanted).backward()
        after = [v.detach() if isinstance(v, torch.Tensor) else v for v in leaves(given)]
        gradients = [v.grad for v in leaves(given) if isinstance(v, torch.Tensor) and v.is_leaf]
        return outcome, after, gradients

    expected = run(function, "cpu")
    counters.clear()
    actual = run(torch.compile(function, **options), "tpu")
    same(actual, expected, tolerance=tolerance)
    assert sum(counters["graph_break"].values()) == breaks, counters["graph_break"]
    if graphs is not None:
        assert counters["stats"]["unique_graphs"] == graphs
    assert torch.tpu.fallbacks() == []


def tensor(*shape, dtype=torch.float32, grad=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad)


def count_graphs():
    """How often the tpu's backend is asked for a graph."""
    return mock.patch.object(backend, "tpu", wraps=backend.tpu)


# --- who compiles


@pytest.mark.parametrize("options", [{}, {"backend": "tpu"}, {"backend": "inductor"}])
@pytest.mark.parametrize("mode", [None, "reduce-overhead", "max-autotune"])
def test_graphs_on_tpu_come_here(options, mode):
    if mode and options.get("backend") == "tpu":
        pytest.skip("modes are inductor's")
    with count_graphs() as asked, mock.patch("torch._inductor.compile_fx.compile_fx") as inductor:
        f = torch.compile(lambda x: x * 2 + 1, mode=mode, **options)
        same(f(torch.ones(3, device="tpu")).cpu(), torch.full((3,), 3.0))
    assert asked.call_count == 1
    assert inductor.call_count == 0


@pytest.mark.parametrize("options", [{}, {"backend": "tpu"}, {"backend": "inductor"}])
def test_graphs_on_the_cpu_go_to_inductor(options):
    def compile_fx(module, inputs, **arguments):
        return module

    with mock.patch("torch._inductor.compile_fx.compile_fx", side_effect=compile_fx) as inductor:
        f = torch.compile(lambda x: x * 2 + 1, **options)
        same(f(torch.ones(3)), torch.full((3,), 3.0))
    assert inductor.call_count == 1


def test_a_graph_that_makes_tensors_on_tpu_comes_here():
    with count_graphs() as asked:
        f = torch.compile(lambda: torch.arange(4, device="tpu") * 2)
        same(f().cpu(), torch.arange(4) * 2)
    assert asked.call_count == 1


def test_the_backend_is_listed():
    assert "tpu" in torch._dynamo.list_backends()


def test_modules_compile_in_place():
    model = Block(width=4).to("tpu")
    expected = model(torch.ones(2, 4, device="tpu"))
    model.compile()
    with count_graphs() as asked:
        actual = model(torch.ones(2, 4, device="tpu"))
    same(actual.detach().cpu(), expected.detach().cpu(), tolerance=1e-6)
    assert asked.call_count == 1


# --- outputs


OUTPUTS = {
    "transposed": lambda x: (x + 1).t(),
    "slice": lambda x: (x + 1)[1:, ::2],
    "views that share": lambda x: ((y := x * 2)[0], y[1:], y.t()),
    "view of an input": lambda x: x[1:, :2].t(),
    "the input": lambda x: (x, x + 1, x),
    "expanded": lambda x: (x.sum(0) + 1).expand(4, -1),
    "diagonal": lambda x: (x + 1).diagonal(),
    "channels last": lambda x: x.reshape(1, 3, 2, 2).contiguous(memory_format=torch.channels_last),
    "nothing": lambda x: (None, x.sin(), None),
    "numbers": lambda x: (x.dim(), x.sin(), x.shape[0], 2.5, "text", True),
    "empty": lambda x: x[:0] + 1,
    "0-d": lambda x: x.sum(),
    "twice": lambda x: ((y := x + 1), y),
    "constant": lambda x: (torch.ones(2, device=x.device), x + torch.tensor(2.0, device=x.device)),
    "complex": lambda x: torch.complex(x, -x).conj().t(),
    "conjugate view": lambda x: torch.fft.fft(x).conj(),
    "negative view": lambda x: torch.complex(x, x).conj().imag,
    "a list": lambda x: list((x + 1).unbind()),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(name):
    compiled_agrees(OUTPUTS[name], tensor(4, 3))


@pytest.mark.parametrize("name", [n for n in OUTPUTS if n not in ("complex", "conjugate view")])
def test_outputs_that_want_gradients(name):
    compiled_agrees(OUTPUTS[name], tensor(4, 3, grad=True))


def test_nested_outputs():
    result = torch.compile(lambda x: {"a": [x + 1, (x + 2,)], "b": None})(torch.ones(2).to("tpu"))
    assert [type(v) for v in (result, result["a"], result["a"][1])] == [dict, list, tuple]
    assert result["b"] is None
    same(result["a"][1][0].cpu(), torch.full((2,), 3.0))


def test_outputs_alias_as_in_eager():
    x = torch.zeros(4, 3, device="tpu")

    @torch.compile
    def f(x):
        y = x + 1
        return y, y[1:], x.t()

    whole, part, view = f(x)
    whole[1:] = 5
    assert part.min().item() == 5
    assert view._base is x
    view.fill_(2)
    assert x.sum().item() == 24


# --- inputs


def test_inputs_that_are_views_of_one_storage():
    def f(x, y, z):
        return x @ y, z * 2

    base = torch.arange(24.0).reshape(4, 6)

    def views(device):
        b = base.to(device)
        return b[:, :3], b[:3, 3:].t(), b.as_strided((2, 2), (6, 2), 1)

    g = torch.compile(f)
    same(moved(g(*views("tpu")), "cpu"), f(*views("cpu")))
    same(moved(g(*views("tpu")), "cpu"), f(*views("cpu")))


def test_overlapping_inputs_of_which_one_is_written():
    def f(x, y):
        x.add_(1)
        return y * 2

    for offset in (0, 1, 2):
        values = []
        for device, function in (("cpu", f), ("tpu", torch.compile(f))):
            base = torch.arange(6.0, device=device)
            out = function(base[:4], base[offset : offset + 3])
            values.append(moved((out, base), "cpu"))
        same(values[1], values[0])


def test_places_in_a_common_storage_are_not_confused_by_a_cache():
    def f(x, y, w):
        x.add_(1)
        return (y * w).sum()

    for offset in (0, 1, 2):
        torch._dynamo.reset()
        values = []
        for device, function in (("cpu", f), ("tpu", torch.compile(f))):
            base = torch.arange(6.0, device=device)
            w = torch.ones(3, device=device, requires_grad=True)
            function(base[:4], base[offset : offset + 3], w).backward()
            values.append(moved((w.grad, base), "cpu"))
        same(values[1], values[0])


def test_the_same_tensor_twice():
    def f(x, y):
        x.mul_(2)
        return x + y

    x, y = torch.ones(3), torch.ones(3)
    g = torch.compile(f)
    for _ in range(2):
        a, b = x.to("tpu"), y.to("tpu")
        same(g(a, a).cpu(), torch.full((3,), 4.0))
        same(g(a, b).cpu(), torch.full((3,), 5.0))


DTYPES = [
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype):
    def f(x, y):
        return x + y, x * y, (x == y).sum(), x.to(torch.float32) if not x.is_complex() else x.abs()

    compiled_agrees(f, tensor(5, dtype=dtype), tensor(5, dtype=dtype, seed=1), tolerance=1e-2)


@pytest.mark.parametrize("number", [2, 2.5, True], ids=str)
def test_numbers_as_inputs(number):
    compiled_agrees(lambda x, n: x * n + n, tensor(3), number)


def test_numbers_that_change():
    f = torch.compile(lambda x, n: x * n)
    x = torch.ones(3, device="tpu")
    for n in (2, 3, 4, 5):
        assert f(x, n).sum().item() == 3 * n
    for n in (2.5, 3.5, 4.5):
        assert f(x, n).sum().item() == 3 * n


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.float64], ids=str)
def test_cpu_numbers_as_inputs(dtype):
    f = torch.compile(lambda x, n: (x * n + n, (n + 1) * x))
    for value in (1, 2, 0):
        x, n = tensor(3), torch.tensor(value, dtype=dtype)
        same(moved(f(x.to("tpu"), n), "cpu"), (x * n + n, (n + 1) * x))
    assert counters["stats"]["unique_graphs"] == 1


def test_cpu_numbers_are_written_to():
    @torch.compile
    def f(x, n):
        n += 1
        return x * n

    n = torch.tensor(0.0)
    x = torch.ones(2, device="tpu")
    assert [f(x, n).sum().item() for _ in range(3)] == [2, 4, 6]
    assert n.item() == 3
    assert n.device.type == "cpu"


def test_copies_between_devices_cut_the_graph():
    def f(x, y):
        z = (x * 2).cpu() + y
        return z.to(x.device).sin() + x, z

    x, y = tensor(3), tensor(3, seed=1)
    for _ in range(2):
        actual = torch.compile(f)(x.to("tpu"), y)
        assert [a.device.type for a in actual] == ["tpu", "cpu"]
        same(moved(actual, "cpu"), f(x, y), tolerance=1e-6)


def test_two_devices():
    def f(x, y):
        return x.to(y.device) * 2 + y

    x, y = torch.ones(3, device="tpu:0"), torch.ones(3, device="tpu:1")
    out = torch.compile(f)(x, y)
    assert out.device == y.device
    assert out.sum().item() == 9


@pytest.mark.parametrize("device", ["tpu:1", "cpu"])
def test_devices_mixed_in_an_operator_are_an_error(device):
    x, y = torch.ones(3, device="tpu:0"), torch.ones(3, device=device)
    with pytest.raises(RuntimeError, match="device"):
        torch.compile(lambda x, y: x + y)(x, y)
    same(torch.compile(lambda x: x + 1)(x).cpu(), torch.full((3,), 2.0))


def test_a_graph_on_another_device_than_the_current():
    x = torch.ones(3, device="tpu:2", requires_grad=True)
    out = torch.compile(lambda x: x * 3 + torch.zeros(3, device="tpu:2"))(x)
    assert out.device == x.device
    out.sum().backward()
    assert x.grad.device == x.device
    assert x.grad.sum().item() == 9


# --- what a graph writes


MUTATIONS = {
    "in place": lambda x, y: x.add_(y).mul_(2),
    "a slice": lambda x, y: x[1:3].copy_(y[:2]) * 1,
    "by index": lambda x, y: x.index_copy_(0, torch.tensor([0, 2], device=x.device), y[:2]),
    "both": lambda x, y: (x.add_(1), y.sub_(x)),
    "a view of an input": lambda x, y: x.t().add_(y.t()),
    "and its old value": lambda x, y: (y + x, x.add_(1), y + x)[::2],
    "nothing else": lambda x, y: (x.zero_(), None)[1],
    "swapped": lambda x, y: ((t := x.clone()), x.copy_(y), y.copy_(t))[0],
    "through out=": lambda x, y: torch.add(x, y, out=x),
    "masked": lambda x, y: x.masked_fill_(y > 0, 3.0),
    "a list": lambda x, y: (torch._foreach_add_([x, y], 1.0), x * y)[1],
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_inputs_are_written_to(name):
    compiled_agrees(MUTATIONS[name], tensor(4, 3), tensor(4, 3, seed=1))


def test_leaves_are_written_to_without_gradients():
    def f(weight, x):
        with torch.no_grad():
            weight -= 0.1 * x
        return (weight * x).sum()

    compiled_agrees(f, tensor(3, grad=True), tensor(3, seed=1))


def test_buffers():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
            self.norm = torch.nn.BatchNorm1d(3)

        def forward(self, x):
            self.seen += x.sum(0)
            self.calls += 1
            return self.norm(x) * self.seen

    models = [Counter(), Counter().to("tpu")]
    functions = [models[0], torch.compile(models[1], fullgraph=True)]
    for step in range(3):
        x = tensor(4, 3, seed=step)
        results = [f(x.to(d)) for f, d in zip(functions, ("cpu", "tpu"), strict=True)]
        for result in results:
            result.square().sum().backward()
        same(results[1].detach().cpu(), results[0].detach(), tolerance=1e-4)
    for name, expected in models[0].state_dict().items():
        same(models[1].state_dict()[name].cpu(), expected, name, tolerance=1e-4)
    for actual, expected in zip(models[1].parameters(), models[0].parameters(), strict=True):
        same(actual.grad.cpu(), expected.grad, tolerance=1e-3)


def test_a_static_cache():
    def step(cache, k, position):
        cache.index_copy_(1, position, k)
        return (cache * 2).sum(dim=(0, 2))

    g = torch.compile(step, fullgraph=True)
    caches = [torch.zeros(2, 8, 4), torch.zeros(2, 8, 4, device="tpu")]
    for i in range(4):
        k = tensor(2, 1, 4, seed=i)
        expected = step(caches[0], k, torch.tensor([i]))
        actual = g(caches[1], k.to("tpu"), torch.tensor([i], device="tpu"))
        same(actual.cpu(), expected, tolerance=1e-6)
    same(caches[1].cpu(), caches[0])
    assert counters["stats"]["unique_graphs"] == 1


# --- random numbers


def test_random_numbers_are_those_of_eager_mode():
    def f(x):
        return (
            torch.dropout(x, 0.5, True), torch.rand_like(x), torch.randn(3, device=x.device),
            torch.randint(9, (4,), device=x.device), torch.bernoulli(x.sigmoid()),
        )  # fmt: skip

    g = torch.compile(f)
    x = tensor(8, 8).to("tpu")
    torch.manual_seed(3)
    eager = [f(x) for _ in range(2)]
    torch.manual_seed(3)
    compiled = [g(x) for _ in range(2)]
    same(moved(compiled, "cpu"), moved(eager, "cpu"))
    assert not torch.equal(compiled[0][1].cpu(), compiled[1][1].cpu())
    torch.manual_seed(3)
    same(moved(g(x), "cpu"), moved(eager[0], "cpu"))
    # Eager code afterwards goes on where the graph stopped.
    torch.manual_seed(3)
    f(x)
    expected = torch.rand(3, device="tpu").cpu()
    torch.manual_seed(3)
    g(x)
    same(torch.rand(3, device="tpu").cpu(), expected)


def test_gradients_of_dropout_know_what_was_dropped():
    @torch.compile
    def f(x):
        return torch.nn.functional.dropout(x, 0.5) * 3

    x = torch.ones(64, device="tpu", requires_grad=True)
    out = f(x)
    out.sum().backward()
    same(x.grad.cpu(), out.detach().cpu())
    assert 0 < (out == 0).sum().item() < 64


class Block(torch.nn.Module):
    def __init__(self, width=8, p=0.0):
        super().__init__()
        self.inner = torch.nn.Linear(width, 2 * width)
        self.outer = torch.nn.Linear(2 * width, width)
        self.p = p

    def forward(self, x):
        h = torch.nn.functional.dropout(torch.tanh(self.inner(x)), self.p, self.training)
        return x + self.outer(h)


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("preserve", [True, False])
def test_checkpointing_changes_nothing(p, preserve):
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    blocks = torch.nn.ModuleList([Block(p=p), Block(p=p)]).to("tpu")

    def plain(x):
        for block in blocks:
            x = block(x)
        return x.square().mean()

    def checkpointed(x):
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=preserve)
        return x.square().mean()

    x = tensor(4, 8).to("tpu")
    outcomes = []
    for function in (plain, torch.compile(plain), torch.compile(checkpointed, fullgraph=True)):
        blocks.zero_grad()
        torch.manual_seed(5)
        losses = []
        for _ in range(2):
            loss = function(x)
            loss.backward()
            losses.append(loss.detach().cpu())
        outcomes.append((losses, [p.grad.cpu() for p in blocks.parameters()]))
    same(outcomes[1], outcomes[0], tolerance=1e-6)
    if preserve or p == 0:
        same(outcomes[2], outcomes[0], tolerance=1e-6)


def test_selective_checkpointing():
    from torch.utils.checkpoint import (
        checkpoint,
    )
    from torch.utils.checkpoint import (
        create_selective_checkpoint_contexts as contexts,
    )

    def f(x, w):
        return checkpoint(
            lambda x: ((x @ w).relu() @ w).sin(),
            x,
            use_reentrant=False,
            context_fn=functools.partial(contexts, [torch.ops.aten.mm.default]),
        )

    compiled_agrees(f, tensor(4, 4, grad=True), tensor(4, 4, grad=True, seed=1))


# --- autocast, modes of autograd


def test_autocast_around_and_inside():
    weight, x = tensor(4, 4, grad=True), tensor(3, 4, seed=1)

    def inside(x, weight):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return torch.nn.functional.linear(x, weight)

    def around(x, weight):
        return torch.nn.functional.linear(x, weight)

    compiled_agrees(inside, x, weight, tolerance=4e-2)
    w = weight.detach().to("tpu").requires_grad_()
    g = torch.compile(around)
    with torch.autocast("tpu", dtype=torch.bfloat16):
        out = g(x.to("tpu"), w)
    assert out.dtype == torch.bfloat16
    # Without it: another graph, in float32.
    assert g(x.to("tpu"), w).dtype == torch.float32
    out.float().sum().backward()
    same(w.grad.cpu(), x.sum(0).expand(4, 4).contiguous(), tolerance=4e-2)


def test_autocast_does_not_reach_into_a_compiled_graph():
    f = torch.compile(lambda x: x @ x)
    x = tensor(4, 4).to("tpu")
    same(f(x).cpu(), (x @ x).cpu(), tolerance=1e-5)
    with torch.autocast("tpu", dtype=torch.bfloat16):
        assert f(x).dtype == torch.bfloat16
    assert f(x).dtype == torch.float32


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    f = torch.compile(lambda x, w: x @ w)
    x, w = tensor(3, 3).to("tpu"), tensor(3, 3, seed=1).to("tpu").requires_grad_()
    with mode():
        out = f(x, w)
    assert not out.requires_grad
    same(out.cpu(), x.cpu() @ w.detach().cpu(), tolerance=1e-5)
    assert f(x, w).requires_grad


def test_no_grad_and_detach_inside():
    def f(x):
        with torch.no_grad():
            y = x * 2
        return y + x, x.detach() * x

    compiled_agrees(f, tensor(4, grad=True), graphs=1)


def test_gradients_accumulate():
    models = [Block(), None]
    models[1] = copy.deepcopy(models[0]).to("tpu")
    functions = [models[0], torch.compile(models[1])]
    for step in range(3):
        x = tensor(2, 8, seed=step)
        for function, device in zip(functions, ("cpu", "tpu"), strict=True):
            function(x.to(device)).square().mean().backward()
    for actual, expected in zip(models[1].parameters(), models[0].parameters(), strict=True):
        same(actual.grad.cpu(), expected.grad, tolerance=1e-5)


def test_backward_twice():
    f = torch.compile(lambda x: x.sin().cos())
    x = tensor(4, grad=True)
    t = x.detach().to("tpu").requires_grad_()
    for a in (x, t):
        out = (torch.compile(f) if a is t else lambda x: x.sin().cos())(a)
        out.sum().backward(retain_graph=True)
        out.sum().backward()
    same(t.grad.cpu(), x.grad, tolerance=1e-5)


def test_second_derivatives_are_refused_as_elsewhere():
    f = torch.compile(lambda x: x.sin())
    x = tensor(4).to("tpu").requires_grad_()
    (gradient,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        gradient.sum().backward()


def test_gradients_inside_the_graph():
    def f(x):
        return torch.func.grad(lambda x: (x.sin() * x).sum())(x), torch.vmap(lambda r: r @ r)(x)

    compiled_agrees(f, tensor(3, 4), graphs=1)


def test_inference_tensors_are_written_to():
    f = torch.compile(lambda x: (x.add_(1), x[1:])[1])
    with torch.inference_mode():
        x = torch.zeros(3, device="tpu")
        assert [f(x).sum().item() for _ in range(2)] == [2, 4]
        assert x.sum().item() == 6


def test_compiled_autograd():
    model = Block()
    reference = copy.deepcopy(model)
    model.to("tpu")
    x = tensor(2, 8)
    with torch._dynamo.compiled_autograd._enable(torch.compile()):
        model(x.to("tpu")).square().mean().backward()
    reference(x).square().mean().backward()
    for actual, expected in zip(model.parameters(), reference.parameters(), strict=True):
        same(actual.grad.cpu(), expected.grad, tolerance=1e-5)


def test_several_threads():
    f = torch.compile(lambda x: (x * 2).sin().sum())
    x = torch.ones(100, device="tpu")
    f(x)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: f(x).item(), range(40)))
    assert len(set(results)) == 1


def test_custom_functions():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * x

    compiled_agrees(lambda x: Scaled.apply(x) * 2, tensor(4, grad=True), graphs=1)


def test_hooks():
    def f(x):
        y = x * 2
        y.register_hook(lambda g: g * 3)
        return y.sin()

    compiled_agrees(f, tensor(4, grad=True))


# --- memory

MEGABYTE = 1 << 20


def peak_of(function):
    """Bytes that `function` allocates at most beyond those that are there before."""
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    torch.tpu.reset_peak_memory_stats()
    function()
    torch.tpu.synchronize()
    return torch.tpu.max_memory_allocated() - before


def test_writing_in_place_needs_no_second_copy():
    x = torch.zeros(4 * MEGABYTE, device="tpu")  # 16 MB
    cache = torch.zeros(4, MEGABYTE, device="tpu")

    @torch.compile
    def f(x, cache):
        x.add_(1)
        cache[2] = x[:MEGABYTE]
        return x[:2] * 2

    f(x, cache)
    assert peak_of(lambda: f(x, cache)) < 2 * MEGABYTE
    assert x[5].item() == 2
    assert cache[2, 7].item() == 2
    assert cache[1].abs().max().item() == 0


def test_values_that_someone_else_holds_survive():
    @torch.compile
    def f(x):
        x.add_(1)

    x = torch.zeros(1000, device="tpu")
    old = x.detach().clone()
    pending = x * 1
    f(x)
    assert old.sum().item() == 0
    assert pending.sum().item() == 0
    assert x.sum().item() == 1000


def test_backward_frees_what_forward_saved():
    weights = [torch.randn(512, 512, device="tpu", requires_grad=True) for _ in range(6)]

    @torch.compile
    def f(x):
        for w in weights:
            x = (x @ w * 0.04).relu()
        return x.sum()

    x = torch.randn(2048, 512, device="tpu")  # 4 MB, as each activation
    f(x).backward()
    for w in weights:
        w.grad = None
    loss = f(x)
    torch.tpu.synchronize()
    saved = torch.tpu.memory_allocated()
    loss.backward()
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() < saved - 10 * MEGABYTE


# --- optimizers


def weights_of(model):
    return [p.detach().cpu() for p in model.parameters()]


OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01}),
    "SGD for-loop": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "foreach": False}),
    "Adam": (torch.optim.Adam, {"amsgrad": True}),
    "AdamW foreach": (torch.optim.AdamW, {"foreach": True}),
    "AdamW for-loop": (torch.optim.AdamW, {"foreach": False}),
    "AdamW fused": (torch.optim.AdamW, {"fused": True}),
    "AdamW capturable": (torch.optim.AdamW, {"capturable": True}),
    "RMSprop": (torch.optim.RMSprop, {"momentum": 0.5}),
    "Adagrad": (torch.optim.Adagrad, {}),
    "NAdam": (torch.optim.NAdam, {}),
    "Adafactor": (torch.optim.Adafactor, {}),
    "Muon": (torch.optim.Muon, {}),
}


@pytest.mark.parametrize("lr", [0.05, "tensor"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name, lr):
    kind, options = OPTIMIZERS[name]
    if lr == "tensor" and kind is torch.optim.Muon:
        pytest.skip("takes numbers alone")
    if lr == "tensor" and name == "AdamW foreach":
        pytest.skip("PyTorch wants capturable=True")
    if lr == "tensor" and kind in (torch.optim.SGD, torch.optim.Adafactor, torch.optim.NAdam):
        options = options | {"foreach": False}
    torch.manual_seed(0)
    model = Block()
    if kind is torch.optim.Muon:
        for linear in (model.inner, model.outer):
            linear.bias = None
    models = [model, copy.deepcopy(model).to("tpu")]
    for model, device in zip(models, ("cpu", "tpu"), strict=True):
        own = dict(options)
        if device == "cpu":
            own.pop("capturable", None)
        rate = torch.tensor(0.05) if lr == "tensor" else lr
        if own.get("capturable") and lr == "tensor":
            rate = rate.to("tpu")
        optimizer = kind(model.parameters(), lr=rate, **own)
        update = torch.compile(optimizer.step) if device == "tpu" else optimizer.step
        for step in range(4):
            optimizer.zero_grad()
            model(tensor(4, 8, seed=step).to(device)).square().mean().backward()
            update()
    for actual, expected in zip(weights_of(models[1]), weights_of(models[0]), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
    assert torch.tpu.fallbacks() == []
    if "step" in (state := next(iter(optimizer.state.values()))) and not own.get("capturable"):
        assert float(state["step"]) == 4


@pytest.mark.parametrize("foreach", [True, False])
def test_a_changing_learning_rate_does_not_recompile(foreach):
    torch.manual_seed(0)
    models = [Block(), None]
    models[1] = copy.deepcopy(models[0]).to("tpu")
    for model, device in zip(models, ("cpu", "tpu"), strict=True):
        lr = torch.tensor(0.1, device=device)
        optimizer = (
            torch.optim.AdamW(model.parameters(), lr=lr, foreach=foreach, capturable=True)
            if device == "tpu"
            else torch.optim.AdamW(model.parameters(), lr=0.1)
        )
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        update = torch.compile(optimizer.step) if device == "tpu" else optimizer.step
        compiled = []
        for step in range(5):
            optimizer.zero_grad()
            model(tensor(4, 8, seed=step).to(device)).square().mean().backward()
            update()
            schedule.step()
            compiled.append(torch.tpu.compilations()["count"])
    for actual, expected in zip(weights_of(models[1]), weights_of(models[0]), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
    assert compiled[-1] == compiled[2], compiled


def test_a_learning_rate_as_a_number_in_cpu_memory_does_not_recompile():
    model = Block().to("tpu")
    lr = torch.tensor(0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, foreach=False)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    update = torch.compile(optimizer.step)
    graphs = []
    for step in range(5):
        optimizer.zero_grad()
        model(tensor(4, 8, seed=step).to("tpu")).square().mean().backward()
        update()
        schedule.step()
        graphs.append((counters["stats"]["unique_graphs"], torch.tpu.compilations()["count"]))
    assert graphs[-1] == graphs[2], graphs


def test_a_constant_of_the_graph_can_be_cached():
    def f(x):
        return x * torch.tensor([1.0, 2.0]).to(x.device) + torch.tensor(3.0)

    for entry in ("autograd_cache_miss", "autograd_cache_hit"):
        torch._dynamo.reset()
        counters.clear()
        x = torch.ones(2, device="tpu", requires_grad=True)
        torch.compile(f)(x).sum().backward()
        same(x.grad.cpu(), torch.tensor([1.0, 2.0]))
        assert counters["aot_autograd"][entry] == 1
        assert counters["aot_autograd"]["autograd_cache_bypass"] == 0


def test_operators_that_check_their_results_are_compiled_twice():
    """The second time AOTAutograd's cache may answer."""
    x = torch.randn(3, 3) + 4 * torch.eye(3)
    for _ in range(2):
        torch._dynamo.reset()
        compiled_agrees(lambda x: torch.linalg.solve(x, x + 1) + torch.linalg.inv(x), x)


# --- graph breaks, operators that need data


def test_graph_breaks():
    def f(x):
        y = x.sin()
        torch._dynamo.graph_break()
        if y.sum() > 0:
            return y * 2
        return y - 1

    for seed in (0, 1, 2):
        x = tensor(5, seed=seed)
        same(torch.compile(f)(x.to("tpu")).cpu(), f(x), tolerance=1e-6)
    assert counters["graph_break"]
    assert counters["stats"]["unique_graphs"] >= 3


def test_items():
    def f(x):
        return x * x.sum().item()

    x = tensor(5)
    same(torch.compile(f)(x.to("tpu")).cpu(), f(x), tolerance=1e-5)
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        g = torch.compile(f, fullgraph=True)
        for seed in (0, 1):
            x = tensor(5, seed=seed)
            same(g(x.to("tpu")).cpu(), f(x), tolerance=1e-5)
    assert counters["stats"]["unique_graphs"] == 1


def test_shapes_that_depend_on_data():
    def f(x):
        places = x.nonzero()
        return places, x[places[:, 0]] * 2, x[x > 1] + 1

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        g = torch.compile(f, fullgraph=True)
        for seed in (0, 1, 2):
            x = tensor(6, seed=seed).round()
            same(moved(g(x.to("tpu")), "cpu"), f(x))
    assert counters["stats"]["unique_graphs"] == 1


def test_questions_about_the_device_are_constants():
    def f(x):
        if torch.tpu.is_available() and torch.accelerator.current_accelerator().type == "tpu":
            return x + torch.tpu.device_count()
        return x

    out = torch.compile(f, fullgraph=True)(torch.zeros(2, device="tpu"))
    assert out.sum().item() == 2 * torch.tpu.device_count()


FUNCTIONS_OF_THE_DEVICE = {
    "synchronize": lambda: torch.tpu.synchronize(),
    "manual_seed": lambda: torch.tpu.manual_seed(5),
    "memory_allocated": lambda: torch.tpu.memory_allocated(),
    "rng_state": lambda: torch.tpu.set_rng_state(torch.tpu.get_rng_state()),
    "fallbacks": lambda: torch.tpu.fallbacks(),
}


@pytest.mark.parametrize("name", FUNCTIONS_OF_THE_DEVICE)
def test_functions_of_the_device_break_the_graph(name):
    call = FUNCTIONS_OF_THE_DEVICE[name]

    @torch.compile
    def f(x):
        y = x.sin()
        call()
        return y * 2

    x = tensor(3)
    same(f(x.to("tpu")).cpu(), x.sin() * 2, tolerance=1e-6)
    assert sum(counters["graph_break"].values()) >= 1


def test_generators_are_saved_and_restored_around_compiled_code():
    def f(x):
        with torch.random.fork_rng(devices=[0], device_type="tpu"):
            torch.manual_seed(3)
            inner = torch.rand_like(x)
        return inner, torch.rand_like(x)

    x = torch.zeros(4, device="tpu")
    results = []
    for function in (f, torch.compile(f)):
        torch.manual_seed(9)
        results.append(moved(function(x), "cpu"))
    same(results[1], results[0])


# --- operators of others


@pytest.fixture
def library():
    with torch.library._scoped_library("compile_test", "FRAGMENT") as library:
        yield library


def test_a_custom_operator_made_of_others(library):
    library.define("twice_sine(Tensor x) -> Tensor")
    library.impl("twice_sine", lambda x: x.sin() * 2, "CompositeImplicitAutograd")
    compiled_agrees(torch.ops.compile_test.twice_sine, tensor(4, grad=True), graphs=1)


def test_a_custom_operator_made_of_others_without_autograd(library):
    library.define("twice_cosine(Tensor x) -> Tensor")
    library.impl("twice_cosine", lambda x: x.cos() * 2, "CompositeExplicitAutograd")
    compiled_agrees(lambda x: torch.ops.compile_test.twice_cosine(x + 1) - 1, tensor(4), graphs=1)


def test_a_custom_operator_by_decorator():
    @torch.library.custom_op("compile_test::scaled", mutates_args=())
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    scaled.register_fake(lambda x, factor: torch.empty_like(x))
    scaled.register_autograd(lambda ctx, g: (g * 3.0, None))
    compiled_agrees(lambda x: scaled(x.sin(), 3.0).cos(), tensor(4, grad=True), graphs=1)


def test_a_custom_operator_that_writes():
    @torch.library.custom_op("compile_test::fill", mutates_args=("x",))
    def fill(x: torch.Tensor, y: torch.Tensor) -> None:
        x.copy_(y * 2)

    fill.register_fake(lambda x, y: None)

    def f(x, y):
        fill(x, y + 1)
        return x * 3

    compiled_agrees(f, tensor(4), tensor(4, seed=1), graphs=1)


def test_a_kernel_for_the_cpu_alone_cuts_the_graph(library):
    library.define("on_cpu(Tensor x) -> Tensor")
    library.impl("on_cpu", lambda x: torch.from_numpy(x.numpy() + 1), "CPU")
    library.impl("on_cpu", lambda x: torch.empty_like(x), "Meta")

    def f(x):
        return torch.ops.compile_test.on_cpu(x.sin()).cos()

    x = tensor(4)
    g = torch.compile(f, fullgraph=True)
    with pytest.warns(UserWarning, match="cannot be part of a program"):
        same(g(x.to("tpu")).cpu(), f(x), tolerance=1e-6)
    same(g(x.to("tpu")).cpu(), f(x), tolerance=1e-6)
    assert {r["op"] for r in torch.tpu.fallbacks()} == {"compile_test::on_cpu"}
    assert counters["stats"]["unique_graphs"] == 1


def test_an_operator_without_a_rule_may_be_an_error(library):
    library.define("nowhere(Tensor x) -> Tensor")
    library.impl("nowhere", lambda x: x.clone(), "CPU")
    library.impl("nowhere", lambda x: torch.empty_like(x), "Meta")
    g = torch.compile(lambda x: torch.ops.compile_test.nowhere(x + 1) * 2)
    x = torch.ones(3, device="tpu")
    torch.tpu.set_fallback_policy("error")
    try:
        with pytest.raises(NotImplementedError, match="compile_test::nowhere"):
            g(x)
    finally:
        torch.tpu.set_fallback_policy("warn")
    same(g(x).cpu(), torch.full((3,), 4.0))


# --- errors and debugging


def test_an_index_out_of_range_is_an_error_at_synchronisation():
    f = torch.compile(lambda x, i: x[i] * 2)
    x = torch.arange(4.0, device="tpu")
    out = f(x, torch.tensor([1, 9], device="tpu"))
    with pytest.raises(IndexError, match="index"):
        out.cpu()
    same(f(x, torch.tensor([1, 3], device="tpu")).cpu(), torch.tensor([2.0, 6.0]))


def test_an_embedding_out_of_range_names_its_operator():
    f = torch.compile(torch.nn.functional.embedding)
    weight = torch.ones(4, 2, device="tpu")
    f(torch.tensor([4], device="tpu"), weight)
    with pytest.raises(IndexError, match="embedding"):
        torch.tpu.synchronize()


def test_errors_of_shapes_are_those_of_eager_mode():
    f = torch.compile(lambda x, y: x @ y)
    with pytest.raises(RuntimeError, match=r"shape|size"):
        f(torch.ones(2, 3, device="tpu"), torch.ones(2, 3, device="tpu"))


def test_debug_mode_finds_the_operator():
    f = torch.compile(lambda x: (x.log() * 2).sum())
    x = torch.tensor([1.0, -1.0], device="tpu")
    assert f(x).isnan().item()
    torch.tpu.set_eager_mode("debug")
    with pytest.raises(RuntimeError, match="log"):
        f(x)
    torch.tpu.set_eager_mode("strict")
    assert f(x).isnan().item()


def test_debug_mode_computes_the_same():
    torch.tpu.set_eager_mode("debug")
    compiled_agrees(MUTATIONS["a slice"], tensor(4, 3), tensor(4, 3, seed=1))
    model = Block(p=0.5)
    compiled_agrees(lambda x: x.sin().cumsum(0), tensor(4, 3, grad=True))
    assert model.p == 0.5
