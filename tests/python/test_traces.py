"""Dynamo's traces kept on disk: found where they hold, and nowhere else."""

import json
import pickle
from unittest import mock

import child
import compiled_graphs
import pytest
import torch
from agreement import same
from torch._dynamo import convert_frame

from torch_tpu import _C
from torch_tpu.compile.traces import store

DEVICE = "tpu"


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(store, "_enabled", True)
    torch.tpu.cache.clear()
    compiled_graphs.forget()


def count_traces():
    """How many frames Dynamo traces."""
    return mock.patch.object(convert_frame, "trace_frame", wraps=convert_frame.trace_frame)


def on_tpu(values):
    """Copies on tpu, one of each tensor, whose views stay what they are."""
    copies = {}

    def move(value):
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in copies:
            storage = torch.empty(0, dtype=value.dtype, device=DEVICE)
            storage.set_(value.untyped_storage().to(device=DEVICE))
            copy = storage.as_strided(value.size(), value.stride(), value.storage_offset())
            is_parameter = isinstance(value, torch.nn.Parameter)
            copies[id(value)] = torch.nn.Parameter(copy) if is_parameter else copy
        return copies[id(value)]

    return torch.utils._pytree.tree_map(move, values)


def copied(values):
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, values)


def compiled(function, *arguments):
    """The result of `function` on tpu and how often it was traced, with an empty Dynamo."""
    torch._dynamo.reset()
    with torch.no_grad(), count_traces() as traced:
        result = torch.compile(function)(*on_tpu(arguments))
    return result, traced.call_count


def kept(function, *arguments, tolerance=1e-6):
    """A second, empty Dynamo finds the trace of `function`; both results are the CPU's."""
    with torch.no_grad():
        expected = function(*copied(arguments))
    for traces in (1, 0):
        result, count = compiled(function, *arguments)
        same(result, expected, tolerance=tolerance)
        assert count == traces


def retraced(function, *arguments):
    with torch.no_grad():
        expected = function(*copied(arguments))
    result, count = compiled(function, *arguments)
    same(result, expected, tolerance=1e-6)
    assert count == 1


x = torch.linspace(-2, 3, 12).reshape(3, 4)


class Model(torch.nn.Module):
    scale = 2

    def __init__(self, width=4):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(3))
        for parameter in self.parameters():
            parameter.data.normal_(generator=generator)
        self.register_buffer("steps", torch.zeros(1))
        self.activation = "relu"
        self.calls = 0

    def inner(self, x):
        return getattr(torch, self.activation)(x) * self.scale

    def forward(self, x):
        self.calls += 1
        self.steps.add_(1)
        for layer in self.layers:
            x = self.inner(layer(x))
        return x, tuple(x.shape)


def called(model, x):
    return model(x)


def run_model(change=lambda model: None, x=x):
    """A new model after `change`, on the CPU and compiled on the tpu; how often it was traced."""
    models = [Model(), Model().to(DEVICE)]
    for model in models:
        change(model)
    with torch.no_grad():
        expected = called(models[0], x)
    result, count = compiled(called, models[1], x)
    same(result, expected, tolerance=1e-5)
    assert models[1].calls == models[0].calls == 1
    same(models[1].steps, models[0].steps)
    return count


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 + 1,
        lambda x: torch.nn.functional.softmax(x @ x.t(), dim=-1, dtype=torch.float32),
        lambda x: [x.sum(0), (x.mean(), 2), 3, None, "text"],
        lambda x: x.clone().add_(1).view(-1)[1:5].exp(),
        lambda x: (x.to(torch.bfloat16).exp() > 1).sum(),
        lambda x: torch.arange(x.shape[1], device=x.device) + x,
        lambda x: torch.ops.aten.mul(torch.ops.aten.add.Tensor(x, x), 2),
        lambda x: torch.where(x > 0, x, torch.full_like(x, float("nan"))).nan_to_num(-0.0),
    ],
)
def test_functions(function):
    kept(function, x)


