"""The CPU fallback: right, counted, told once an operator, and refused where it cannot be right."""

import warnings

import child
import pytest
import torch


@pytest.fixture(autouse=True)
def counted_from_here():
    policy = torch.tpu.get_fallback_policy()
    torch.tpu.clear_fallbacks()
    yield
    torch.tpu.set_fallback_policy(policy)
    torch.tpu.clear_fallbacks()


@pytest.fixture
def op():
    """An operator defined here, with a CPU kernel alone."""
    library = torch.library.Library("tpu_test", "FRAGMENT")
    library.define("twice(Tensor x, *, Tensor? y=None, Tensor[]? more=None) -> (Tensor, Tensor[])")
    library.define("double_(Tensor(a!) x) -> Tensor(a!)")
    library.define("same(Tensor(a) x) -> Tensor(a)")

    def twice(x, *, y=None, more=None):
        assert x.device.type == "cpu"
        return x * 2 + (0 if y is None else y), [m + 1 for m in more or []]

    library.impl("twice", twice, "CPU")
    library.impl("double_", lambda x: x.mul_(2), "CPU")
    library.impl("same", lambda x: x.view_as(x), "CPU")
    yield torch.ops.tpu_test
    library._destroy()


def test_result(op):
    torch.tpu.set_fallback_policy("silent")
    x = torch.arange(6.0, device="tpu:1").reshape(2, 3)
    doubled, more = op.twice(x.T, y=x.T, more=[x[0], x[1]])
    assert doubled.device == more[1].device == torch.device("tpu:1")
    assert torch.equal(doubled.cpu(), x.cpu().T * 3)
    assert more[1].tolist() == [4.0, 5.0, 6.0]


def test_in_place(op):
    torch.tpu.set_fallback_policy("silent")
    x = torch.arange(6.0, device="tpu")
    view = x[1:3]
    assert op.double_(view) is view
    assert x.tolist() == [0, 2, 4, 3, 4, 5]


def test_is_counted(op):
    torch.tpu.set_fallback_policy("silent")
    assert torch.tpu.fallbacks() == []
    assert torch.tpu.fallback_count() == 0
    x = torch.ones(2, device="tpu")
    for _ in range(3):
        op.twice(x)  # the line that is told
    op.double_(x)
    records = {record["op"]: record for record in torch.tpu.fallbacks()}
    assert {name.split("::")[-1]: r["count"] for name, r in records.items()} == {
        "twice": 3,
        "double_": 1,
    }
    assert torch.tpu.fallback_count() == 4
    (where,) = (r["where"] for name, r in records.items() if name.endswith("twice"))
    file, line = where.rsplit(":", 1)
    assert file == __file__
    with open(file) as source:
        assert "the line that is told" in source.readlines()[int(line) - 1]
    torch.tpu.clear_fallbacks()
    assert torch.tpu.fallbacks() == []


def test_is_told_once_an_operator(op):
    torch.tpu.set_fallback_policy("warn")
    x = torch.ones(2, device="tpu")
    with pytest.warns(UserWarning, match=f"twice has no tpu implementation.*{__file__}:[0-9]+"):
        op.twice(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op.twice(x)
    with pytest.warns(UserWarning, match="double_ has no tpu implementation"):
        op.double_(x)


def test_warning_may_be_an_error(op):
    torch.tpu.set_fallback_policy("warn")
    x = torch.ones(2, device="tpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="twice has no tpu implementation"):
            op.twice(x)
    assert op.twice(x)[0].tolist() == [2, 2]


def test_error(op):
    torch.tpu.set_fallback_policy("error")
    x = torch.ones(2, device="tpu")
    with pytest.raises(NotImplementedError, match="twice' is not implemented for the tpu device"):
        op.twice(x)
    with pytest.raises(NotImplementedError, match="double_"):
        op.double_(x)
    assert x.tolist() == [1, 1]
    assert torch.tpu.fallbacks() == []


def test_policy_from_the_environment():
    code = """
        import torch
        print(torch.tpu.get_fallback_policy())
    """
    assert child.check(code) == "warn\n"
    assert child.check(code, TORCH_TPU_FALLBACK="error") == "error\n"


def test_wrong_policy():
    with pytest.raises(ValueError, match='got "loud"'):
        torch.tpu.set_fallback_policy("loud")


def test_views_are_refused(op):
    torch.tpu.set_fallback_policy("silent")
    with pytest.raises(NotImplementedError, match="same' on the tpu device"):
        op.same(torch.ones(2, device="tpu"))
    assert torch.tpu.fallbacks() == []


# What a copy on the CPU would get silently wrong is done here, or refused; never by the fallback.
STORAGES = {
    "set_": lambda x: torch.empty(0, device="tpu").set_(x),
    "set_.source_Storage": lambda x: torch.empty(0, device="tpu").set_(x.untyped_storage()),
    "set_.of_a_part": lambda x: torch.empty(0, device="tpu").set_(
        x.untyped_storage(), 1, (2,), (1,)
    ),
    "set_.nothing": lambda x: x.set_(),
    "resize_": lambda x: x.resize_(7),
    "resize_as_": lambda x: x.resize_as_(torch.empty(9, device="tpu")),
    "is_set_to": lambda x: x.is_set_to(x.view_as(x)),
    "record_stream": lambda x: x.record_stream(torch.tpu.Stream()),
    "view": lambda x: x.view(2, 2),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 2)),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "diagonal": lambda x: x.view(2, 2).diagonal(),
    "view_as_complex": lambda x: torch.view_as_complex(x.view(2, 2)),
    "item": lambda x: x[0].item(),
    "is_pinned": lambda x: x.is_pinned(),
}


@pytest.mark.parametrize("name", STORAGES)
def test_storages_and_views_do_without(name):
    torch.tpu.set_fallback_policy("silent")
    STORAGES[name](torch.arange(4.0, device="tpu"))
    assert torch.tpu.fallbacks() == []


@pytest.mark.parametrize("name", ["native_batch_norm", "rrelu_with_noise"])
def test_unannotated_mutation_does_without(name):
    torch.tpu.set_fallback_policy("silent")
    x = torch.randn(4, 3, device="tpu")
    mean, var = torch.zeros(3, device="tpu"), torch.ones(3, device="tpu")
    if name == "native_batch_norm":
        torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5)
        assert mean.abs().sum().item() > 0
    else:
        noise = torch.zeros_like(x)
        torch.ops.aten.rrelu_with_noise(x, noise, 0.1, 0.3, True)
        assert noise.abs().sum().item() > 0
    assert torch.tpu.fallbacks() == []
