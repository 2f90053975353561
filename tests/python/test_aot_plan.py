"""Models traced without their weights and compiled for a TPU: `aot.compile` and `plan`."""

import json
import math
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from torch_tpu import _C
from torch_tpu.aot import AdamW, Status
from torch_tpu.aot import compile as aot_compile
from torch_tpu.aot.plan import lower
from torch_tpu.aot.recomputation import after
from torch_tpu.aot.trace import record_call, record_training_step

CONFIGS = Path(__file__).resolve().parents[2] / "examples/configs"
GIB = 2**30

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}


class Network(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(width, 4 * width)
        self.second = nn.Linear(4 * width, width)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return self.second(torch.relu(self.first(x)))


def test_a_call_becomes_a_program_for_the_tpu():
    with torch.device("meta"):
        model, x = Network(), torch.empty(32, 64)
    program = aot_compile(model, (x,), topology="v6e:1x1", name="network")
    report = program.report
    assert report.status == Status.OK, report.message
    assert (report.program, report.topology) == ("network", "v6e:1x1")
    assert [(v.name, v.role, v.aliased) for v in report.inputs] == [
        ("first.weight", "parameter", False),
        ("first.bias", "parameter", False),
        ("second.weight", "parameter", False),
        ("second.bias", "parameter", False),
        ("calls", "buffer", True),
        ("x", "input", False),
    ]
    assert [(v.name, v.shape, v.role) for v in report.outputs] == [
        ("output", [32, 64], "output"),
        ("calls", [], "updated"),
    ]
    assert report.flops == pytest.approx(2 * 2 * 32 * 64 * 256, rel=0.1)
    assert report.alias_bytes >= 4
    assert report.trace_seconds > 0 and report.host_bytes["tracing"] > 0
    # The module is unharmed.
    assert model.training and all(p.device.type == "meta" for p in model.parameters())


def test_operations_name_the_python_lines_they_come_from():
    with torch.device("meta"):
        model, x = Network(), torch.empty(32, 64)
    for train in (False, True):
        text = lower(model, (x,), train=train, loss=torch.sum).text
        line = Network.forward.__code__.co_firstlineno + 2
        assert f'test_aot_plan.py":{line}' in text
        assert "/torch/nn/" not in text


def test_no_memory_for_weights():
    """A layer of 640 GB, where memory is known before a compiler has seen it."""
    with torch.device("meta"):
        model, x = nn.Linear(400_000, 400_000), torch.empty(1, 400_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lowered = lower(model, (x,))
    assert "tensor<400000x400000xf32>" in lowered.text
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB


def test_a_training_step_is_that_of_pytorch():
    torch.manual_seed(0)
    model, x = Network(), torch.randn(32, 64)
    settings = {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.1}
    recorded = record_training_step(
        model, (x,), {}, optimizer=AdamW(**settings), loss=lambda y: y.square().mean()
    )
    values = []
    originals = {**dict(model.named_parameters()), "calls": model.calls, "x": x}
    for value in recorded.inputs:
        original = originals.get(value.name)
        initial = torch.zeros(value.shape) if original is None else original.detach().clone()
        values.append(initial.to("tpu"))
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    for _ in range(3):
        (loss,) = recorded.module(values)
        expected = model(x).square().mean()
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(loss.cpu(), expected.detach(), rtol=1e-5, atol=1e-6)
    for value, tensor in zip(recorded.inputs, values, strict=True):
        if value.role == "parameter":
            torch.testing.assert_close(
                tensor.cpu(), originals[value.name].detach(), rtol=1e-4, atol=1e-5
            )
    assert values[4].item() == 3
    written = {recorded.inputs[i].name for i in recorded.donate}
    assert written == {v.name for v in recorded.inputs} - {"x"}


def test_frozen_and_tied_parameters():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(16, 8)
            self.frozen = nn.Linear(8, 8).requires_grad_(False)
            self.head = nn.Linear(8, 16, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.frozen(self.embed(tokens))).sum()

    with torch.device("meta"):
        model, tokens = Tied(), torch.zeros(4, dtype=torch.int64)
    recorded = record_training_step(model, (tokens,), {})
    names = [v.name for v in recorded.inputs]
    assert "head.weight" not in names and names.count("embed.weight") == 1
    assert [n for n in names if n.startswith("exp_avg.")] == ["exp_avg.embed.weight"]
    assert not any("frozen" in recorded.inputs[i].name for i in recorded.donate)
    with pytest.raises(ValueError, match="requires a gradient"):
        record_training_step(model.requires_grad_(False), (tokens,), {})
    with pytest.raises(ValueError, match="scalar loss"):
        record_training_step(nn.Linear(8, 8), (torch.empty(2, 8),), {})


def test_what_a_call_writes_to_is_found_inside_of_objects():
    class Cache:
        def __init__(self):
            self.layers = [{"keys": torch.zeros(4, 8)}]
            self.device = torch.device("cpu")

    class Writes(nn.Module):
        def forward(self, x, cache):
            cache.layers[0]["keys"][:1].copy_(x)
            return cache.layers[0]["keys"].sum(0) + torch.ones(8, device=cache.device)

    cache = Cache()
    recorded = record_call(Writes(), (torch.ones(1, 8),), {"cache": cache})
    assert [v.name for v in recorded.inputs] == ["x", "cache.layers.0.keys"]
    assert recorded.donate == [1]
    values = [torch.ones(1, 8, device="tpu"), torch.zeros(4, 8, device="tpu")]
    (result,) = recorded.module(values)
    assert result.cpu().tolist() == [2.0] * 8
    assert values[1].cpu().tolist() == [[1.0] * 8] + [[0.0] * 8] * 3
    assert cache.layers[0]["keys"].sum() == 0


def test_arguments_that_do_not_fit():
    with torch.device("meta"):
        model, x = nn.Linear(70_000, 70_000), torch.empty(1, 70_000)
    report = aot_compile(model, (x,), topology="v5e:1x1").report
    assert report.status == Status.OUT_OF_MEMORY
    assert report.argument_bytes_by_role["parameter"] > 18 * GIB
    assert report.buffers[0].name == "weight"
    assert "shard them over at least 2 chips" in report.advice[0]


def test_topologies_are_checked_before_tracing():
    with pytest.raises(ValueError, match="topology"):
        aot_compile(None, (), topology="")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.1-8b", 8_030_261_248),
    ],
)
def test_shipped_configurations_are_those_models(name, parameters):
    from torch_tpu.aot.model_source import Call, from_config

    source = from_config(CONFIGS / f"{name}.json", Call())
    assert sum(p.numel() for p in source.model.parameters()) == parameters
    assert {p.device.type for p in source.model.parameters()} == {"meta"}
    assert source.kwargs["input_ids"].shape == (1, 2048)