def test_the_result_may_be_written_by_the_caller():
    def step(state, x):
        state["total"] += x.sum()
        state["seen"].append(len(state["seen"]))
        x.mul_(2)
        return state["total"] * x

    for traces in (1, 0):
        outcomes = []
        for function, device in ((step, "cpu"), (torch.compile(step), DEVICE)):
            state = {"total": torch.zeros((), device=device), "seen": []}
            given = x.clone().to(device)
            torch._dynamo.reset()
            with torch.no_grad(), count_traces() as traced:
                result = function(state, given)
            outcomes.append((result, state["total"], state["seen"], given))
        same(outcomes[1], outcomes[0], tolerance=1e-6)
        assert traced.call_count == traces


def test_modules():
    assert run_model() == 1
    assert run_model() == 0
    # Again, with the first code still there.
    assert run_model() == 0


def change_weight(model):
    model.layers[1].weight.data.mul_(0.5)


def set_activation(model):
    model.activation = "tanh"


def add_hook(model):
    model.layers[0].register_forward_hook(lambda module, inputs, output: output + 1)


def replace_forward(model):
    model.layers[2].forward = lambda x: x + 5


def drop_layer(model):
    del model.layers[1]


def tie(model):
    model.layers[2].weight = model.layers[0].weight


def test_values_are_not_part_of_a_trace():
    assert run_model() == 1
    assert run_model(change_weight) == 0


@pytest.mark.parametrize("change", [set_activation, add_hook, replace_forward, drop_layer, tie])
def test_changed_modules_are_traced(change):
    assert run_model() == 1
    assert run_model(change) == 1
    # Both are kept now.
    assert run_model() == 0


def test_a_replaced_method_is_seen(monkeypatch):
    assert run_model() == 1
    monkeypatch.setattr(Model, "inner", lambda self, x: x - 7)
    assert run_model() == 1


def test_a_class_attribute_is_seen(monkeypatch):
    assert run_model() == 1
    monkeypatch.setattr(Model, "scale", 3)
    assert run_model() == 1


def test_a_replaced_function_of_pytorch_is_seen(monkeypatch):
    def activated(x):
        return torch.nn.functional.silu(x)

    kept(activated, x)
    monkeypatch.setattr(torch.nn.functional, "silu", lambda x, inplace=False: x * 100)
    retraced(activated, x)


OFFSET = 1


def helper(x, by=2):
    return x * by + OFFSET


def uses_helper(x):
    return helper(x)


@pytest.mark.parametrize(
    "name, value", [("OFFSET", 5), ("OFFSET", 1.0), ("helper", lambda x: x - 9)]
)
def test_globals_are_seen(monkeypatch, name, value):
    kept(uses_helper, x)
    monkeypatch.setitem(globals(), name, value)
    retraced(uses_helper, x)


def test_defaults_are_seen(monkeypatch):
    kept(uses_helper, x)
    monkeypatch.setattr(helper, "__defaults__", (7,))
    retraced(uses_helper, x)


def test_cells_are_seen():
    def make(by):
        return lambda x: x * by

    kept(make(2), x)
    retraced(make(3), x)
    result, count = compiled(make(2), x)
    same(result, x * 2)
    assert count == 0


def test_which_functions_are_the_same_is_seen():
    def make(by):
        return lambda x: x * by

    def compared(x, f, g):
        return f(x) if f is g else g(x) + 1

    f, g = make(2), make(2)
    kept(compared, x, f, f)
    retraced(compared, x, f, g)


def two(x, y, flag=None):
    x.add_(1)
    return x * y if flag else x - y


