"""Attention on DTensors: how the device's fused operator may be sharded, and context parallelism.

PyTorch knows both for the operators of CUDA; a device of its own has another one, so these are
registered: the sharding through `register_sharding`, context parallelism in the table of handlers
that `context_parallel` puts into DTensor's dispatcher for as long as it lasts. The ring itself
(`_templated_ring_attention`) is PyTorch's and takes any operator that returns the logarithm of the
sums, so that parts can be merged, and whose backward believes the one it is given.
"""

import functools

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.experimental._context_parallel import _attention

_FORWARD = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default
_BACKWARD = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default
_BATCH, _HEADS, _SEQUENCE = 0, 1, 2  # dimensions of queries, keys, values and outputs


def _bias_placement(bias, sharded):
    """Of a bias that broadcasts to [batch, heads, queries, keys]; and that of its gradient."""
    if bias is None:
        return None, None
    if not isinstance(sharded, Shard):
        return Replicate(), Replicate()
    dim = sharded.dim - (4 - bias.ndim)
    if dim < 0 or bias.shape[dim] == 1:
        return Replicate(), Partial()  # each rank sums up what its part contributes
    return Shard(dim), Shard(dim)


def _forward_shardings(
    query, key, value, attn_bias=None, dropout_p=0.0, causal=False, debug=False, *, scale=None
):
    shardings = []
    for place in (Replicate(), Shard(_BATCH), Shard(_HEADS)):
        bias, _ = _bias_placement(attn_bias, place)
        whole = Replicate()  # seed and offset; the others are empty
        outputs = [place, place, whole, whole, None, None, whole, whole, whole]
        shardings.append((outputs, [place, place, place, bias, None, None, None]))
    return shardings


def _backward_shardings(
    grad, query, key, value, attn_bias, mask, out, logsumexp, *rest, scale=None
):
    shardings = []
    for place in (Replicate(), Shard(_BATCH), Shard(_HEADS)):
        bias, bias_grad = _bias_placement(attn_bias, place)
        outputs = [place, place, place, bias_grad if mask[3] else None]
        inputs = [place, place, place, place, bias, None, place, place]
        # The seed and the offset; what there is only for nested tensors is not given here.
        inputs += [Replicate() if isinstance(x, DTensorSpec) else None for x in rest]
        shardings.append((outputs, inputs))
    return shardings


def _local(mesh, tensor):
    """This rank's part of one of the tensors whose sequence is sharded."""
    if tensor.device_mesh != mesh or tensor.placements != (Shard(_SEQUENCE),):
        raise NotImplementedError(
            "tpu: context parallelism needs queries, keys and values sharded along the sequence on "
            f"one mesh of one dimension, got {tensor.placements} on {tensor.device_mesh}"
        )
    return tensor._local_tensor


def _check(query, attn_bias, dropout_p):
    if attn_bias is not None:
        raise NotImplementedError("tpu: context parallelism has no attn_mask, only is_causal")
    if dropout_p:
        raise NotImplementedError("tpu: context parallelism has no dropout in attention")
    if query.dtype == torch.float64:
        raise NotImplementedError("tpu: context parallelism merges in float32, not in float64")


def _wrap(mesh, tensors):
    with torch.no_grad():
        return [DTensor.from_local(t, mesh, [Shard(_SEQUENCE)], run_check=False) for t in tensors]


def _ring(op, args, kwargs):
    given = _named(op, args, kwargs)
    mesh = given["query"].device_mesh
    _check(given["query"], given["attn_bias"], given["dropout_p"])
    query, key, value = (_local(mesh, given[name]) for name in ("query", "key", "value"))
    out, logsumexp, *rest = _attention._templated_ring_attention(
        mesh.get_group(),
        _SEQUENCE,
        op,
        query,
        key,
        value,
        is_causal=given["is_causal"],
        scale=given["scale"],
    )
    return (*_wrap(mesh, (out, logsumexp)), *rest)


def _ring_backward(op, args, kwargs):
    given = _named(op, args, kwargs)
    mesh = given["query"].device_mesh
    tensors = ("grad_out", "query", "key", "value", "out", "logsumexp")
    parts = {name: _local(mesh, given.pop(name)) for name in tensors}
    grads = _attention._templated_ring_attention_backward(
        mesh.get_group(), _SEQUENCE, op, grad_out_name="grad_out", **parts, **given
    )
    return (*_wrap(mesh, grads[:3]), None)


def _named(op, args, kwargs):
    """All arguments of a call by their names."""
    arguments = op._schema.arguments
    given = {a.name: a.default_value for a in arguments if a.has_default_value()}
    given.update(zip((a.name for a in arguments), args, strict=False))
    return {**given, **kwargs}


@functools.cache
def register() -> None:
    """Makes DTensor know the operator. Imports `torch.distributed.tensor`, half a second."""
    register_sharding(_FORWARD)(_forward_shardings)
    register_sharding(_BACKWARD)(_backward_shardings)
    _attention.custom_ops[_FORWARD] = _ring
    _attention.custom_ops[_BACKWARD] = _ring_backward
