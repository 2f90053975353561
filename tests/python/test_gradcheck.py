"""Gradients against differences, operator by operator, as PyTorch tests its own devices.

A selection: of each kind of backward formula one. tests/full/test_gradients.py checks all.
"""

import pytest
import torch
from opinfo_gradients import KINDS, differentiable, verdict
from rule_inputs import words

# Names of OpInfo, with the variant where there is one.
SELECTION = words("""
    add mul div.trunc_rounding pow atan2 hypot where clamp maximum fmod addcdiv lerp logaddexp
    sigmoid tanh exp log1p rsqrt erfinv lgamma digamma i0 sinc nan_to_num special.ndtri
    nn.functional.gelu nn.functional.silu nn.functional.mish nn.functional.softplus
    nn.functional.prelu nn.functional.elu nn.functional.glu nn.functional.hardswish
    sum mean prod std var norm logsumexp amax aminmax max.reduction_with_dim median nanmean
    kthvalue mode sort topk msort cumsum cumprod logcumsumexp cummax trapezoid
    softmax.with_dtype log_softmax masked.softmax nn.functional.cross_entropy
    nn.functional.nll_loss nn.functional.huber_loss nn.functional.kl_div nn.functional.mse_loss
    nn.functional.binary_cross_entropy nn.functional.cosine_embedding_loss
    nn.functional.triplet_margin_loss nn.functional.multilabel_soft_margin_loss
    mm bmm baddbmm addmv matmul einsum tensordot linalg.multi_dot outer cross cdist
    nn.functional.linear nn.functional.bilinear nn.functional.scaled_dot_product_attention
    nn.functional.conv1d nn.functional.conv2d nn.functional.conv_transpose2d
    nn.functional.batch_norm nn.functional.layer_norm nn.functional.group_norm
    nn.functional.instance_norm nn.functional.rms_norm nn.functional.local_response_norm
    nn.functional.max_pool2d nn.functional.avg_pool1d nn.functional.avg_pool2d
    nn.functional.adaptive_avg_pool2d nn.functional.unfold
    nn.functional.pixel_shuffle nn.functional.pad.reflect
    nn.functional.pad.circular nn.functional.interpolate.bilinear nn.functional.interpolate.bicubic
    nn.functional.grid_sample nn.functional.embedding nn.functional.embedding_bag
    gather scatter_add scatter_reduce.prod scatter_reduce.amin index_select index_add index_copy
    index_put index_fill index_reduce.mean take masked_fill masked_scatter masked_select
    cat stack split unfold as_strided expand permute transpose narrow diagonal tril roll flip
    repeat tile squeeze unbind movedim diag_embed block_diag select_scatter slice_scatter
    fft.fft fft.irfft fft.hfft2 stft complex polar angle sgn
    linalg.vector_norm linalg.vander cov trace kron renorm
""")
# Shorter ones for the forms that are derived from the same rules.
SELECTIONS = {
    "backward": SELECTION,
    "inplace": words("""
        add mul div.no_rounding_mode sigmoid addmm cumsum index_add index_copy index_fill
        masked_fill scatter_add clamp lerp tril renorm nn.functional.elu"""),
    "forward": words("""
        mul tanh softmax mm nn.functional.conv2d nn.functional.layer_norm cumprod
        index_select scatter_add"""),
    "second": words("""
        mul pow tanh sigmoid softmax logsumexp mm nn.functional.conv2d nn.functional.gelu
        nn.functional.layer_norm nn.functional.batch_norm cumprod std index_select
        nn.functional.softplus nn.functional.max_pool2d nn.functional.avg_pool2d atan2
        nn.functional.scaled_dot_product_attention"""),
}


@pytest.mark.parametrize("kind,name", [(k, n) for k in KINDS for n in SELECTIONS[k]])
def test_gradients(kind, name):
    (op,) = (op for op in differentiable(torch.float64, kind) if op.full_name == name)
    assert verdict(op, "tpu", kind) is None