@pytest.mark.parametrize(
    "arguments",
    [
        lambda: (torch.ones(3, 4), torch.ones(2, 4)[:1], True),
        lambda: (torch.ones(3, 4), torch.ones(3, 4)),
        lambda: (torch.ones(3, 4).double(), torch.ones(3, 4), True),
        lambda: (torch.ones(4, 3).t(), torch.ones(3, 4), True),
        lambda: (torch.ones(4, 4)[1:], torch.ones(3, 4), True),
        lambda: (torch.ones(3, 4), 2, True),
        lambda: (*[torch.ones(3, 4)] * 2, True),
        lambda: (torch.ones(3, 4), torch.nn.Parameter(torch.ones(3, 4)), True),
    ],
    ids=["shape", "flag", "dtype", "strides", "offset", "number", "the same twice", "type"],
)
def test_arguments_are_seen(arguments):
    def first():
        return (torch.ones(3, 4), torch.ones(3, 4), True)

    for traces in (1, 0):
        result, count = compiled(two, *first())
        same(result, two(*first()))
        assert count == traces
    with torch.no_grad():
        expected = two(*arguments())
    result, count = compiled(two, *arguments())
    same(result, expected)
    assert count == 1


def modes(x):
    y = x * 2
    return y if torch.is_grad_enabled() else y + 1


def test_the_state_of_the_process_is_seen():
    kept(modes, x)
    torch._dynamo.reset()
    with count_traces() as traced:
        same(torch.compile(modes)(x.to(DEVICE)), x * 2)
    assert traced.call_count == 1
    with torch.inference_mode(), count_traces() as traced:
        torch._dynamo.reset()
        same(torch.compile(modes)(x.to(DEVICE)), x * 2 + 1)
    assert traced.call_count == 1
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        retraced(modes, x)
    finally:
        torch.set_default_dtype(default)


def test_guards_are_those_of_a_trace():
    kept(two, x, x + 1, True)
    with torch.no_grad(), count_traces() as traced:
        # The frame is restored here; what differs from it is traced.
        for given in [(x, x + 1, True), (x, x + 1, False), (x[:2], x[:2] + 1, True)]:
            same(torch.compile(two)(*on_tpu(given)), two(*copied(given)))
    assert traced.call_count == 2


def test_sizes_that_vary_after_a_restored_trace():
    def scaled(x):
        return x * x.shape[0]

    kept(scaled, torch.ones(5, 4))
    torch._dynamo.reset()
    with torch.no_grad(), count_traces() as traced:
        function = torch.compile(scaled)
        for n in (5, 6, 7, 8):
            same(function(torch.ones(n, 4, device=DEVICE)), torch.full((n, 4), float(n)))
    # As without the store: the second size shows that it varies.
    assert traced.call_count == 1


def test_random_numbers():
    def noise(x):
        return torch.rand_like(x) + x

    results = []
    for traces in (1, 0):
        torch.manual_seed(3)
        result, count = compiled(noise, x)
        assert count == traces
        results.append(result.cpu())
    same(results[1], results[0], tolerance=0)


@torch._dynamo.assume_constant_result
def constant():
    return 3


def uses_constant(x):
    return x * constant()


class WithConstant:
    @torch._dynamo.assume_constant_result
    def constant(self):
        return 4


holder = WithConstant()


def uses_constant_method(x):
    return x * holder.constant()


def raw(x):
    return torch.ops.torch_tpu_test_traces.twice(x) + 1


def breaks(x):
    x = x + 1
    torch._dynamo.graph_break()
    return x * 2


