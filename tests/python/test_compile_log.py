"""torch.tpu.compile_log(): what was compiled, from where, and why."""

import re

import child
import pytest
import torch
from torch.tpu import CompileRecord, compile_log


@pytest.fixture(autouse=True)
def empty_log():
    compile_log(clear=True)


def reasons(operation: str) -> list[str]:
    """Why programs of this operator were made since the test began; forgets the others."""
    return [record.reason for record in compile_log(clear=True) if record.operation == operation]


def ones(*sizes, **options):
    return torch.ones(*sizes, device="tpu", **options)


def test_record():
    x = ones(3, 171)
    compile_log(clear=True)
    line = test_record.__code__.co_firstlineno + 4
    x.asinh().sinh()
    first, second = compile_log()
    assert isinstance(first, CompileRecord)
    assert (first.operation, second.operation) == ("asinh", "sinh")
    assert second.number == first.number + 1
    assert first.source in ("compiler", "disk")
    assert first.operations >= 1
    parts = first.building, first.loading, first.compiling
    assert all(part >= 0 for part in parts) and 0 < sum(parts) <= first.seconds
    assert first.where == f"{__file__}:{line}"
    assert str(first).startswith(f"{first.number}: aten.asinh: ")
    assert first.reason in str(first) and first.where in str(first)
    # What is there already is not made again.
    compile_log(clear=True)
    x.asinh().sinh()
    assert compile_log() == []


def test_clear():
    ones(173).exp2()
    before = compile_log()
    assert len(before) == 2 and compile_log(clear=True) == before
    assert compile_log() == []


def test_first_call():
    code = """
        import torch
        print(torch.tpu.compile_log())
        torch.ones(3, device="tpu").sin()
        print(*(r.reason for r in torch.tpu.compile_log()), sep="; ")
    """
    assert child.check(code) == "[]\nfirst call of this operator; first call of this operator\n"


def test_shape_and_dtype():
    x = ones(8, 64)
    torch.atan2(x, ones(8, 64))
    compile_log(clear=True)
    torch.atan2(x, ones(8, 1))
    assert reasons("atan2") == ["argument 1 (other) was f32[8,64], now f32[8,1]"]
    torch.atan2(x.double(), ones(8, 1))
    assert reasons("atan2") == ["argument 0 (self) was f32[8,64], now f64[8,64]"]


def test_view():
    x = ones(5, 65)
    x.expm1()
    compile_log(clear=True)
    x.t().expm1()
    was = "argument 0 (self) was "
    assert reasons("expm1") == [
        was + "f32[5,65], now f32[65,5] (strides [1,65] of f32[5,65])",
    ]
    x[1:].expm1()
    x.view(65, 5).expm1()
    assert reasons("expm1") == [
        was + "f32[65,5] (strides [1,65] of f32[5,65]), now f32[4,65] (offset 65 of f32[5,65])",
        was + "f32[4,65] (offset 65 of f32[5,65]), now f32[65,5] (view of f32[5,65])",
    ]


def test_static_argument():
    x = ones(6, 67)
    x.logsumexp(0)
    compile_log(clear=True)
    x.logsumexp(1)
    x.logsumexp(1, keepdim=True)
    assert reasons("logsumexp") == ["dim was [0], now [1]", "keepdim was False, now True"]


def test_numbers():
    x, y = ones(71), ones(71)
    x.add(y)
    compile_log(clear=True)
    x.add(y, alpha=2)
    x.add(y, alpha=3)
    x.add(y, alpha=2.5)
    assert reasons("add.Tensor") == ["alpha was 1, now an int", "alpha was an int, now a float"]


def test_lists():
    x = ones(73)
    torch.stack([x, x])
    compile_log(clear=True)
    torch.stack([x, x, x])
    torch.stack([x, x.int(), x])
    torch.stack([x, x.int(), x], 1)
    assert reasons("stack") == [
        "the length of argument 0 (tensors) was 2, now 3",
        "argument 0 (tensors)[1] was f32[73], now i32[73]",
        "dim was 0, now 1",
    ]


def test_shared_storage():
    x, y = ones(79), ones(79)
    x.copysign_(y)
    compile_log(clear=True)
    x.copysign_(x)
    assert reasons("copysign_.Tensor") == ["which tensors share a storage was none, now [0,0]"]


