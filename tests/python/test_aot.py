"""Modules written out and compiled for TPUs that are not here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import child
import pytest

from torch_tpu.aot import compile_modules, resolve_topology
from torch_tpu.aot.report import Status

ADD = """module @add {
  func.func public @main(%a: tensor<SIZExf32>, %b: tensor<SIZExf32>) -> tensor<SIZExf32> {
    %sum = stablehlo.add %a, %b : tensor<SIZExf32>
    return %sum : tensor<SIZExf32>
  }
}
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "torch_tpu.aot", "compile", "--quiet", *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_compiler_reports(tmp_path):
    """Good, wrong and too large modules in one run, in the order they were given."""
    files = [
        written(tmp_path / "good.mlir", ADD.replace("SIZE", "1024x1024")),
        written(tmp_path / "wrong.mlir", "module {"),
        written(tmp_path / "large.mlir", ADD.replace("SIZE", "65536x32768")),
        tmp_path / "absent.mlir",
        written(tmp_path / "again.mlir", ADD.replace("SIZE", "8")),
    ]
    seen = []
    reports = compile_modules(files, "v5e:1x1", jobs=2, on_report=seen.append)
    assert [r.file for r in reports] == list(map(str, files))
    assert sorted(r.file for r in seen) == sorted(r.file for r in reports)
    good, wrong, large, absent, again = reports
    assert good.ok and again.ok
    array = 4 * 1024 * 1024
    assert (good.argument_bytes, good.output_bytes) == (2 * array, array)
    assert good.peak_bytes >= 3 * array
    assert good.flops == 1024 * 1024
    assert good.bytes_accessed == 3 * array
    assert good.estimated_cycles > 1000
    assert 0 < good.optimal_seconds < 1
    assert wrong.status == Status.ERROR and wrong.message
    assert large.status == Status.OUT_OF_MEMORY and "15.75" in large.message
    assert absent.status == Status.ERROR and "absent.mlir" in absent.message


def test_command_line(tmp_path):
    written(tmp_path / "good.mlir", ADD.replace("SIZE", "8"))
    done = run(tmp_path, "--topology", "v6e:1x1", "--json")
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)
    assert (report["status"], report["topology"]) == ("ok", "v6e:1x1")
    written(tmp_path / "wrong.mlir", "module {")
    done = run(tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "1 ok, 1 error"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{}/absent.mlir",), "absent.mlir: no such file"),
        (("{}", "--topology", "v7:2x2x1"), "expected a generation (v4, v5e, v5p, v6e, tpu7x)"),
        (("{}", "--topology", ""), "expected a generation"),
        (("{}", "--topology", "v5e:2x2x1"), "the shape of a v5e slice has 2 dimensions"),
    ],
)
def test_command_line_refuses(tmp_path, arguments, message):
    written(tmp_path / "good.mlir", ADD.replace("SIZE", "8"))
    done = run(*(a.format(tmp_path) for a in arguments))
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_compiler_that_aborts(tmp_path):
    """libtpu ends its process over a flag it does not know; that is a result like another."""
    written(tmp_path / "good.mlir", ADD.replace("SIZE", "8"))
    done = run(tmp_path, "--json", LIBTPU_INIT_ARGS="--no_such_flag=1")
    assert done.returncode == 1
    (report,) = json.loads(done.stdout)
    assert report["status"] == "aborted"
    assert "no_such_flag" in report["message"]


def test_timeout(tmp_path):
    file = written(tmp_path / "good.mlir", ADD.replace("SIZE", "8"))
    (report,) = compile_modules([file], "v5e:1x1", timeout=0.01)
    assert report.status == Status.TIMEOUT


def test_small_slices_are_described():
    assert resolve_topology("v5e:2x2") == ("v5e:2x2", [])
    assert resolve_topology("v5e:1x2") == ("v5e:1x2", [("chips_per_host_bounds", [1, 2, 1])])


PROGRAM = """
import torch
x = torch.arange(12.0).reshape(3, 4).to("tpu")
(x @ x.t()).relu_()
x.sort()[0][torch.tensor([1, 0]).to("tpu")].softmax(-1)
torch.nn.functional.conv1d(x[None], torch.ones(2, 3, 2).to("tpu"))
torch.linalg.solve(torch.eye(3).to("tpu") * 2, x)
torch.tpu.synchronize()
"""


def names(directory: Path) -> set[str]:
    return {path.stem.rsplit("-", 1)[0] for path in directory.iterdir()}


def test_modules_are_dumped_by_operator_and_compile_for_tpu(tmp_path):
    dumps = {platform: tmp_path / platform for platform in ("cpu", "tpu")}
    for platform, directory in dumps.items():
        child.check(PROGRAM, TORCH_TPU_DUMP=str(directory), TORCH_TPU_DUMP_PLATFORM=platform)
    assert {"mm", "relu_", "sort.stable", "_softmax", "index.Tensor"} <= names(dumps["tpu"])
    assert names(dumps["cpu"]) == names(dumps["tpu"])
    (for_cpu,), (for_tpu,) = ([*d.glob("mm-*.mlir")] for d in dumps.values())
    # On CPU a small product is a call of the host's; a TPU has its own.
    assert "custom_call" in for_cpu.read_text() and "dot_general" in for_tpu.read_text()

    before = {path.name: path.stat().st_mtime_ns for path in dumps["tpu"].iterdir()}
    child.check(PROGRAM, TORCH_TPU_DUMP=str(dumps["tpu"]), TORCH_TPU_DUMP_PLATFORM="tpu")
    assert {path.name: path.stat().st_mtime_ns for path in dumps["tpu"].iterdir()} == before

    reports = compile_modules(sorted(dumps["tpu"].iterdir()), "v5e:1x1")
    assert len(reports) == len(before) >= 8
    assert [(r.file, r.message) for r in reports if not r.ok] == []


def test_dump_into_nowhere_is_told_once(tmp_path):
    blocked = written(tmp_path / "file", "")
    done = child.run(PROGRAM, TORCH_TPU_DUMP=str(blocked / "inside"))
    assert done.returncode == 0
    assert done.stderr.count("TORCH_TPU_DUMP: cannot write") == 1
