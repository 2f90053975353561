"""Branches, loops and other higher-order operators: compiled without reading data on the host."""

import pathlib
import warnings

import pytest
import torch
from agreement import moved, same
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan, scan_op
from torch._higher_order_ops.while_loop import while_loop, while_loop_op
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from torch_tpu.compile import capture, executable


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.tpu.clear_fallbacks()
    executable._told.clear()


@pytest.fixture
def stages(monkeypatch):
    """The number of stages of each compiled graph that has run."""
    found = []
    call = executable.Executable.__call__

    def counted(self, inputs):
        results = call(self, inputs)
        found.append(len(self.stages))
        return results

    monkeypatch.setattr(executable.Executable, "__call__", counted)
    return found


def leaves(value):
    return torch.utils._pytree.tree_leaves(value)


def given(arguments, device):
    copies = moved(list(arguments), device)
    for copied, original in zip(copies, arguments, strict=True):
        copied.requires_grad_(original.requires_grad)
    return copies


def compiled_agrees(function, *arguments, tolerance=1e-6):
    """Results and gradients are those of eager PyTorch on the CPU, out of one graph."""

    def run(function, device):
        tensors = given(arguments, device)
        results = function(*tensors)
        wanted = [r.float().square().sum() for r in leaves(results) if r.requires_grad]
        if wanted:
            sum(wanted).backward()
        return leaves(results), [t.grad for t in tensors]

    expected = run(function, "cpu")
    with warnings.catch_warnings():
        # That a graph was cut, or that something ran on the CPU.
        warnings.filterwarnings("error", message="torch.compile on tpu")
        actual = run(torch.compile(function, fullgraph=True), "tpu")
    for result, of_cpu in zip(actual[0], expected[0], strict=True):
        same(result.detach(), of_cpu.detach(), tolerance=tolerance)
    same(actual[1], expected[1], "gradients", tolerance)
    assert torch.tpu.fallbacks() == []


def written(function, *arguments):
    """The StableHLO text of a function."""
    module = make_fx(function)(*arguments)
    return capture.to_stablehlo(module, arguments, "tpu").text


def on_tpu(*values):
    return [torch.as_tensor(v).to("tpu") for v in values]


# --- cond


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cond_takes_the_branch(stages, sign):
    def function(p, x):
        return torch.cond(p.sum() > 0, lambda x: (x.sin(), x + 1), lambda x: (x.cos(), x * 2), (x,))

    compiled_agrees(function, sign * torch.ones(2), torch.randn(3, 4))
    compiled_agrees(function, sign * torch.ones(2), torch.randn(3, 4).t())
    assert stages == [1, 1]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cond_has_gradients(stages, sign):
    w = torch.randn(4, 4, requires_grad=True)

    def function(p, x, w):
        return torch.cond(p.sum() > 0, lambda x: (x @ w).sin() * x, lambda x: x.exp(), (x,))

    compiled_agrees(function, sign * torch.ones(2), torch.randn(3, 4, requires_grad=True), w)
    assert stages == [1, 1]


def test_one_program_serves_both_branches():
    function = torch.compile(
        lambda p, x: torch.cond(p, lambda x: x + 1, lambda x: x - 1, (x,)), fullgraph=True
    )
    x = torch.zeros(2, device="tpu")
    assert function(torch.tensor(True, device="tpu"), x).tolist() == [1, 1]
    before = torch.tpu.compilations()["count"]
    assert function(torch.tensor(False, device="tpu"), x).tolist() == [-1, -1]
    assert torch.tpu.compilations()["count"] == before


def test_cond_is_an_if():
    def function(p, x):
        return torch.ops.higher_order.cond(
            p, lambda x: (x.sin(),), lambda x: (torch.ops.higher_order.cond(
                p, lambda x: (x.cos(),), lambda x: (x.exp(),), (x,))), (x,)
        )[0]  # fmt: skip

    text = written(function, torch.tensor(True), torch.randn(3))
    assert text.count("stablehlo.if") == 2