def plan(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "torch_tpu.aot", "plan", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(cwd or "")},
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("configs") / "tiny.json"
    path.write_text(json.dumps(TINY))
    return path


def test_plan_of_a_decode_step(tiny, tmp_path):
    page = tmp_path / "plan.html"
    done = plan(tiny, "--decode", "--cache", "64", "--json", "--html", page)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["status"], report["fits"], report["topology"]) == ("ok", True, "v5e:1x1")
    inputs = {v["name"]: v for v in report["inputs"]}
    keys = inputs["past_key_values.layers.1.keys"]
    assert (keys["shape"], keys["dtype"], keys["aliased"]) == ([1, 2, 64, 16], "bfloat16", True)
    assert inputs["input_ids"]["shape"] == [1, 1]
    updated = {v["name"] for v in report["outputs"] if v["role"] == "updated"}
    assert "past_key_values.layers.1.values" in updated
    assert report["alias_bytes"] >= 2 * 2 * 64 * 2 * 16 * 2
    assert report["bound"] == "memory bandwidth"
    assert "<svg" in page.read_text()


def test_plan_of_a_training_step(tiny):
    done = plan(tiny, "--train", "--seq", "32", "--batch", "2", "--topology", "v5p:1x1x1", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    roles = report["argument_bytes_by_role"]
    assert roles["optimizer state"] > roles["parameter"] > roles["input"] > 0
    # All but the tokens and the rotary frequencies is updated in place.
    assert report["alias_bytes"] >= roles["optimizer state"] + roles["parameter"]
    assert report["outputs"][0]["name"] == "loss"
    assert {v["shape"][1] for v in report["inputs"] if v["name"] == "input_ids"} == {32}


def test_plan_of_a_rank_that_has_a_shard(tiny):
    alone, sharded = (
        json.loads(plan(tiny, "--train", "--seq", "32", "--json", *more).stdout)
        for more in ((), ("--fsdp", "4", "--topology", "v5e:2x2"))
    )
    assert (sharded["status"], sharded["devices"]) == ("ok", 4)
    whole, part = (
        sum(math.prod(v["shape"]) for v in r["inputs"] if v["role"] == "parameter")
        for r in (alone, sharded)
    )
    assert part == whole / 4
    # Weights are gathered once or twice and gradients scattered, in bfloat16; three quarters of
    # each come from others.
    assert 1.5 * 2 * whole <= sharded["exchanged_bytes"] < 2.5 * 2 * whole
    assert alone["exchanged_bytes"] == 0


def test_plan_of_a_decode_step_of_several_ranks(tiny):
    done = plan(tiny, "--decode", "--cache", "64", "--tp", "2", "--topology", "v5e:2x2", "--json")
    report = json.loads(done.stdout)
    assert (report["status"], report["devices"]) == ("ok", 2), done.stderr
    inputs = {v["name"]: v["shape"] for v in report["inputs"]}
    assert inputs["past_key_values.layers.1.keys"] == [1, 1, 64, 16]
    assert report["exchanged_bytes"] > 0


def test_plan_of_a_function(tmp_path):
    (tmp_path / "here.py").write_text(
        "import torch\n"
        "def model():\n"
        "    return torch.nn.Linear(8, 8), (), {'input': torch.empty(2, 8)}\n"
    )
    done = plan("here:model", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("model on v5e:1x1: fits")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.json"], "absent.json: neither a file nor module:function"),
        (["{config}", "--topology", "v5e:2"], "dimensions of at least one chip"),
        (["{config}", "--topology", ""], "expected a generation"),
        (["{config}", "--dtype", "float17"], "float17: no such dtype"),
        (["{broken}"], "is not a Transformers configuration"),
        (["json:absent"], "json has no absent"),
        (["json:JSONDecoder"], "has to return (model, args, kwargs)"),
        (["no_such_module:f"], "No module named 'no_such_module'"),
        (["{config}", "--fsdp", "4"], "4 ranks on v5e:1x1, which has 1 devices"),
        (["{config}", "--tp", "0"], "0 ranks"),
        (["{config}", "--topology", "v5e:2x2", "--tp", "4"], "cannot be divided among 4 ranks"),
        (["{bert}", "--topology", "v5e:2x2", "--tp", "2"], "has no plan for tensor parallelism"),
    ],
)
def test_plan_refuses(tiny, tmp_path, arguments, message):
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    bert = tmp_path / "bert.json"
    bert.write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))
    files = {"config": tiny, "broken": broken, "bert": bert}
    done = plan(*(a.format(**files) for a in arguments))
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_program_survives_serialization():
    """As a TPU's does; here by the live device's plugin."""
    module = """
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.add %x, %x : tensor<4xf32>
      return %0 : tensor<4xf32>
    }
    """
    types = [(torch.float32, [4])]
    serialized = _C.LoadedProgram("twice", module, types, types).serialize()
    again = _C.LoadedProgram.deserialize("twice", serialized, types, types)
    x = torch.arange(4.0)
    (result,) = again.run(0, [x.to("tpu")])
    assert torch.equal(result.cpu(), x + x)
    with pytest.raises(RuntimeError, match="twice: the program's results are not those"):
        _C.LoadedProgram.deserialize("twice", serialized, types, [(torch.float32, [5])])
    with pytest.raises(RuntimeError):
        _C.LoadedProgram.deserialize("twice", b"nothing", types, types)


