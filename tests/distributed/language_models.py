"""Small language models that Transformers shards while it loads them: logits, training and what is
saved equal a single process's.

usage: language_models.py DIRECTORY [CHECK...]
"""

import pathlib
import sys

import torch
import torch.distributed as dist
from problem import adamw, close
from ranks import check, main
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, Qwen3MoeConfig, logging
from transformers.distributed import DistributedConfig

logging.disable_progress_bar()
logging.set_verbosity_error()

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 64,
}
MIXTRAL = MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
QWEN = Qwen3MoeConfig(
    **SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=8
)
TOKENS = 1 + (torch.arange(24) * 7 % 95).reshape(2, 12)
DIRECTORY = pathlib.Path(sys.argv.pop(1))


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def optimizer(model) -> torch.optim.Optimizer:
    """Its lists may not mix DTensors with others: a group for each."""
    groups = [[], []]
    for p in model.parameters():
        groups[isinstance(p, DTensor)].append(p)
    return adamw([{"params": group} for group in groups])


def equals_a_single_process(config, split: bool = False, **layout):
    """Returns the parallel model; the single process computes on the CPU. With `split` every rank
    trains on a row of its own."""
    path = DIRECTORY / sys._getframe(1).f_code.co_name
    if dist.get_rank() == 0:
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(path)
    dist.barrier()
    single = AutoModelForCausalLM.from_pretrained(path)
    parallel = AutoModelForCausalLM.from_pretrained(
        path, distributed_config=DistributedConfig(**layout)
    )
    models = (single, parallel)
    optimizers = [optimizer(model) for model in models]
    tokens = TOKENS[dist.get_rank() :][:1] if split else TOKENS
    with torch.no_grad():
        expected, logits = single(tokens).logits, whole(parallel(tokens.to("tpu")).logits)
    torch.testing.assert_close(logits.cpu(), expected, rtol=1e-4, atol=1e-5)

    for _ in range(3):
        losses = []
        for model, batch, opt in zip(models, (TOKENS, tokens.to("tpu")), optimizers, strict=True):
            loss = model.train()(batch, labels=batch).loss
            loss.backward()
            losses.append(whole(loss.detach()))
            opt.step()
            opt.zero_grad()
        if split:
            dist.all_reduce(losses[1], dist.ReduceOp.AVG)
        torch.testing.assert_close(losses[1].cpu(), losses[0], rtol=1e-4, atol=1e-5)

    parallel.save_pretrained(path / "trained")
    dist.barrier()
    close(AutoModelForCausalLM.from_pretrained(path / "trained"), single, rtol=1e-3, atol=3e-4)
    return parallel


@check
def tensor_parallel():
    model = equals_a_single_process(LlamaConfig(**SIZES), tp_plan="auto")
    assert model.model.layers[0].self_attn.k_proj.weight.to_local().shape == (8, 32)
    assert model.model.embed_tokens.weight.to_local().shape == (48, 32)


@check
def tensor_parallel_experts():
    """A part of each expert on every rank."""
    model = equals_a_single_process(QWEN, tp_plan="auto")
    assert model.model.layers[0].mlp.experts.down_proj.to_local().shape == (4, 32, 16)


@check
def expert_parallel():
    """Two experts on each rank; all ranks have the same tokens."""
    model = equals_a_single_process(QWEN, tp_size=2, ep_size=2)
    assert model.model.layers[0].mlp.experts.down_proj.to_local().shape == (2, 32, 32)


@check
def expert_and_data_parallel():
    """Two experts on each rank, and tokens of its own; the rest is sharded by FSDP2."""
    model = equals_a_single_process(MIXTRAL, split=True, fsdp_size=2, ep_size=2)
    assert model.model.layers[0].mlp.experts.down_proj.to_local().shape == (2, 32, 64)


if __name__ == "__main__":
    main()
