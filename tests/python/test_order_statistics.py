"""mode, histc and topk against CPU PyTorch."""

import pytest
import torch
from agreement import agree_on

NAN = float("nan")


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)
def test_mode(dtype, dim):
    x = ((torch.arange(60) * 7) % 5).reshape(3, 4, 5).to(dtype)
    # Which of the places it stands at is not said.
    agree_on(lambda x: torch.mode(x, dim=dim).values, x)
    agree_on(lambda x: torch.mode(x, dim=dim, keepdim=True).values, x)
    on_tpu = x.to("tpu")
    mode = torch.mode(on_tpu, dim=dim, keepdim=True)
    assert torch.equal(on_tpu.gather(dim, mode.indices), mode.values)


def test_mode_special():
    agree_on(lambda x: torch.mode(x).values, torch.tensor([1.0, NAN, 2.0]))
    agree_on(lambda x: torch.mode(x).values, torch.tensor([2.0, NAN, 1.0, 1.0]))
    agree_on(torch.mode, torch.tensor(3.0))
    agree_on(torch.mode, torch.tensor([2, 1, 1, 2, 2, 1]))
    agree_on(torch.mode, torch.zeros(2, 0))
    agree_on(torch.mode, torch.zeros(0))
    agree_on(lambda x: torch.mode(x, dim=1), torch.zeros(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_histc(dtype):
    x = torch.tensor([[-1.0, 0.0, 0.5, 1.0], [1.5, 2.0, 2.0, 3.0]], dtype=dtype)
    agree_on(lambda x: torch.histc(x, bins=4), x)
    agree_on(lambda x: torch.histc(x, bins=4, min=0, max=2), x)
    agree_on(lambda x: torch.histc(x, bins=3, min=-0.5, max=2.5), x)
    agree_on(lambda x: torch.histc(x, bins=3, min=2, max=2), x)
    agree_on(lambda x: torch.histc(x[0, :1], bins=3), x)
    agree_on(lambda x: torch.histc(x[:0], bins=3), x)
    agree_on(lambda x: torch.histc(x / 0, bins=3, min=-1, max=1), x)


def test_histc_of_integers():
    """What a mixture of experts counts its tokens by; CUDA takes integers, CPU does not."""
    x = torch.tensor([0, 7, 3, 3, 1, 7, 7], dtype=torch.int32)
    counts = torch.histc(x.to("tpu"), bins=8, min=0, max=7)
    assert counts.dtype == torch.int32
    assert counts.tolist() == torch.histc(x.float(), bins=8, min=0, max=7).tolist()


def test_histc_errors():
    x = torch.tensor([1.0, 2.0])
    agree_on(lambda x: torch.histc(x, bins=0), x)
    agree_on(lambda x: torch.histc(x, bins=2, min=3, max=1), x)
    agree_on(lambda x: torch.histc(x, bins=2, min=3, max=float("inf")), x)
    with pytest.raises(RuntimeError, match="range is not finite"):
        torch.histc((x / 0).to("tpu"), bins=2).cpu()
    assert torch.histc(x.to("tpu"), bins=2).tolist() == [1, 1]


@pytest.mark.parametrize("k", [0, 1])
def test_topk_of_a_scalar(k):
    agree_on(lambda x: torch.topk(x, k, 0), torch.tensor(2.5))
    agree_on(lambda x: torch.topk(x, k, largest=False), torch.tensor(3))
