"""Scaled dot-product attention: the fused operator against the CPU's plain mathematics."""

import math

import pytest
import torch
import torch.nn.functional as F
from agreement import moved, same
from rule_inputs import values, weights
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_tpu.compile.capture import to_stablehlo

FUSED = "ScaledDotProductFusedAttentionOverrideableBackward0"


def attend(device, backends, tensors, mask, arguments):
    """The result, the name of its autograd node, and the gradients of all floating inputs."""
    q, k, v = (t.requires_grad_() for t in moved(tensors, device))
    mask = moved(mask, device)
    leaves = [q, k, v]
    if mask is not None and mask.is_floating_point() and arguments.pop("mask_gradient", False):
        leaves.append(mask.requires_grad_())
    with sdpa_kernel(backends):
        out = F.scaled_dot_product_attention(q, k, v, mask, **arguments)
    gradients = torch.autograd.grad(out, leaves, weights(out))
    return out.detach().contiguous(), out.grad_fn.name(), [g.contiguous() for g in gradients]


def check(q, k, v, mask=None, tolerance=2e-5, node=FUSED, **arguments):
    torch.tpu.clear_fallbacks()
    plain = attend("cpu", [SDPBackend.MATH], (q, k, v), mask, dict(arguments))
    backends = [SDPBackend.MATH, SDPBackend.OVERRIDEABLE]
    fused = attend("tpu", backends, (q, k, v), mask, dict(arguments))
    assert fused[1] == node
    same(fused[0], plain[0], "result", tolerance)
    same(fused[2], plain[2], "gradients", tolerance)
    assert torch.tpu.fallbacks() == []


