"""Debug mode: each operator is waited for and looked at; errors name the Python line."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F


@pytest.fixture(autouse=True)
def debug():
    with torch.tpu.set_eager_mode("debug"):
        yield
    torch.tpu.synchronize()


def tensor(*values, dtype=None):
    return torch.tensor(values, dtype=dtype, device="tpu")


def failing_line(info):
    """Source of the line that an error names at its end."""
    place = str(info.value).rsplit("(at ", 1)[1].rstrip(")")
    file, line = place.rsplit(":", 1)
    assert file == __file__
    with open(file) as source:
        return source.readlines()[int(line) - 1]


def test_failed_checks_are_raised_at_once():
    with pytest.raises(IndexError, match="embedding: index out of range") as info:
        F.embedding(tensor(1, 7), torch.ones(3, 2, device="tpu"))  # here
    assert "# here" in failing_line(info)
    assert "in aten::embedding(weight: Float[3, 2], indices: Long[2]" in str(info.value)


def test_failures_are_raised_at_once():
    with pytest.raises(torch.OutOfMemoryError, match=r"aten::add\.Tensor") as info:
        torch.zeros(1 << 20, 1, device="tpu") + torch.zeros(1, 1 << 20, device="tpu")  # here
    assert "# here" in failing_line(info)


@pytest.mark.parametrize(
    ("f", "error", "words"),
    [
        (lambda: torch.mm(tensor([1.0]), tensor([1.0], [3.0])), RuntimeError, "mat1 and mat2"),
        (lambda: tensor(1.0) + tensor(1.0, 2.0, 3.0).cpu(), RuntimeError, "same device"),
        (lambda: tensor(1.0).add_(tensor([1.0], [2.0])), RuntimeError, "broadcast shape"),
        (lambda: tensor(1.0, 2.0).copy_(torch.ones(3)), RuntimeError, "must match the size"),
        (lambda: tensor(1.0) << 1, NotImplementedError, "not implemented"),
    ],
)
def test_pytorchs_own_errors_keep_type_and_words(f, error, words):
    with pytest.raises(error, match=words) as info:
        f()
    assert "(lambda: " in failing_line(info)
    with torch.tpu.set_eager_mode("strict"), pytest.raises(error, match=words) as strict:
        f()
    assert str(info.value).startswith(str(strict.value))
    assert "(at " not in str(strict.value)


def test_line_is_told_once():
    with pytest.raises(RuntimeError) as info:
        F.linear(torch.ones(2, 3, device="tpu"), torch.ones(4, 5, device="tpu"))
    assert str(info.value).count("(at ") == 1


NAN = float("nan")
PRODUCERS = {
    "log": lambda: tensor(-1.0, 1.0).log(),
    "sqrt": lambda: tensor(-1.0).sqrt(),
    "div.Tensor": lambda: tensor(0.0) / tensor(0.0),
    "sub.Tensor": lambda: tensor(float("inf")) - tensor(float("inf")),
    "_softmax": lambda: tensor(-float("inf"), -float("inf")).softmax(0),
    "mean": lambda: torch.empty(0, device="tpu").mean(),
    "log_": lambda: tensor(-1.0).log_(),
    "log.out": lambda: torch.log(tensor(-1.0), out=tensor(0.0)),
    "_foreach_sqrt": lambda: torch._foreach_sqrt([tensor(1.0), tensor(-1.0)]),
    "mul.Tensor": lambda: tensor(complex(0, float("inf"))) * tensor(0j),
    "acos": lambda: tensor(2.0, dtype=torch.bfloat16).acos(),
}


@pytest.mark.parametrize("name", PRODUCERS)
def test_nan_out_of_numbers(name):
    with pytest.raises(RuntimeError, match="produced NaN from arguments without NaN") as info:
        PRODUCERS[name]()
    assert str(info.value).startswith(f"aten::{name}(")
    assert f'"{name}": ' in failing_line(info)
    with torch.tpu.set_eager_mode("strict"):
        PRODUCERS[name]()


def test_message():
    x = torch.full((2, 3), -1.0, device="tpu")
    with pytest.raises(RuntimeError) as info:
        x.log()
    assert str(info.value).startswith(
        "aten::log(self: Float[2, 3]) produced NaN from arguments without NaN (at "
    )


def test_nan_out_of_a_decomposition():
    zeros, ones = torch.zeros(2, 2, device="tpu"), torch.ones(2, 1, device="tpu")
    with pytest.raises(RuntimeError, match=r"aten::_weight_norm_interface.* produced NaN") as info:
        torch._weight_norm_interface(zeros, ones, 0)  # here
    assert "# here" in failing_line(info)


@pytest.mark.parametrize(
    "f",
    [
        lambda: tensor(NAN) + 1,
        lambda: tensor(1.0) * NAN,
        lambda: tensor(1.0) * torch.tensor(NAN),
        lambda: torch.full((2,), NAN, device="tpu"),
        lambda: torch.zeros(2, device="tpu").fill_(NAN),
        lambda: torch.zeros(2, device="tpu").masked_fill_(tensor(True, False), NAN),
        lambda: F.pad(tensor(1.0), (1, 1), value=NAN),
        lambda: tensor(NAN).nan_to_num(nan=NAN),
        lambda: tensor(1.0, NAN)[1:].clone(),
        # NaN by its bits.
        lambda: torch.tensor([0x7FC00000], dtype=torch.int32, device="tpu").view(torch.float32) + 1,
        lambda: torch.complex(tensor(NAN), tensor(0.0)).abs(),
    ],
)
def test_nan_that_went_in(f):
    f()


def test_only_what_an_operator_reads_and_writes_counts():
    x = tensor(NAN, -1.0, 4.0)
    assert x[2:].sqrt().item() == 2
    x[2:].sqrt_()
    assert x[2].item() == 2
    with pytest.raises(RuntimeError, match="produced NaN"):
        x[1:].sqrt()


def test_infinities_are_no_mistake():
    assert tensor(0.0).log().item() == -float("inf")
    assert (tensor(1.0) / tensor(0.0)).item() == float("inf")
    assert torch.zeros(2, device="tpu").masked_fill(tensor(True, False), -float("inf")).softmax(
        0
    ).tolist() == [0, 1]


def test_what_failed_is_left_as_it_was():
    x = tensor(-4.0, 4.0)
    view = x[:1]
    for write in (lambda: x.sqrt_(), lambda: view.log_(), lambda: torch.sqrt(x, out=x)):
        with pytest.raises(RuntimeError, match="produced NaN"):
            write()
        assert x.tolist() == [-4.0, 4.0]
    x.abs_()
    assert x.sqrt().tolist() == [2.0, 2.0]


def test_numbers_are_those_of_strict_mode():
    def train():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 3)
        ).to("tpu")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        x, y = torch.randn(6, 4, device="tpu"), torch.arange(6, device="tpu") % 3
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    debug = train()
    with torch.tpu.set_eager_mode("strict"):
        assert train() == debug


def test_nan_in_backward():
    x = torch.zeros(2, device="tpu", requires_grad=True)
    y = (x * 0).sqrt()
    with pytest.raises(RuntimeError, match=r"aten::.* produced NaN"):
        y.sum().backward()


def test_work_is_done_when_an_operator_returns():
    x = torch.full((500, 500), 1e-3, device="tpu")
    for _ in range(4):
        x = x @ x
        assert torch.tpu.current_stream().query() is True


def test_fallbacks_tell_the_line():
    torch.tpu.set_fallback_policy("error")
    library = torch.library.Library("tpu_debug_test", "FRAGMENT")
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x, "CPU")
    try:
        with pytest.raises(NotImplementedError, match="not implemented for the tpu device") as info:
            torch.ops.tpu_debug_test.f(tensor(1.0))  # here
        assert "# here" in failing_line(info)
    finally:
        torch.tpu.set_fallback_policy("warn")
        library._destroy()