def test_branches_must_return_the_same_shapes():
    def function(x):
        return torch.cond(x.sum() > 0, lambda x: x[:2] * 2, lambda x: x.t() * 2, (x,))

    errors = []
    for backend, device in (("eager", "cpu"), ("tpu", "tpu")):
        torch._dynamo.reset()
        with pytest.raises(Exception) as caught:
            torch.compile(function, backend=backend)(torch.ones(3, 4, device=device))
        errors.append(caught)
    assert errors[0].type is errors[1].type
    assert str(errors[0].value).splitlines()[0] == str(errors[1].value).splitlines()[0]


def test_eager_cond_loop_and_scan():
    def branch(p, x):
        return torch.cond(p.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    def loop(p, x):
        return while_loop(lambda p, x: p.sum() < 9, lambda p, x: (p + 1, x * 1.5), (p, x))

    def scanned(p, x):
        return scan(lambda c, x: (c + x, c * x), p, x)

    for function in (branch, loop, scanned):
        arguments = torch.ones(2), torch.randn(3, 2)
        same(function(*moved(arguments, "tpu")), function(*arguments), tolerance=1e-6)


# --- while_loop


def test_while_loop_ends_by_data(stages):
    def function(i, x):
        return while_loop(
            lambda i, x: x.sum() < 50, lambda i, x: (i + 1, x.abs() * 1.5 + i), (i, x)
        )

    compiled_agrees(function, torch.tensor(0), torch.rand(3, 4))
    compiled_agrees(function, torch.tensor(0), torch.rand(3, 4) + 50)  # no iteration
    assert stages == [1, 1]


@pytest.mark.parametrize("uses_number", [False, True])
def test_while_loop_carries_python_numbers(stages, uses_number):
    def function(x):
        i, y = while_loop(
            lambda i, x: 2 * i < x.shape[0], lambda i, x: (i + 1, x * 1.5 + i), (0, x)
        )
        return y + i if uses_number else y

    compiled_agrees(function, torch.randn(6, 4))
    assert stages == [1]


def test_a_number_that_a_loop_counts_is_a_number():
    def function(x):
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 2, x + i), (0, x))

    i, y = torch.compile(function, fullgraph=True)(torch.zeros(2, device="tpu"))
    assert (type(i), i, y.tolist()) == (int, 6, [6, 6])


def test_a_branch_in_a_loop(stages):
    def function(p, x):
        def body(i, x):
            return i + 1, torch.cond(x.sum() > p.sum(), lambda x: x - 1, lambda x: x * 2 + 1, (x,))

        start = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda i, x: i < 4, body, (start, x))

    compiled_agrees(function, torch.ones(2), torch.randn(3, 4))
    assert stages == [1]


def test_a_loop_writes_to_a_buffer(stages):
    def function(x, buffer):
        def body(i, x):
            buffer.add_(x.sum())
            return i + 1, x * 1.5

        start = torch.zeros((), dtype=torch.int64, device=x.device)
        return (*while_loop(lambda i, x: i < 3, body, (start, x)), buffer * 2)

    with torch.no_grad():
        compiled_agrees(function, torch.ones(3), torch.zeros(2))
    assert stages == [1]


def test_the_gradient_of_while_loop_cuts_the_graph(stages):
    def function(i, x):
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * x.sin()), (i, x))[1]

    x = torch.randn(3, requires_grad=True)
    function(torch.tensor(0), x).sum().backward()
    y = x.detach().to("tpu").requires_grad_()
    with pytest.warns(UserWarning, match="gradient of while_loop"):
        torch.compile(function, fullgraph=True)(torch.tensor(0, device="tpu"), y).sum().backward()
    same(y.grad, x.grad, tolerance=1e-6)
    assert max(stages) > 1


# --- scan, map, associative_scan


