"""A small Flux transformer that Diffusers shards, while it loads it or afterwards: output and
the gradients of what is sharded equal a single process's.

usage: diffusion.py DIRECTORY [CHECK...]
"""

import sys

import torch
import torch.distributed as dist
from diffusers import FluxTransformer2DModel, TensorParallelConfig
from diffusers.utils import logging
from ranks import check, held, main
from torch.distributed.tensor import DTensor

logging.set_verbosity_error()
DIRECTORY = sys.argv.pop(1)


def transformer() -> FluxTransformer2DModel:
    torch.manual_seed(0)
    return FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )


def output(model, device: str) -> torch.Tensor:
    places = torch.cartesian_prod(torch.zeros(1), torch.arange(4.0), torch.arange(4.0))
    inputs = {
        "hidden_states": held(0, (1, 16, 4)),
        "encoder_hidden_states": held(1, (1, 12, 32)),
        "pooled_projections": held(2, (1, 32)),
        "timestep": torch.tensor([0.5]),
        "img_ids": places,
        "txt_ids": torch.zeros(12, 3),
    }
    return model(**{name: value.to(device) for name, value in inputs.items()}).sample


def equal(model) -> None:
    weight = model.transformer_blocks[0].attn.to_q.weight
    assert weight.device.type == "tpu" and weight.to_local().shape == (16, 32)
    single = transformer()
    expected, actual = output(single, "cpu"), output(model, "tpu")
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
    for result in (expected, actual):
        (result**2).mean().backward()
    # Of the norms that every rank has, Diffusers leaves each rank a part of the gradient, and what
    # it calls packed is whole in another order.
    for (name, p), q in zip(model.named_parameters(), single.parameters(), strict=True):
        if isinstance(p, DTensor) and not name.endswith("proj_out.weight"):
            gradient = p.grad.full_tensor().cpu()
            torch.testing.assert_close(gradient, q.grad, rtol=1e-3, atol=1e-6)


@check
def while_loading():
    if dist.get_rank() == 0:
        transformer().save_pretrained(DIRECTORY)
    dist.barrier()
    layout = TensorParallelConfig(tp_degree=2)
    equal(FluxTransformer2DModel.from_pretrained(DIRECTORY, parallel_config=layout))


@check
def afterwards():
    model = transformer().to("tpu")
    model.enable_parallelism(config=TensorParallelConfig(tp_degree=2))
    equal(model)


if __name__ == "__main__":
    main()
