"""torch.tpu.export: modules written as StableHLO, saved, loaded and run."""

import json
import pathlib
import subprocess
import sys
import zipfile

import pytest
import torch
from torch import nn

TEXT = """module @twice {
  func.func public @main(%arg0: tensor<2x3xf32> {jax.note = "} \\" tensor<9xf32>"},
      %arg1: tensor<i32>) -> (tensor<2x3xf32> {jax.result_info = ""}, tensor<i32>) {
    %0 = stablehlo.add %arg0, %arg0 : tensor<2x3xf32>
    return %0, %arg1 : tensor<2x3xf32>, tensor<i32>
  }
}
"""


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(6, 16)
        self.down = nn.Linear(16, 4, bias=False)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


class Counting(nn.Module):
    """Changes buffers, persistent and not, and an argument; has a constant and makes a tensor."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(5)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)
        self.shift = torch.arange(5.0)

    def forward(self, x):
        self.calls.add_(1)
        x.mul_(2)
        return self.norm(x) + self.shift + torch.arange(5, device=x.device)


class Structured(nn.Module):
    """Takes and returns containers, numbers and None; returns an argument as it is."""

    def forward(self, pair, *, table, factor=2):
        first, second = pair
        total = first + second * factor
        views = {"transposed": total.t(), "row": total[1], "same": first, "nothing": None}
        return views, [table["a"].sum(), (factor, "text")]


class Lookup(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 3)

    def forward(self, indices):
        return self.table(indices)


def copied(tree):
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.clone(), tree)


def on_tpu(tree):
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.to("tpu"), tree)


def saved_and_loaded(module, args, kwargs=None, path=None):
    exported = torch.tpu.export.export(module, copied(args), copied(kwargs or {}))
    exported.save(path)
    return torch.tpu.export.load(path)


def test_module_gives_what_it_gives_on_cpu(tmp_path):
    torch.manual_seed(0)
    model, x = Mlp(), torch.randn(3, 6)
    f = saved_and_loaded(model, (x,), path=tmp_path / "mlp.zip")
    y = f(x.to("tpu"))
    assert y.device.type == "tpu" and not y.requires_grad
    torch.testing.assert_close(y.cpu(), model(x).detach())
    assert set(f.state_dict()) == set(model.state_dict())


def test_an_exported_program_is_the_same(tmp_path):
    model, x = Mlp(), torch.randn(2, 6)
    program = torch.export.export(model, (x,))
    assert torch.tpu.export.export(program).text == torch.tpu.export.export(model, (x,)).text


def test_the_models_device_does_not_matter():
    model, x = Mlp(), torch.randn(2, 6)
    text = torch.tpu.export.export(model, (x,)).text
    assert torch.tpu.export.export(model.to("tpu"), (x.to("tpu"),)).text == text


def test_the_text_calls_nothing_of_this_process():
    assert "custom_call" not in torch.tpu.export.export(Mlp(), (torch.randn(2, 6),)).text


def test_parameters_are_arguments():
    model = Mlp()
    exported = torch.tpu.export.export(model, (torch.randn(2, 6),))
    names = [slot.name for slot in exported.signature.parameters]
    assert sorted(names) == sorted([*model.state_dict(), ""])
    assert exported.state_dict["up.weight"].data_ptr() == model.up.weight.data_ptr()


def test_what_is_changed_in_place_stays_changed(tmp_path):
    model = Counting()
    x = torch.randn(4, 5)
    f = saved_and_loaded(model, (x,), path=tmp_path / "counting.zip")
    for _ in range(3):
        theirs, ours = x.clone(), x.to("tpu")
        expected = model(theirs)
        torch.testing.assert_close(f(ours).cpu(), expected.detach())
        torch.testing.assert_close(ours.cpu(), theirs)
    state = f.state_dict()
    assert state["calls"].item() == 3 and state["norm.num_batches_tracked"].item() == 3
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(state[name].cpu(), buffer)


def test_structures(tmp_path):
    args = ((torch.randn(2, 3), torch.randn(2, 3)),)
    kwargs = {"table": {"a": torch.ones(4)}, "factor": 3}
    f = saved_and_loaded(Structured(), args, kwargs, path=tmp_path / "structured.zip")
    expected = Structured()(*args, **kwargs)
    # Keywords may come in any order.
    found = f(*on_tpu(args), factor=3, table=on_tpu(kwargs["table"]))
    leaves, spec = torch.utils._pytree.tree_flatten(found)
    expected_leaves, expected_spec = torch.utils._pytree.tree_flatten(expected)
    assert spec == expected_spec
    for ours, theirs in zip(leaves, expected_leaves, strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(ours.cpu(), theirs)
        else:
            assert ours == theirs


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.complex64,
        torch.complex128,
        torch.float8_e4m3fn,
    ],
    ids=str,
)
def test_dtypes(dtype, tmp_path):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            values = torch.tensor([[0.0, 1.0, 2.5], [3.0, 1.0, 0.0]])
            self.register_buffer("held", values.to(dtype))

        def forward(self, x):
            return torch.where(x > 0, self.held, self.held.t().reshape(2, 3)), self.held

    model, x = Holder(), torch.tensor([[1.0, -1, 1], [-1, 1, -1]])
    f = saved_and_loaded(model, (x,), path=tmp_path / "held.zip")
    for ours, theirs in zip(f(x.to("tpu")), model(x), strict=True):
        assert ours.dtype == dtype
        assert torch.equal(ours.cpu().view(torch.uint8), theirs.view(torch.uint8))


def test_empty_tensors(tmp_path):
    class Empty(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("none", torch.empty(0, 3))

        def forward(self, x):
            return torch.cat([self.none, x])

    x = torch.randn(2, 3)
    f = saved_and_loaded(Empty(), (x,), path=tmp_path / "empty.zip")
    assert torch.equal(f(x.to("tpu")).cpu(), x)


def test_an_index_out_of_range_is_an_error_and_changes_nothing(tmp_path):
    model = Lookup()
    f = saved_and_loaded(model, (torch.tensor([1, 2]),), path=tmp_path / "lookup.zip")
    good = torch.tensor([6, 0])
    torch.testing.assert_close(f(good.to("tpu")).cpu(), model(good).detach())
    with pytest.raises(IndexError, match="out of range"):
        f(torch.tensor([7, 0], device="tpu"))
    torch.testing.assert_close(f(good.to("tpu")).cpu(), model(good).detach())


def test_written_for_the_tpu():
    class Scores(nn.Module):
        def forward(self, scores, target):
            return nn.functional.nll_loss(scores, target)

    args = (torch.randn(4, 3), torch.tensor([0, 2, 1, 0]))
    for_cpu = torch.tpu.export.export(Scores(), args)
    for_tpu = torch.tpu.export.export(Scores(), args, platform="tpu")
    assert for_tpu.signature.platform == "tpu"
    assert "stablehlo.gather" in for_cpu.text and "stablehlo.gather" not in for_tpu.text


def test_wrong_arguments_are_named(tmp_path):
    args = ((torch.randn(2, 3), torch.randn(2, 3)),)
    kwargs = {"table": {"a": torch.ones(4)}}
    f = saved_and_loaded(Structured(), args, kwargs, path=tmp_path / "structured.zip")
    (first, second), table = on_tpu(args)[0], on_tpu(kwargs["table"])
    with pytest.raises(TypeError, match="another structure"):
        f(first, second, table=table)
    with pytest.raises(TypeError, match=r"argument \[0\]\[1\]: expected a tensor, got float"):
        f((first, 1.0), table=table)
    with pytest.raises(ValueError, match=r"argument \[0\]\[1\] is float32\[3, 2\].*\[2, 3\]"):
        f((first, second.t()), table=table)
    with pytest.raises(ValueError, match=r"argument \[0\]\[0\] is int32\[2, 3\].*float32\[2, 3\]"):
        f((first.int(), second), table=table)
    with pytest.raises(ValueError, match=r"keyword argument \['table'\]\['a'\] is on cpu"):
        f((first, second), table={"a": torch.ones(4)})


def test_other_constants_are_refused(tmp_path):
    class Power(nn.Module):
        def forward(self, x, n):
            return x**n

    f = saved_and_loaded(Power(), (torch.randn(3), 3), path=tmp_path / "power.zip")
    x = torch.tensor([1.0, 2.0, 3.0], device="tpu")
    assert f(x, 3).tolist() == [1, 8, 27]
    with pytest.raises(ValueError, match=r"argument \[1\] is 4, but .* exported with 3"):
        f(x, 4)


def test_what_cannot_be_exported():
    export = torch.tpu.export.export
    x = torch.randn(4, 6)
    with pytest.raises(TypeError, match="example arguments"):
        export(Mlp())
    with pytest.raises(TypeError, match="expected a Module or an ExportedProgram"):
        export(torch.relu, (x,))
    with pytest.raises(ValueError, match="platform"):
        export(Mlp(), (x,), platform="gpu")
    batch = torch.export.Dim("batch")
    dynamic = torch.export.export(Mlp(), (x,), dynamic_shapes=({0: batch},))
    with pytest.raises(ValueError, match="dynamic shapes"):
        export(dynamic)
    with pytest.raises(TypeError, match="has its example arguments"):
        export(torch.export.export(Mlp(), (x,)), (x,))
    with pytest.raises(NotImplementedError, match="random numbers"):
        export(nn.Dropout(), (x,))


def test_text_from_elsewhere(tmp_path):
    x, n = torch.randn(2, 3), torch.tensor(5, dtype=torch.int32)
    path = tmp_path / "twice.mlir"
    path.write_text(TEXT)
    for source in (TEXT, TEXT.encode(), path, str(path)):
        doubled, same = torch.tpu.export.load(source)(x.to("tpu"), n.to("tpu"))
        assert torch.equal(doubled.cpu(), x * 2) and same.item() == 5
    f = torch.tpu.export.load(TEXT)
    # A view is read as what it looks like.
    wide = torch.randn(3, 4, device="tpu")
    doubled, _ = f(wide.t()[1:3], n.to("tpu"))
    assert torch.equal(doubled.cpu(), wide.cpu().t()[1:3] * 2)
    with pytest.raises(TypeError, match="expected 2 tensors, got 1"):
        f(x.to("tpu"))
    with pytest.raises(RuntimeError, match=r"argument 1 must be Int\[\], got Float\[\]"):
        f(x.to("tpu"), torch.tensor(5.0, device="tpu"))
    with pytest.raises(RuntimeError, match="argument 0 is on cpu"):
        f(x, n.to("tpu"))


def test_what_cannot_be_loaded(tmp_path):
    load = torch.tpu.export.load
    with pytest.raises(ValueError, match="no function @main"):
        load("not\na module")
    with pytest.raises(ValueError, match="static shapes"):
        load("func.func @main(%arg0: tensor<?xf32>)\n")
    with pytest.raises(ValueError, match="on a tpu device, not on cpu"):
        load(TEXT, device="cpu")
    with pytest.raises(RuntimeError, match="stablehlo"):
        load(TEXT.replace("stablehlo.add", "stablehlo.ad"))
    with pytest.raises(ValueError, match="neither a saved program"):
        load(b"\xff\xfe\x00")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing.zip")


@pytest.mark.parametrize("damage", ["truncated", "state", "format"])
def test_damaged_files_are_refused(damage, tmp_path):
    path = tmp_path / "mlp.zip"
    torch.tpu.export.export(Mlp(), (torch.randn(2, 6),)).save(path)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        with zipfile.ZipFile(path) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
        if damage == "state":
            entries["state/0"] = entries["state/0"][:-1]
        else:
            entries["signature.json"] = json.dumps({"format": 2}).encode()
        with zipfile.ZipFile(path, "w") as archive:
            for name, contents in entries.items():
                archive.writestr(name, contents)
    with pytest.raises(ValueError, match="not the file of an exported program"):
        torch.tpu.export.load(path)


def test_another_process_needs_only_the_file(tmp_path):
    model, x = Mlp(), torch.randn(2, 6)
    path = tmp_path / "mlp.zip"
    torch.tpu.export.export(model, (x,)).save(path)
    torch.save(x, tmp_path / "x.pt")
    code = (
        "import sys, torch; f = torch.tpu.export.load(sys.argv[1]); "
        "torch.save(f(torch.load(sys.argv[2]).to('tpu')).cpu(), sys.argv[3])"
    )
    arguments = [path, tmp_path / "x.pt", tmp_path / "y.pt"]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True)
    torch.testing.assert_close(torch.load(tmp_path / "y.pt"), model(x).detach())


def test_it_is_a_module_of_torch_tpu():
    import torch.tpu.export as module
    from torch.tpu.export import load

    assert load is torch.tpu.export.load and module is torch.tpu.export


# Portable artifacts need jaxlib, which the test environment does not install: these two run only
# where somebody has it (docs/jax.md's environment is another one).
def test_portable_artifact():
    pytest.importorskip("jaxlib.mlir")
    model, x = Mlp(), torch.randn(2, 6)
    exported = torch.tpu.export.export(model, (x,))
    artifact = exported.portable_artifact()
    assert artifact.startswith(b"ML\xefR") and b"StableHLO_v1.13.0" in artifact
    f = torch.tpu.export.load(artifact)
    by_slot = {slot.name: slot for slot in exported.signature.parameters}
    arguments = [
        (x if not name else exported.state_dict[name]).detach().to("tpu") for name in by_slot
    ]
    torch.testing.assert_close(f(*arguments)[0].cpu(), model(x).detach())
    with pytest.raises(ValueError, match=r"StableHLO 999\.0\.0"):
        exported.portable_artifact("999.0.0")


def test_without_jaxlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxlib", None)
    monkeypatch.setitem(sys.modules, "jaxlib.mlir", None)
    exported = torch.tpu.export.export(Mlp(), (torch.randn(2, 6),))
    with pytest.raises(ModuleNotFoundError, match=r"torch-tpu\[export\]"):
        exported.portable_artifact()
    with pytest.raises(ModuleNotFoundError, match=r"torch-tpu\[export\]"):
        torch.tpu.export.load(b"ML\xefR....")


def test_the_example_runs(tmp_path):
    example = pathlib.Path(__file__).parents[2] / "examples" / "export.py"
    done = subprocess.run(
        [sys.executable, example, tmp_path], check=True, capture_output=True, text=True
    )
    assert "of 8 images" in done.stdout and (tmp_path / "classifier.mlir").exists()
