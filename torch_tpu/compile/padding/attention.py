"""Attention."""

import math

import torch
from torch.fx import Node

from ..extents import Sizes, broadcast, varies
from .rule import Padded, call, rule, zeroed


def _keys(sizes: Sizes, key: Padded, query: Padded, bias: Padded | None, causal: bool):
    """The bias that leaves out padded keys, and whether queries still have to leave out later ones.

    Causal attention of as many queries as keys needs none: what is filled sees only what is filled.
    """
    broadcast([query.layout[:1], key.layout[:1]])
    length = key.layout[2]
    if not varies(length) or (causal and query.layout[2] == length):
        return bias, causal
    inside, layout = sizes.filled(length), (length,)
    if causal:
        places = [torch.arange(t.tensor.shape[2], device=key.tensor.device) for t in (query, key)]
        inside, layout = inside & (places[1] <= places[0][:, None]), (query.layout[2], length)
    dtype, device = query.tensor.dtype, query.tensor.device
    other = torch.full((), -math.inf, dtype=dtype, device=device)
    given = torch.zeros((), dtype=dtype, device=device) if bias is None else bias.tensor
    tensor = torch.where(inside, given, other)
    layout = broadcast([layout, () if bias is None else bias.layout])
    rank = 4 - tensor.dim()
    full = Padded(tensor.view([1] * rank + list(tensor.shape)), ((),) * rank + layout)
    return full, False


@rule("_scaled_dot_product_fused_attention_overrideable")
def _attention(
    sizes: Sizes,
    node: Node,
    query: Padded,
    key: Padded,
    value: Padded,
    bias: Padded | None = None,
    dropout=0.0,
    causal=False,
    *args,
    **kwargs,
):
    bias, causal = _keys(sizes, key, query, bias, causal)
    # No scores of padding that are not numbers.
    key, value = (zeroed(sizes, t) if varies(t.layout[2]) else t for t in (key, value))
    layouts = [None] * len(node.meta["val"])
    layouts[0] = (*query.layout[:3], value.layout[3])
    layouts[1] = query.layout[:3]
    layouts[6] = layouts[7] = ()
    given = (query, key, value, bias, dropout, causal, *args)
    return call(sizes, node, given, kwargs, layouts)


@rule("_scaled_dot_product_fused_attention_overrideable_backward")
def _attention_backward(
    sizes: Sizes,
    node: Node,
    grad: Padded,
    query: Padded,
    key: Padded,
    value: Padded,
    bias: Padded | None,
    needed,
    out: Padded,
    logsumexp: Padded,
    cum_q,
    cum_k,
    max_q,
    max_k,
    dropout,
    causal,
    *args,
    **kwargs,
):
    layouts = [query.layout, key.layout, value.layout, bias.layout if bias is not None else None]
    bias, causal = _keys(sizes, key, query, bias, causal)
    grad, query, key, value, out, logsumexp = (
        zeroed(sizes, t) for t in (grad, query, key, value, out, logsumexp)
    )
    given = (grad, query, key, value, bias, needed, out, logsumexp, cum_q, cum_k)
    given += (sizes.padded(max_q), sizes.padded(max_k), dropout, causal, *args)
    return call(sizes, node, given, kwargs, layouts)
