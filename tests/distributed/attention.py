"""F.scaled_dot_product_attention on DTensors and in context parallelism, forward and backward,
against one process."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import check, held, main
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention, set_rotate_method
from torch.distributed.tensor.experimental._context_parallel import (
    context_parallel_unshard as unshard,
)

LENGTH = 32


def inputs(heads=4, kv_heads=4, dtype=torch.float32):
    """Queries, keys, values and the gradient of the output, whole."""
    shapes = [(2, h, LENGTH, 8) for h in (heads, kv_heads, kv_heads, heads)]
    tensors = [held(i, shape, dtype).to("tpu") for i, shape in enumerate(shapes)]
    for x in tensors[:3]:
        x.requires_grad_()
    return tensors


def single(q, k, v, grad, **options):
    out = F.scaled_dot_product_attention(q, k, v, **options)
    leaves = [x for x in (q, k, v, options.get("attn_mask")) if x is not None and x.requires_grad]
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def ring(method, balance, dtype, **options):
    """Output and gradients of context_parallel, put together again."""
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    heads, kv_heads = (4, 2) if options.get("enable_gqa") else (4, 4)
    tensors = inputs(heads, kv_heads, dtype)
    expected = single(*tensors, **options)
    q, k, v, grad = (x.detach().clone() for x in tensors)
    set_rotate_method(method)
    _attention._cp_options.enable_load_balance = balance
    buffers = [q, k, v, grad]
    with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * 4):
        assert q.shape[2] == LENGTH // mesh.size()
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = F.scaled_dot_product_attention(*leaves, **options)
        out.backward(grad)
        parts = [out.detach(), *(x.grad for x in leaves)]
        whole = unshard(mesh, parts, [2] * 4)
    tolerance = 2e-5 if dtype == torch.float32 else 3e-2
    for part, a, b in zip(("out", "q", "k", "v"), whole, expected, strict=True):
        torch.testing.assert_close(
            a.cpu(),
            b.cpu(),
            rtol=tolerance,
            atol=tolerance,
            msg=lambda m, p=part: f"{method} {balance} {dtype} {options} {p}: {m}",
        )


@check
def context_parallel_causal():
    for method in ("allgather", "alltoall"):
        for balance in (True, False):
            ring(method, balance, torch.float32, is_causal=True)
    ring("allgather", True, torch.bfloat16, is_causal=True)
    ring("alltoall", True, torch.float32, is_causal=True, scale=0.3, enable_gqa=True)


@check
def context_parallel_without_a_mask():
    for method in ("allgather", "alltoall"):
        ring(method, False, torch.float32)


@check
def what_context_parallel_refuses():
    """Rather than compute something else."""
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    for dtype, options, said in (
        (torch.float32, {"dropout_p": 0.5, "is_causal": True}, "no dropout"),
        (torch.float64, {"is_causal": True}, "not in float64"),
    ):
        q = held(0, (2, 4, LENGTH, 8), dtype).to("tpu")
        _attention._cp_options.enable_load_balance = True
        with context_parallel(mesh, buffers=[q], buffer_seq_dims=[2]):
            try:
                F.scaled_dot_product_attention(q, q, q, **options)
            except NotImplementedError as error:
                assert said in str(error), error
            else:
                raise AssertionError(said)


@check
def sharded_batches_and_heads():
    world = dist.get_world_size()
    mesh = init_device_mesh("tpu", (world,))
    q, k, v, grad = (
        held(i, (world, 2 * world, LENGTH, 8)).to("tpu").requires_grad_(i < 3) for i in range(4)
    )
    for shape in ((world, 2 * world, LENGTH, LENGTH), (2 * world, LENGTH, LENGTH), (1, LENGTH)):
        bias = held(5, shape).to("tpu").requires_grad_()
        expected = single(q, k, v, grad, attn_mask=bias)
        for placement in (Shard(0), Shard(1), Replicate()):
            leaves = [
                distribute_tensor(x.detach(), mesh, [placement]).requires_grad_() for x in (q, k, v)
            ]
            mask = distribute_tensor(bias.detach(), mesh, [Replicate()]).requires_grad_()
            out = F.scaled_dot_product_attention(*leaves, attn_mask=mask)
            assert out.placements == (placement,)
            grads = torch.autograd.grad(
                out, [*leaves, mask], distribute_tensor(grad, mesh, [placement])
            )
            for a, b in zip([out, *grads], expected, strict=True):
                torch.testing.assert_close(
                    a.detach().full_tensor().cpu(), b.cpu(), rtol=1e-4, atol=1e-5
                )


if __name__ == "__main__":
    main()