def test_not_kept():
    with torch.library._scoped_library("torch_tpu_test_traces", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        library.impl("twice", lambda x: torch.empty_like(x), "Meta")
        for function in (uses_constant, uses_constant_method, raw):
            for _ in range(2):
                retraced(function, x)
    for _ in range(2):
        with count_traces() as traced, torch.no_grad():
            torch._dynamo.reset()
            same(torch.compile(breaks)(x.to(DEVICE)), breaks(x))
        assert traced.call_count >= 1


def test_gradients_are_traced_every_time():
    weight = torch.ones(4, requires_grad=True)
    for _ in range(2):
        torch._dynamo.reset()
        given = weight.detach().to(DEVICE).requires_grad_()
        torch.compile(lambda w: (w * w).sum())(given).backward()
        same(given.grad, torch.full((4,), 2.0))


def test_other_backends_and_devices_pass_through():
    inductor = mock.patch(
        "torch._inductor.compile_fx.compile_fx", side_effect=lambda module, *rest, **options: module
    )
    for backend, device in (("aot_eager", DEVICE), ("eager", "cpu"), ("inductor", "cpu")):
        for _ in range(2):
            torch._dynamo.reset()
            with torch.no_grad(), inductor, count_traces() as traced:
                expected = modes(x)
                same(torch.compile(modes, backend=backend)(x.to(device)), expected)
            assert traced.call_count == 1


def test_torn_entries_are_traced(monkeypatch):
    kept(modes, x)
    load = _C.load_cached
    for damage in (
        lambda entry: b"no pickle",
        lambda entry: entry[: len(entry) // 2],
        lambda entry: pickle.dumps(["not an entry"]),
        lambda entry: pickle.dumps({"not": "an entry"}),
    ):
        monkeypatch.setattr(
            _C, "load_cached", lambda key, damage=damage: pickle.dumps([damage(load(key) or b"")])
        )
        retraced(modes, x)


def test_somebody_who_looks_sees_traces():
    kept(modes, x)
    torch._logging.set_logs(graph_code=True)
    try:
        retraced(modes, x)
    finally:
        torch._logging.set_logs()


def in_order(x, parts):
    for part in parts.values():
        x = x * 2 + part
    return x


def test_the_order_of_keys_is_seen():
    parts = {"a": torch.ones(3, 4), "b": torch.full((3, 4), 2.0)}
    kept(in_order, x, parts)
    retraced(in_order, x, {name: parts[name] for name in ("b", "a")})


def test_turned_off(monkeypatch):
    kept(modes, x)
    with torch.compiler.config.patch(force_disable_caches=True):
        retraced(modes, x)
    monkeypatch.setattr(store, "_enabled", False)
    retraced(modes, x)


def test_errors_name_the_line():
    def wrong(x):
        y = x + 1
        return y / 0 if y is None else y.bernoulli(2.0 + 0 * y.size(0))

    messages = []
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            compiled(wrong, x)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


SCRIPT = """
import enum, json, os, sys
import torch
from torch._dynamo import convert_frame

class Kind(enum.Enum):
    GOOD = {kind}

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.kinds = {{"a": Kind.GOOD}}

    def forward(self, x, names=frozenset(("p", "q", "r"))):
        {line}
        for name in ("p", "s"):
            if name in names:
                x = torch.nn.functional.gelu(self.linear(x))
        return x * self.kinds["a"].value

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(3)))

    def forward(self, x):
        return self.blocks(x)

traces = []
trace = convert_frame.trace_frame
convert_frame.trace_frame = lambda *a, **k: (traces.append(1), trace(*a, **k))[1]
torch.manual_seed(0)
net = Net()
x = torch.linspace(-1, 1, 8).reshape(2, 4)
with torch.no_grad():
    expected = net(x)
    net.to("tpu").compile()
    found = net(x.to("tpu"))
torch.testing.assert_close(found.cpu(), expected)
print(json.dumps({{"traces": len(traces), "sum": float(expected.sum())}}))
"""


def test_other_processes(tmp_path):
    script = tmp_path / "script.py"

    def run(line="x = x + 1", kind=2, **environment):
        script.write_text(SCRIPT.format(line=line, kind=kind))
        code = f"import sys, runpy; runpy.run_path({str(script)!r}, run_name='script')"
        environment = {
            "TORCH_TPU_TRACE_CACHE": "1",
            "TORCH_TPU_CACHE_DIR": str(tmp_path / "cache"),
            **environment,
        }
        return json.loads(child.check(code, **environment))

    first = run()
    assert first["traces"] == 1
    # Whatever the order of its sets is.
    assert run(PYTHONHASHSEED="1") == {**first, "traces": 0}
    changed = run(line="x = x - 1")
    assert changed["traces"] == 1 and changed["sum"] != first["sum"]
    assert run(kind=3)["traces"] == 1