def test_scan(stages):
    def function(c, x, w):
        return scan(lambda c, x: ((c @ w).tanh() + x, c.sum(-1)), c, x)

    shapes = (2, 4), (7, 2, 4), (4, 4)
    compiled_agrees(function, *(torch.randn(s, requires_grad=True) for s in shapes), tolerance=1e-4)
    assert stages == [1, 1]


def test_scan_along_another_dimension_and_backwards(stages):
    def function(c, x):
        return scan(lambda c, x: (c + x, (c * x).clone()), c, x, dim=1, reverse=True)

    compiled_agrees(function, torch.randn(2, 4), torch.randn(2, 5, 4))
    assert stages == [1]


def test_scan_is_a_loop_of_the_same_size_for_any_length():
    def function(c, x):
        return scan_op(lambda c, x: (c + x, (c * x).sin()), [c], [x], ())

    short, long = (written(function, torch.randn(3), torch.randn(n, 3)) for n in (4, 400))
    assert short.count("stablehlo.while") == 1
    assert len(long.splitlines()) == len(short.splitlines())


def test_map(stages):
    def function(x, y):
        return map_over(lambda x, y: (x.sin() * y, x.sum()), x, y)

    compiled_agrees(
        function, torch.randn(5, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    )
    assert stages == [1, 1]


def test_associative_scan_is_logarithmic(stages):
    def function(x):
        return associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic")

    compiled_agrees(function, torch.rand(13, 3, requires_grad=True), tolerance=1e-5)
    assert stages == [1, 1]
    products = [written(function, torch.rand(n, 2)).count("stablehlo.multiply") for n in (16, 256)]
    assert products[1] < 2.5 * products[0]


def test_associative_scan_of_pairs():
    def combine(a, b):
        return a[0] * b[0], b[0] * a[1] + b[1]

    def function(x, y):
        return associative_scan(combine, (x, y), 1, reverse=True, combine_mode="generic")

    compiled_agrees(function, torch.rand(3, 6), torch.rand(3, 6), tolerance=1e-5)


# --- random numbers


def agrees_with_eager_tpu(function, *arguments):
    """The same numbers as eager, and the generator moves on by as many."""
    results = []
    for call in (function, torch.compile(function, fullgraph=True)):
        torch.manual_seed(3)
        results.append([call(*arguments), torch.tpu.get_rng_state()])
    for actual, expected in zip(leaves(results[1]), leaves(results[0]), strict=True):
        torch.testing.assert_close(actual.cpu(), expected.cpu())


def test_random_numbers_in_a_branch():
    def function(x):
        more = torch.cond(
            x.sum() > 0, lambda x: x + torch.rand_like(x) * torch.rand_like(x), torch.cos, (x,)
        )
        return more + torch.rand_like(x)

    agrees_with_eager_tpu(function, torch.ones(3, 4, device="tpu"))


def test_random_numbers_in_a_scan_differ_by_step():
    def function(x):
        c, y = scan(lambda c, x: (c + torch.rand_like(c), torch.dropout(x, 0.5, True)), x[0], x)
        return c, y, torch.rand(3, device=x.device)

    agrees_with_eager_tpu(function, torch.ones(6, 8, device="tpu"))


def test_random_numbers_in_a_loop():
    def function(x):
        return while_loop(lambda x: x.sum() < 20, lambda x: (x + torch.rand_like(x),), (x,))[0]

    x = torch.ones(3, 4, device="tpu")
    torch.manual_seed(3)
    expected = function(x)
    compiled = torch.compile(function, fullgraph=True)
    torch.manual_seed(3)
    torch.testing.assert_close(compiled(x).cpu(), expected.cpu())
    assert not torch.equal(compiled(x).cpu(), expected.cpu())


# --- checks


@pytest.mark.parametrize(("sign", "index", "fails"), [(1, 2, False), (1, 7, True), (-1, 7, False)])
def test_a_check_counts_in_the_branch_that_is_taken(stages, sign, index, fails):
    def function(p, x, i):
        return torch.cond(p.sum() > 0, lambda x, i: x[i] * 1, lambda x, i: x[:2] * 2, (x, i))

    compiled = torch.compile(function, fullgraph=True)
    arguments = on_tpu([float(sign)], torch.arange(5.0), [1, index])
    if fails:
        with pytest.raises(IndexError, match="out of range"):
            compiled(*arguments).cpu()
    else:
        assert compiled(*arguments).tolist() == ([1, 2] if sign > 0 else [0, 2])
    assert stages == [1]


@pytest.mark.parametrize("index", [[0, 1, 2], [0, 9, 2]])
def test_a_check_in_a_scan_is_kept_after_the_step(stages, index):
    def function(x, i):
        def body(c, i):
            return c + torch.index_select(x, 0, i), c.clone()

        return scan(body, x[:1].clone(), i.unsqueeze(1))[0]

    compiled = torch.compile(function, fullgraph=True)
    arguments = on_tpu(torch.arange(5.0), index)
    if 9 in index:
        with pytest.raises(IndexError, match="out of range"):
            compiled(*arguments).cpu()
    else:
        assert compiled(*arguments).tolist() == [3]
    assert stages == [1]


@pytest.mark.parametrize("where", ["condition", "body"])
def test_a_failed_check_ends_a_loop(stages, where):
    def function(x, i):
        def element(k):
            return torch.index_select(x, 0, k).sum()

        if where == "condition":
            return while_loop(lambda k: element(k) < 100, lambda k: (k + 1,), (i,))[0]
        return while_loop(
            lambda k, v: v < 100, lambda k, v: (k + 1, element(k)), (i, element(i) * 1)
        )[0]

    compiled = torch.compile(function, fullgraph=True)
    first = torch.tensor([0], device="tpu")
    found = compiled(torch.tensor([1.0, 2.0, 300.0], device="tpu"), first)
    assert found.tolist() == ([2] if where == "condition" else [3])
    with pytest.raises(IndexError, match="out of range"):
        compiled(torch.tensor([1.0, 2.0, 3.0], device="tpu"), first).cpu()
    assert set(stages) == {1}


# --- what else a graph may hold


def test_checkpoint(stages):
    def function(x, w):
        return checkpoint(lambda x: ((x @ w).relu() @ w).sin(), x, use_reentrant=False) * 2

    compiled_agrees(function, *(torch.randn(4, 4, requires_grad=True) for _ in range(2)))
    assert stages == [1, 1]


def test_checkpoint_draws_the_same_dropout_again(stages):
    def block(x, w):
        return torch.dropout((x @ w).sin(), 0.5, True) @ w

    def function(x, w):
        return checkpoint(lambda x: block(x, w), x, use_reentrant=False)

    results = []
    for call in (block, torch.compile(function, fullgraph=True)):
        torch.manual_seed(1)
        tensors = [torch.eye(8, device="tpu").mul(i + 1).requires_grad_() for i in range(2)]
        result = call(*tensors)
        torch.rand(5, device="tpu")
        result.sum().backward()
        results.append([result, *(t.grad for t in tensors)])
    for actual, expected in zip(*reversed(results), strict=True):
        torch.testing.assert_close(actual.cpu(), expected.cpu())
    assert stages == [1, 1]


def test_nested_compile_region(stages):
    @torch.compiler.nested_compile_region
    def region(x, y):
        return (x @ y).tanh()

    compiled_agrees(
        lambda x, y: region(region(x, y), y),
        *(torch.randn(4, 4, requires_grad=True) for _ in range(2)),
        tolerance=1e-5,
    )
    assert stages == [1, 1]


def test_an_operator_that_writes_to_its_arguments(stages):
    @torch.library.custom_op("control_flow_test::add_into", mutates_args={"out"})
    def add_into(x: torch.Tensor, out: torch.Tensor) -> None:
        out.add_(x * 2)

    def function(x):
        out = torch.zeros_like(x)
        add_into(x, out)
        row = out[0]
        add_into(x[0], row)
        return out * 1, row + 1, x.sin()

    compiled_agrees(function, torch.randn(4, 4, requires_grad=True))
    assert set(stages) == {1}


def test_an_operator_with_a_gradient_of_its_own(stages):
    @torch.library.custom_op("control_flow_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + torch.sin(x)

    twice.register_fake(torch.empty_like)
    twice.register_autograd(
        lambda ctx, g: g * (2 + torch.cos(ctx.saved_tensors[0])),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    compiled_agrees(lambda x: twice(x) * 3, torch.randn(4, 4, requires_grad=True))
    assert stages == [1, 1]


def test_autograd_function(stages):
    class Tripled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0] * 3

    compiled_agrees(lambda x: Tripled.apply(x) * 2, torch.randn(4, 4, requires_grad=True))
    assert stages == [1, 1]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.func.vmap(lambda a: (a * y).sin().sum())(x),
        lambda x, y: torch.func.grad(lambda a: (a.sin() * y).sum())(x),
        lambda x, y: torch.func.jvp(lambda a: a.sin() * a, (x,), (x + y,)),
        lambda x, y: torch.func.vmap(torch.func.grad(lambda a: (a.sin() * a * y).sum()))(x),
        lambda x, y: torch.func.vmap(
            lambda p, a: torch.cond(p, lambda a: a.sin(), lambda a: a.cos(), (a,))
        )(x.sum(1) > 0, x),
    ],
    ids=["vmap", "grad", "jvp", "vmap_of_grad", "vmap_of_cond"],
)
def test_function_transforms(function):
    compiled_agrees(function, torch.randn(4, 3), torch.randn(3))


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_autocast_reaches_bodies(mode):
    def function(x):
        y = torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x @ x * 2, (x,))
        return y, scan(lambda c, x: (c + x, (c @ x).float()), x, x.unsqueeze(0) * 2)[1]

    def run(device, call):
        with torch.autocast(device, dtype=torch.bfloat16):
            return call(torch.ones(4, 4, device=device))

    call = function if mode == "eager" else torch.compile(function, fullgraph=True)
    expected = run("cpu", function)
    same(run("tpu", call), expected)
    assert expected[0].dtype is torch.bfloat16


