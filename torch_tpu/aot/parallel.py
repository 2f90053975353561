"""Divides a model of Transformers among the ranks of a slice, by what it says of itself."""

import fnmatch

import torch

from .model_source import Source


def _styles() -> dict[str, object]:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    return {
        "colwise": ColwiseParallel(),
        "rowwise": RowwiseParallel(),
        "colwise_gather_output": ColwiseParallel(output_layouts=Replicate()),
        "embedding_rowwise": RowwiseParallel(input_layouts=Replicate()),
    }


def _shares_weights(model: torch.nn.Module, name: str) -> bool:
    own = {id(p) for p in model.get_submodule(name).parameters()}
    return any(
        id(p) in own and not n.startswith(f"{name}.")
        for n, p in model.named_parameters(remove_duplicate=False)
    )


def _tensor_parallel(model: torch.nn.Module, mesh, ranks: int) -> None:
    from torch.distributed.tensor.parallel import parallelize_module

    rules = getattr(model, "tp_plan", None) or {}
    if not rules:
        raise ValueError(f"{type(model).__name__} has no plan for tensor parallelism")
    config = model.config.get_text_config()
    for heads in ("num_attention_heads", "num_key_value_heads"):
        count = getattr(config, heads, None) or ranks
        if count % ranks:
            raise ValueError(f"{count} {heads} cannot be divided among {ranks} ranks")
    styles, plan = _styles(), {}
    for name, _ in model.named_modules():
        rule = next((r for pattern, r in rules.items() if fnmatch.fnmatch(name, pattern)), None)
        if rule is None or _shares_weights(model, name):
            continue
        if rule not in styles:
            raise ValueError(
                f"{type(model).__name__}: {name} is to be divided as {rule!r}; known are "
                + ", ".join(styles)
            )
        plan[name] = styles[rule]
    parallelize_module(model, mesh, plan)


def _fully_shard(model: torch.nn.Module, mesh) -> None:
    from torch.distributed.fsdp import fully_shard

    layers = set(getattr(model, "_no_split_modules", None) or ())
    for module in model.modules():
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


def distribute(source: Source, *, fsdp: int = 1, tp: int = 1) -> None:
    """Divides the model among fsdp * tp ranks, all there are (`torch.tpu.aot.world`), those of one
    tensor-parallel group next to one another.

    Layers are divided by the model's own plan for tensor parallelism, those that share weights with
    others (tied embeddings) stay whole; then `fully_shard` shards each layer and the rest.
    Raises ValueError for a model without such a plan, or whose heads cannot be divided.
    """
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("tpu", (fsdp, tp), mesh_dim_names=("fsdp", "tp"))
    if tp > 1:
        _tensor_parallel(source.model, mesh["tp"], tp)
    if fsdp > 1:
        _fully_shard(source.model, mesh["fsdp"])
    parts = [f"{n} x {kind}" for n, kind in ((fsdp, "FSDP"), (tp, "TP")) if n > 1]
    source.name += ", " + ", ".join(parts)
