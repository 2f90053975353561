"""`flex_attention` on tpu: plain operators, which XLA fuses."""

import functools

import torch

from .higher_order import rule


def accept_flex_attention() -> None:
    """Lets `flex_attention` take tensors on tpu.

    It refuses devices that are not on a list inside of it, before it calls any operator; hence the
    function that does so is replaced. Other devices are still checked by it.
    """
    from torch.nn.attention import flex_attention as module

    check = module._validate_device
    if getattr(check, "_knows_tpu", False):
        return

    @functools.wraps(check)
    def validate(query, key, value):
        if query.device.type != "tpu":
            check(query, key, value)

    validate._knows_tpu = True
    module._validate_device = validate


def _gradients_of(joint_graph, count: int) -> list[bool]:
    """For each of the last `count` results of a graph of gradients, whether it is a tensor."""
    module = joint_graph.args[0]  # the graph that the function runs
    returned = module.graph.output_node().args[0]
    return [result is not None for result in returned[len(returned) - count :]]


@rule("flex_attention_backward")
def _flex_attention_backward(*args):
    from torch._higher_order_ops.flex_attention import sdpa_dense_backward

    *before, joint_graph, block_mask, scale, kernel_options, buffers, mask_buffers = args
    # PyTorch's implementation computes gradients of the buffers that ask for them. A graph's inputs
    # do not say so, but the graph of gradients was made for those that did.
    wanted = _gradients_of(joint_graph, len(buffers))
    buffers = tuple(
        buffer.detach().requires_grad_() if wants and isinstance(buffer, torch.Tensor) else buffer
        for buffer, wants in zip(buffers, wanted, strict=True)
    )
    return sdpa_dense_backward(
        *before, joint_graph, block_mask, scale, kernel_options, buffers, mask_buffers
    )
