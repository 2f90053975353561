"""Matrix products as they are written for the TPU: rows that a view merged stay apart. The programs
run here as well, so their values are compared with PyTorch's on CPU."""

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tpu.compile.capture import to_stablehlo


def written(function, *inputs) -> str:
    graph = make_fx(function)(*(x.clone() for x in inputs))
    return to_stablehlo(graph, inputs, "tpu", lines=False).text


def check(function, *inputs) -> str:
    """The program's text, once its values have been found right."""
    text = written(function, *inputs)
    found = torch.tpu.export.load(text)(*(x.to("tpu") for x in inputs))
    expected = function(*inputs)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.cpu().reshape(theirs.shape), theirs)
    return text


def step(x, w, *bias):
    """A linear layer's result and gradients."""
    leaves = [t.detach().requires_grad_() for t in (x, w, *bias)]
    y = nn.functional.linear(*leaves)
    return (y.detach(), *torch.autograd.grad((y * y).sum(), leaves))


@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 3, 4, 5), (1, 3, 2, 5)], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_linear_and_its_gradients(shape, bias):
    torch.manual_seed(0)
    biases = [torch.randn(6)] if bias else []
    text = check(step, torch.randn(shape), torch.randn(6, 5), *biases)
    rows = sum(d != 1 for d in shape[:-1])
    assert text.count(f"lhs_contracting_dimensions = [{rows}]") == 2
    assert f"lhs_contracting_dimensions = [{', '.join(map(str, range(rows)))}]" in text


def test_half_precision_rounds_before_rows_are_merged():
    x, w = torch.randn(3, 4, 5, dtype=torch.bfloat16), torch.randn(6, 5, dtype=torch.bfloat16)
    text = check(lambda x, w: (nn.functional.linear(x, w),), x, w)
    assert "(tensor<3x4x6xf32>) -> tensor<3x4x6xbf16>" in text


def test_columns_merged_as_well():
    text = check(
        lambda x, w: (x.transpose(1, 2).reshape(2, 4, 15) @ w,),
        torch.randn(2, 3, 4, 5),
        torch.randn(15, 6),
    )
    assert "lhs_contracting_dimensions = [2]" in text


@pytest.mark.parametrize("bias", [(6,), (1, 6), (12, 1), (12, 6), ()], ids=str)
def test_a_bias_of_any_shape(bias):
    torch.manual_seed(0)
    check(
        lambda b, x, w: (torch.addmm(b, x.view(12, 5), w, alpha=2, beta=3),),
        torch.randn(bias),
        torch.randn(3, 4, 5),
        torch.randn(5, 6),
    )


@pytest.mark.parametrize("shape", [(12, 5), (1, 12, 5), (24, 5, 1)], ids=str)
def test_rows_that_nothing_merged(shape):
    """(24, 5) viewed as (12, 10) is no merging of rows."""
    columns = 5 if shape[0] != 24 else 10
    text = check(
        lambda x, w: (x.reshape(12, columns) @ w,), torch.randn(shape), torch.randn(columns, 6)
    )
    assert "lhs_contracting_dimensions = [1]" in text


def test_different_rows_stay_merged():
    """A gradient whose factors merge other rows."""
    text = check(
        lambda a, b: (a.view(12, 5).t() @ b.view(12, 6),),
        torch.randn(3, 4, 5),
        torch.randn(4, 3, 6),
    )
    assert "lhs_contracting_dimensions = [1]" in text


def test_no_rows():
    text = written(
        lambda x, w: ((x.view(0, 5) @ w).sum(),), torch.randn(0, 4, 5), torch.randn(5, 6)
    )
    assert "stablehlo.reduce" in text or "dense<0.0>" in text


def test_integers():
    x, w = torch.randint(-5, 5, (3, 4, 5)), torch.randint(-5, 5, (5, 6))
    check(lambda x, w: (x.view(12, 5) @ w,), x, w)


def test_sigmoid_parts():
    x = torch.tensor([-200.0, -1.0, 0.0, 3.0, 200.0])
    text = check(lambda x: (torch.sigmoid(x), nn.functional.silu(x)), x)
    assert "stablehlo.logistic" not in text
