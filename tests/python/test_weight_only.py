"""Products with int8 and int4 weights."""

import pytest
import torch

FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def tolerance(dtype):
    return {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-1}


@pytest.mark.parametrize("dtype", FLOATS)
def test_int8(dtype):
    x = torch.randn(5, 32).to(dtype)
    w = torch.randint(-128, 128, (16, 32), dtype=torch.int8)
    scales = (torch.rand(16) / 100).to(dtype)
    ours = torch._weight_int8pack_mm(x.to("tpu"), w.to("tpu"), scales.to("tpu"))
    expected = ((x.double() @ w.double().t()) * scales.double()).to(dtype)
    assert (ours.dtype, ours.shape) == (dtype, (5, 16))
    torch.testing.assert_close(ours.cpu(), expected, **tolerance(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("group", "tiles"), [(32, 2), (64, 8), (128, 4)])
def test_int4(dtype, group, tiles):
    m, n, k = 3, 24, 128
    x = torch.randn(m, k).to(dtype)
    q = torch.randint(0, 16, (n, k), dtype=torch.int32)
    parameters = torch.rand(k // group, n, 2).to(dtype) / 10
    packed = torch._convert_weight_to_int4pack(
        (q[:, ::2] << 4 | q[:, 1::2]).to(torch.uint8).to("tpu"), tiles
    )
    assert (packed.dtype, packed.shape) == (
        torch.int32,
        (n // 8, k // (16 * tiles), 32, tiles // 2),
    )
    ours = torch._weight_int4pack_mm(x.to("tpu"), packed, group, parameters.to("tpu"))
    scale, zero = parameters.double().repeat_interleave(group, 0).unbind(-1)
    expected = (x.double() @ ((q.t() - 8) * scale + zero).to(dtype).double()).to(dtype)
    assert (ours.dtype, ours.shape) == (dtype, (m, n))
    torch.testing.assert_close(ours.cpu(), expected, **tolerance(dtype))


def test_wrong_arguments():
    x = torch.randn(2, 32, device="tpu")
    w = torch.zeros(8, 16, dtype=torch.int8, device="tpu")
    with pytest.raises(RuntimeError, match=r"int8 matrix \[n, 32\], got Char \[8, 16\]"):
        torch._weight_int8pack_mm(x, w, torch.ones(8, device="tpu"))
    with pytest.raises(RuntimeError, match="innerKTiles must be 2, 4 or 8, got 3"):
        torch._convert_weight_to_int4pack(w.view(torch.uint8), 3)
    packed = torch._convert_weight_to_int4pack(w.view(torch.uint8), 2)
    with pytest.raises(RuntimeError, match="qGroupSize 5 does not divide 32"):
        torch._weight_int4pack_mm(x, packed, 5, torch.ones(1, 8, 2, device="tpu"))
    assert (x + 1).sum().isfinite()