def inputs(batch=2, heads=4, kv_heads=4, queries=5, keys=7, features=8, dtype=torch.float32):
    q = values(batch, heads, queries, features, dtype=dtype)
    k = values(batch, kv_heads, keys, features, dtype=dtype, seed=1)
    return q, k, values(batch, kv_heads, keys, features, dtype=dtype, seed=2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("queries", [1, 5, 7, 9])
def test_heads_and_lengths(kv_heads, causal, queries):
    tensors = inputs(kv_heads=kv_heads, queries=queries)
    check(*tensors, is_causal=causal, enable_gqa=kv_heads != 4)


MASKS = {
    "keys": lambda: values(7, dtype=torch.bool),
    "table": lambda: values(5, 7, dtype=torch.bool),
    "batch": lambda: values(2, 1, 1, 7, dtype=torch.bool),
    "full": lambda: values(2, 4, 5, 7, dtype=torch.bool),
    "empty_rows": lambda: values(5, 7, dtype=torch.bool) & (torch.arange(5) != 2)[:, None],
    "nothing": lambda: torch.zeros(5, 7, dtype=torch.bool),
    "bias": lambda: values(5, 7),
    "bias_of_heads": lambda: values(1, 4, 5, 7),
    "minus_infinity": lambda: torch.full([5, 7], -math.inf).triu(1),
    "lowest": lambda: torch.full([5, 7], torch.finfo(torch.float32).min).triu(1),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    check(*inputs(), MASKS[name]())


def test_mask_with_shared_heads():
    check(*inputs(kv_heads=2), MASKS["full"](), enable_gqa=True)
    check(*inputs(kv_heads=2), values(1, 4, 5, 7), enable_gqa=True)


@pytest.mark.parametrize("shape", [[5, 7], [1, 4, 1, 7], [2, 4, 5, 7]])
def test_mask_that_is_learned(shape):
    check(*inputs(), values(*shape), mask_gradient=True)


@pytest.mark.parametrize("scale", [0.3, 1.0, -0.5])
def test_scale(scale):
    check(*inputs(), scale=scale)


def test_values_of_another_size():
    q, k, v = inputs()
    check(q, k, torch.cat([v, v], -1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype):
    tolerance = {torch.float64: 1e-12, torch.float16: 2e-2}.get(dtype, 8e-2)
    check(*inputs(dtype=dtype), tolerance=tolerance)
    check(*inputs(dtype=dtype, queries=7), is_causal=True, tolerance=tolerance)


def test_layouts():
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in inputs())
    check(q, k, v)
    packed = values(2, 6, 3, 4, 8)
    check(*(packed[:, :, i].transpose(1, 2) for i in range(3)))
    q, k, v = inputs()
    check(q, k[:, :1].expand_as(k), v)


def test_what_the_fused_operator_does_not_take():
    q, k, v = inputs()
    check(q[0], k[0], v[0], node="UnsafeViewBackward0")  # three dimensions
    check(q, k[:1], v[:1], node="UnsafeViewBackward0")  # a batch to broadcast


def test_backends_can_be_chosen():
    q, k, v = inputs()
    math_only = attend("tpu", [SDPBackend.MATH], (q, k, v), None, {})
    assert math_only[1] != FUSED
    same(math_only[0], attend("cpu", [SDPBackend.MATH], (q, k, v), None, {})[0], tolerance=2e-5)
    only_fused = attend("tpu", [SDPBackend.OVERRIDEABLE], (q, k, v), None, {})
    assert only_fused[1] == FUSED
    with pytest.raises(RuntimeError, match="No viable backend"):
        attend("tpu", [SDPBackend.OVERRIDEABLE], (q[0], k[0], v[0]), None, {})


def test_errors():
    q, k, v = (t.tpu() for t in inputs())
    with pytest.raises(RuntimeError, match="dtype"):
        F.scaled_dot_product_attention(q, k.double(), v)
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(q, k[..., :4], v)
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(q, k[:, :3], v[:, :3])
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(q, k, v, torch.ones(3, 7).tpu())


def test_nothing_to_attend():
    q, k, v = inputs()
    # PyTorch does not ask for a backend here.
    check(q[:, :, :0], k, v, node="AddBackward0")
    check(q, k[:, :, :0], v[:, :, :0], node="AddBackward0")
    check(q[:0], k[:0], v[:0], node="AddBackward0")


def test_dropout():
    torch.manual_seed(0)
    p, keys = 0.25, 64
    q = torch.ones(4, 8, 64, 16).tpu().requires_grad_()
    v = torch.ones(4, 8, keys, 16).tpu().requires_grad_()
    k = torch.ones(4, 8, keys, 16).tpu()
    before = torch.tpu.get_rng_state()
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
    # Each result is the share of the keys that was kept, over 1 - p.
    assert abs(out.mean().item() - 1) < 0.01
    assert out[..., 0].std().item() == pytest.approx(math.sqrt(p / (1 - p) / keys), rel=0.1)
    assert not torch.equal(torch.tpu.get_rng_state(), before)
    # The backward drops the same entries.
    (grad,) = torch.autograd.grad(out.sum(), v)
    assert (grad * v).sum().item() == pytest.approx(out.sum().item(), rel=1e-4)
    torch.tpu.set_rng_state(before)
    again = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
    assert torch.equal(again.cpu(), out.cpu())
    other = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
    assert not torch.equal(other.cpu(), out.cpu())


def test_without_dropout_no_random_number_is_drawn():
    q, k, v = (t.tpu() for t in inputs())
    before = torch.tpu.get_rng_state()
    F.scaled_dot_product_attention(q, k, v)
    assert torch.equal(torch.tpu.get_rng_state(), before)


@pytest.mark.parametrize("training", [True, False])
def test_multihead_attention_module(training):
    def run(device):
        torch.manual_seed(0)
        module = nn.MultiheadAttention(8, 2, batch_first=True).train(training).to(device)
        x, ignored = values(2, 5, 8).to(device), (torch.arange(5) > 3).expand(2, 5).to(device)
        out, shares = module(x, x, x, key_padding_mask=ignored)
        alone = module(x, x, x, need_weights=False)[0]
        return [t.detach().contiguous() for t in (out, shares, alone)]

    same(run("tpu"), run("cpu"), tolerance=2e-5)


def test_transformer_layer():
    def run(device):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).to(device)
        layer(values(2, 5, 8).to(device)).square().sum().backward()
        return [p.grad for p in layer.parameters()]

    same(run("tpu"), run("cpu"), tolerance=1e-3)


def test_training_written_for_the_tpu_computes_the_scores_anew():
    """As one program; it runs here as well."""

    def step(*inputs):
        leaves = [x.detach().requires_grad_() for x in inputs]
        y = F.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)
        return (y.detach(), *torch.autograd.grad((y * y).sum(), leaves))

    shapes = [(2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8)]
    inputs = [torch.randn(shape) for shape in shapes]
    ours = [x.to("tpu") for x in inputs]
    graph = make_fx(step)(*ours)
    text = to_stablehlo(graph, ours, "tpu", lines=False).text
    assert text.count("stablehlo.optimization_barrier") == 1
    found = torch.tpu.export.load(text)(*ours)
    for got, wanted in zip(found, step(*inputs), strict=True):
        torch.testing.assert_close(got.cpu().reshape(wanted.shape), wanted)


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"attn_mask": torch.randn(2, 1, 16, 20)}]
)
def test_what_is_written_for_the_tpu_computes_the_same(options):
    """Its program, run here: the TPU has a form of its own."""
    from torch_tpu import _C, aot

    class Attention(torch.nn.Module):
        def forward(self, query, key, value, **options):
            return F.scaled_dot_product_attention(query, key, value, enable_gqa=True, **options)

    args = torch.randn(2, 8, 16, 32), torch.randn(2, 2, 20, 32), torch.randn(2, 2, 20, 24)
    lowered = aot.lower(Attention(), args, options)
    tensors = dict(zip(("query", "key", "value"), args, strict=True)) | options
    inputs, outputs = (
        [(getattr(torch, v.dtype), v.shape) for v in values]
        for values in (lowered.inputs, lowered.outputs)
    )
    program = _C.LoadedProgram("attention", lowered.text, inputs, outputs)
    (result,) = program.run(0, [tensors[v.name].to("tpu") for v in lowered.inputs])
    torch.testing.assert_close(result.cpu(), Attention()(*args, **options), rtol=1e-5, atol=1e-6)