def test_debug_mode_runs_operator_by_operator():
    def function(c, x):
        y = map_over(lambda x, c: x * c, x, c)
        _, z = while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z + i), (0, c))
        z = torch.cond(z.sum() > 0, torch.sin, torch.cos, (z,))
        return scan(lambda c, x: (c + x, (c * x).clone()), z, y)

    arguments = torch.rand(3), torch.rand(4, 3)
    torch.tpu.set_eager_mode("debug")
    try:
        actual = torch.compile(function, fullgraph=True)(*moved(arguments, "tpu"))
    finally:
        torch.tpu.set_eager_mode("strict")
    same(actual, function(*arguments), tolerance=1e-6)


# --- compiling for a TPU


def test_branches_and_loops_compile_for_a_tpu(tmp_path: pathlib.Path):
    pytest.importorskip("libtpu")
    from torch_tpu import aot

    def branch(p, x):
        return torch.ops.higher_order.cond(p, lambda x: (x.sin(),), lambda x: (x @ x,), (x,))[0]

    def loop(i, x):
        return while_loop_op(lambda i, x: i < 10, lambda i, x: (i + 1, x * 1.5 + i), (i, x), ())

    def scanned(c, x):
        return scan_op(lambda c, x: ((c @ x).tanh(), c.sum(-1)), [c], [x], ())

    x = torch.randn(16, 16)
    files = []
    for function, first, second in (
        (branch, torch.tensor(True), x),
        (loop, torch.tensor(0), x),
        (scanned, x, torch.randn(9, 16, 16)),
    ):
        files.append(tmp_path / f"{function.__name__}.mlir")
        files[-1].write_text(written(function, first, second))
    reports = aot.compile_modules(files, "v5e:1x1", jobs=1)
    assert [r.status for r in reports] == [aot.Status.OK] * 3
