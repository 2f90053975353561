"""A few of the random programs of fuzz/, the same in every run; `make fuzz` runs many."""

import pytest
import torch
from fuzz import drawing, program, undefined
from fuzz.__main__ import programs
from fuzz.templates import Template
from fuzz.tolerance import Error


def test_programs():
    programs(100, derandomize=True)()


def one_line(text, error=Error.EXACT):
    """Runs a program of one line of this text, without gaps, over x = [1, 2, 3]."""
    run = program.Program(drawing.Draw(lambda low, high: low))
    run.define("torch.tensor([1.0, 2.0, 3.0], device=device)")
    run.step(Template(text, error, ()))


@pytest.mark.parametrize(
    "text, difference",
    [
        ("v1 + (device == 'tpu')", "values"),
        ("v1.double() if device == 'tpu' else v1", "dtype"),
        ("v1[:2] if device == 'tpu' else v1", "shape"),
        ("torch.stack([v1, v1], int(device == 'tpu')).view(-1, 1, 2)", "values"),
        ("torch.zeros(2, 2).t() if device == 'tpu' else torch.zeros(2, 2)", "strides"),
        ("v1[9 if device == 'tpu' else 0]", "raises"),
        ("v1.view(3) if device == 'tpu' else v1.clone()", "share memory"),
        ("[v1] * len(device) + [v1] * (device == 'tpu')", "results"),
        ("v1.sum().item() + (device == 'tpu')", "instead of"),
    ],
)
def test_differences_are_found(text, difference):
    one_line(text.replace("device == 'tpu'", "False"))
    with pytest.raises(program.Disagreement, match=difference) as found:
        one_line(text)
    assert 'device = "tpu"' in str(found.value)  # a script


def test_tolerance():
    ulp = torch.finfo(torch.float32).eps
    one_line(f"v1 * (1 + (device == 'tpu') * {2 * ulp})", Error.ROUNDED)
    with pytest.raises(program.Disagreement, match="units in the last place"):
        one_line(f"v1 * (1 + (device == 'tpu') * {40 * ulp})", Error.ROUNDED)


def test_guards_know_what_is_undefined():
    x = torch.tensor([1.0, 300.0])
    line = type("Line", (), {"line": "v1.to(torch.uint8)", "operands": [x], "target": None})
    assert undefined.conversion(line)
    line.operands = [x[:1]]
    assert undefined.conversion(line) is None