class Blocks(nn.Module):
    """Blocks whose activations are computed again in the backward pass."""

    def __init__(self, checkpointing: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Dropout(dropout), nn.Linear(256, 64))
            for _ in range(4)
        )

    def forward(self, x):
        for block in self.blocks:
            if self.checkpointing:
                x = x + torch.utils.checkpoint.checkpoint(
                    block, x, use_reentrant=False, preserve_rng_state=False
                )
            else:
                x = x + block(x)
        return x.square().mean()


def test_activation_checkpointing_computes_the_same_step():
    torch.manual_seed(0)
    x = torch.randn(8, 64)
    steps = []
    plain = Blocks(False)
    for checkpointing in (False, True):
        model = Blocks(checkpointing)
        model.load_state_dict(plain.state_dict())
        recorded = record_training_step(model, (x,), {})
        originals = {**dict(model.named_parameters()), "x": x}
        values = [
            originals.get(v.name, torch.zeros(v.shape)).detach().clone().to("tpu")
            for v in recorded.inputs
        ]
        (loss,) = recorded.module(values)
        steps.append([loss.cpu(), *(v.cpu() for v in values)])
        tied = sum(n.target is after for n in recorded.module.graph.nodes)
        assert tied == (4 if checkpointing else 0)
    for one, other in zip(*steps, strict=True):
        torch.testing.assert_close(one, other)


def test_activation_checkpointing_saves_memory_in_the_compiled_program():
    temporary = []
    for checkpointing in (False, True):
        with torch.device("meta"):
            model, x = Blocks(checkpointing), torch.empty(2**19, 64)
        report = aot_compile(model, (x,), topology="v5e:1x1", train=True).report
        assert report.status == Status.OK, report.message
        temporary.append(report.temporary_bytes)
    assert temporary[1] < 0.7 * temporary[0]


def test_activation_checkpointing_refuses_to_draw_again():
    with torch.device("meta"):
        model, x = Blocks(True, dropout=0.1), torch.empty(8, 64)
    with pytest.raises(RuntimeError, match="set dropout to 0"):
        record_training_step(model, (x,), {})
