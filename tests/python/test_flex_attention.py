"""`flex_attention` against the CPU: score functions, block masks, groups of heads, gradients."""

import math

import pytest
import torch
from agreement import same
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from torch_tpu.compile import executable

BATCH, HEADS, QUERIES, KEYS, FEATURES = 2, 4, 20, 28, 8

pytestmark = [
    pytest.mark.filterwarnings("error:torch.compile on tpu"),  # a graph was cut
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:return_lse is deprecated"),
]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.tpu.clear_fallbacks()
    executable._told.clear()
    yield
    assert torch.tpu.fallbacks() == []


def tensors(kv_heads=HEADS, dtype=torch.float32, transposed=False):
    def one(heads, length):
        if transposed:  # as projections give them
            return torch.randn(BATCH, length, heads, FEATURES).to(dtype).transpose(1, 2)
        return torch.randn(BATCH, heads, length, FEATURES).to(dtype)

    return one(HEADS, QUERIES), one(kv_heads, KEYS), one(kv_heads, KEYS)


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    return (q - k).abs() < 5 + h


def mask_on(device, mask_mod, batch=None, heads=None):
    return create_block_mask(mask_mod, batch, heads, QUERIES, KEYS, device=device, BLOCK_SIZE=16)


def call(mode):
    return flex_attention if mode == "eager" else torch.compile(flex_attention, fullgraph=True)


def plain(q, k, v, score_mod=None, mask_mod=None):
    """The same by tensors of all scores. Returns results and log-sums."""
    groups = q.size(1) // k.size(1)
    k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
    b, h, m, n = (
        torch.arange(size).view([-1 if i == d else 1 for i in range(4)])
        for d, size in enumerate(scores.shape)
    )
    if score_mod is not None:
        scores = score_mod(scores, b, h, m, n)
    if mask_mod is not None:
        scores = scores.where(mask_mod(b, h, m, n), -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("transposed", [False, True])
def test_as_on_the_cpu(mode, dtype, transposed):
    arguments = tensors(kv_heads=2, dtype=dtype, transposed=transposed)

    def score_mod(score, b, h, q, k):
        return score * 0.5 + (q - k) * 0.01

    expected = flex_attention(
        *arguments, score_mod, mask_on("cpu", causal), scale=0.3, enable_gqa=True
    )
    actual = call(mode)(
        *(t.to("tpu") for t in arguments), score_mod, mask_on("tpu", causal), 0.3, True
    )
    same(actual, expected, tolerance=1e-5 if dtype == torch.float32 else 2e-2)


def test_block_masks_are_those_of_the_cpu():
    for batch, heads in ((None, None), (BATCH, HEADS)):
        expected, actual = (mask_on(d, window, batch, heads) for d in ("cpu", "tpu"))
        for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"):
            same(getattr(actual, name), getattr(expected, name), name)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_gradients_also_of_captured_tensors(mode):
    q, k, v = tensors(kv_heads=2)
    bias, slope = torch.randn(HEADS, KEYS), torch.randn(HEADS)

    def leaves(device):
        return [t.detach().to(device).requires_grad_() for t in (q, k, v, bias, slope)]

    on_cpu, on_tpu = leaves("cpu"), leaves("tpu")
    *qkv, b_cpu, s_cpu = on_cpu
    expected = plain(*qkv, lambda s, b, h, m, n: s * s_cpu[h] + b_cpu[h, n], window)[0]
    expected.square().sum().backward()
    mask = mask_on("tpu", window, None, HEADS)

    def step(q, k, v, bias, slope):
        def score_mod(s, b, h, m, n):
            return s * slope[h] + bias[h, n]

        return flex_attention(q, k, v, score_mod, mask, enable_gqa=True)

    function = step if mode == "eager" else torch.compile(step, fullgraph=True)
    function(*on_tpu).square().sum().backward()
    for i, (actual, expected) in enumerate(zip(on_tpu, on_cpu, strict=True)):
        same(actual.grad, expected.grad, f"gradient {i}", tolerance=2e-4)


def test_a_captured_tensor_of_numbers_has_no_gradient():
    q, k, v = tensors()
    document = torch.arange(KEYS) // 9

    def score_mod_of(document):
        return lambda s, b, h, m, n: s + document[n] * 0.1

    on_cpu = [t.requires_grad_() for t in (q, k, v)]
    on_tpu = [t.detach().to("tpu").requires_grad_() for t in (q, k, v)]
    plain(*on_cpu, score_mod_of(document))[0].square().sum().backward()
    on_device = document.to("tpu")
    call("compiled")(*on_tpu, score_mod_of(on_device)).square().sum().backward()
    for actual, expected in zip(on_tpu, on_cpu, strict=True):
        same(actual.grad, expected.grad, tolerance=1e-4)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_log_sums_and_their_gradient(mode):
    arguments = tensors()
    on_cpu = [t.clone().requires_grad_() for t in arguments]
    on_tpu = [t.to("tpu").requires_grad_() for t in arguments]
    expected = plain(*on_cpu, mask_mod=causal)
    actual = call(mode)(*on_tpu, block_mask=mask_on("tpu", causal), return_lse=True)
    for a, e in zip(actual, expected, strict=True):
        same(a.detach(), e.detach(), tolerance=1e-5)
    for results in (actual, expected):
        (results[0].square().sum() + results[1].sin().sum()).backward()
    for a, e in zip(on_tpu, on_cpu, strict=True):
        same(a.grad, e.grad, tolerance=1e-4)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast(mode, dtype):
    arguments = tensors(dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16):
        expected = flex_attention(*arguments)
    with torch.autocast("tpu", torch.bfloat16):
        actual = call(mode)(*(t.to("tpu") for t in arguments))
    same(actual, expected, tolerance=2e-2)
    assert expected.dtype is (torch.bfloat16 if dtype is torch.float32 else torch.float64)


def test_rows_without_any_key_are_zero():
    arguments = [t.to("tpu") for t in tensors()]
    mask = mask_on("tpu", lambda b, h, q, k: (q > 3) & (q >= k))
    result = call("compiled")(*arguments, block_mask=mask).cpu()
    assert torch.equal(result[:, :, :4], torch.zeros(BATCH, HEADS, 4, FEATURES))
    assert result[:, :, 4:].isfinite().all()


def test_other_devices_are_refused_as_before():
    with pytest.raises(ValueError, match="only supported on"):
        flex._validate_device(*(torch.empty(1, 1, 1, 8, device="meta") for _ in range(3)))
    with pytest.raises(NotImplementedError, match="backward on CPU"):
        flex._validate_device(*(torch.empty(1, 1, 1, 8, requires_grad=True) for _ in range(3)))


def test_arguments_that_do_not_fit_raise_as_on_the_cpu():
    errors = []
    for device in ("cpu", "tpu"):
        q, k, v = (t.to(device) for t in tensors(kv_heads=2))
        with pytest.raises(ValueError) as caught:
            flex_attention(q, k, v)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