def test_many_differences_are_counted():
    tensors = [ones(83) for _ in range(7)]
    torch.cat(tensors)
    compile_log(clear=True)
    torch.cat([t.double() for t in tensors])
    (reason,) = reasons("cat")
    assert reason.count("was f32[83], now f64[83]") == 4 and reason.endswith("; and 3 more")


def test_matmul_precision():
    a = ones(3, 89)
    a @ a.t()
    compile_log(clear=True)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        a @ a.t()
    finally:
        torch.set_float32_matmul_precision(before)
    assert reasons("mm") == [f"the float32 matmul precision was {before}, now medium"]


def test_not_a_call_of_an_operator():
    """Copies between views have no schema: their types are compared."""
    x, y, z = ones(4, 97), ones(4, 97), ones(4, 97, dtype=torch.float64)
    x[:, 1:].copy_(y[:, 1:])
    compile_log(clear=True)
    x[:, 2:].copy_(y[:, 2:])
    assert reasons("copy") == ["another view or setting of the same arguments"]
    z[:, 2:].copy_(y[:, 2:])
    assert reasons("copy") == ["argument 1 was f32[4,97], now f64[4,97]"]


def test_from_memory():
    """Another kind of number, the same program."""
    x = ones(101)
    counts = torch.tpu.compilations()
    x.mul(2)
    x.mul(2.5)
    first, second = (r for r in compile_log() if r.operation == "mul.Tensor")
    assert first.source in ("compiler", "disk") and second.source == "memory"
    after = torch.tpu.compilations()
    assert after["from_memory"] == counts["from_memory"] + 1
    assert after["count"] == counts["count"] + 2
    assert after["loaded"] == counts["loaded"] + 1
    assert x.mul(2.5).cpu().eq(2.5).all() and x.mul(2).cpu().eq(2).all()


def test_from_disk(tmp_path):
    code = """
        import torch
        torch.ones(3, device="tpu").tan()
        for r in torch.tpu.compile_log(): print(r.source, r.compiling > 0, r.loading > 0)
    """
    environment = {"TORCH_TPU_CACHE": "1", "TORCH_TPU_CACHE_DIR": str(tmp_path)}
    assert child.check(code, **environment) == "compiler True True\n" * 2
    assert child.check(code, **environment) == "disk False True\n" * 2


def test_decomposed_operator():
    """One program; its parameters are compared, for its arguments may be anything."""
    x, y = ones(1, 2, 7, 5), ones(1, 2, 7, 6)
    torch.nn.functional.unfold(x, 3)
    compile_log(clear=True)
    torch.nn.functional.unfold(y, 3)
    torch.nn.functional.unfold(y, 2)
    log = compile_log()
    assert [r.operation for r in log] == ["im2col"] * 2
    assert [r.reason for r in log] == [
        "argument 0 was f32[1,2,7,5], now f32[1,2,7,6]",
        "another view or setting of the same arguments",
    ]
    assert all(r.where.startswith(__file__) for r in log)


@pytest.mark.parametrize("topics", ["compile", "other,compile"])
def test_log_to_stderr(topics):
    code = "import torch; x = torch.ones(3, device='tpu').sin(); x.sin(); x[1:].sin()"
    done = child.run(code, TORCH_TPU_LOG=topics)
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and len(lines) == 3
    expected = (
        r"torch_tpu: compile 3: aten\.sin: \d+\.\d ms, from (compiler|disk), \d+ operations: "
        r"argument 0 \(self\) was f32\[3\], now f32\[2\] \(offset 1 of f32\[3\]\), at <string>:1"
    )
    assert re.fullmatch(expected, lines[2])


def test_no_log_to_stderr():
    child.check("import torch; torch.ones(3, device='tpu').sin()", TORCH_TPU_LOG="other")


def test_log_is_bounded():
    """The oldest records go. Full turns are another signature each, and the same program."""
    x = ones(3)
    for n in range(4200):
        x.roll(3 * n)
    log = compile_log()
    assert len(log) == 4096
    assert [r.number for r in log] == list(range(log[0].number, log[0].number + 4096))
    assert {(r.operation, r.source) for r in log} == {("roll", "memory")}
    assert log[-1].reason == f"shifts was [{3 * 4198}], now [{3 * 4199}]"
