"""Weights of which each rank has a part: DTensors, and what `fully_shard` has sharded.

A program takes this rank's parts as its arguments. `Shards` gives for each part what the module
sees in its place while it is traced.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch


def _is_dtensor(tensor: torch.Tensor) -> bool:
    # Whoever has one has loaded it.
    return type(tensor).__name__ == "DTensor" and hasattr(tensor, "_local_tensor")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor; another tensor as it is."""
    return tensor._local_tensor if _is_dtensor(tensor) else tensor


def wrapped(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A DTensor sharded as `like` is, of which `part` is this rank's; differentiable. The part
    itself if `like` is no DTensor."""
    return _on_mesh(part, like._spec) if _is_dtensor(like) else part


def _on_mesh(part: torch.Tensor, spec: Any) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    meta = spec.tensor_meta
    return DTensor.from_local(
        part,
        spec.mesh,
        spec.placements,
        run_check=False,
        shape=meta.shape,
        stride=meta.stride,
    )


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """What a DTensor stands for, a sum made where it is partial; another tensor as it is."""
    return tensor.full_tensor() if _is_dtensor(tensor) else tensor


def _collective(name: str, x: torch.Tensor, *args) -> torch.Tensor:
    operators = torch.ops._c10d_functional
    return operators.wait_tensor(getattr(operators, name)(x, *args))


class _Gathered(torch.autograd.Function):
    """The whole of a parameter that FSDP has sharded, from this rank's part; what `FSDPParam` and
    its group do (torch/distributed/fsdp/_fully_shard)."""

    @staticmethod
    def forward(ctx, part: torch.Tensor, parameter: "_Parameter"):
        ctx.parameter, ctx.dtype = parameter, part.dtype
        return _gather(part, parameter)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        mesh, dim = ctx.parameter.mesh, ctx.parameter.dim
        gradient = gradient.to(ctx.parameter.reduce_dtype or gradient.dtype)
        group, size = mesh.shard_process_group.group_name, mesh.shard_mesh_size
        short = -gradient.size(dim) % size
        if short:
            padding = [0, 0] * (gradient.dim() - 1 - dim) + [0, short]
            gradient = torch.nn.functional.pad(gradient, padding)
        if dim != 0:
            gradient = torch.cat(gradient.chunk(size, dim))
        part = _collective("reduce_scatter_tensor", gradient.contiguous(), "avg", size, group)
        if hasattr(mesh, "replicate_process_group"):
            part = _collective("all_reduce", part, "avg", mesh.replicate_process_group.group_name)
        return part.to(ctx.dtype), None


def _gather(part: torch.Tensor, parameter: "_Parameter") -> torch.Tensor:
    mesh, dim = parameter.mesh, parameter.dim
    dtype = parameter.dtype or part.dtype
    group, size = mesh.shard_process_group.group_name, mesh.shard_mesh_size
    gathered = _collective("all_gather_into_tensor", part.to(dtype).contiguous(), size, group)
    if dim != 0:
        gathered = torch.cat(gathered.chunk(size), dim)
    return gathered.narrow(dim, 0, parameter.length)


class _Parameter:
    """A parameter of an FSDP module, with what its module says of precision."""

    def __init__(self, parameter: Any, policy: Any) -> None:
        self.mesh = parameter.mesh_info
        self.dim = parameter.fsdp_placement.dim
        self.length = parameter._orig_size[self.dim]  # along `dim`, without what pads it
        self.spec = parameter._unsharded_dtensor_spec
        floating = parameter.sharded_param.is_floating_point()
        self.dtype = policy.param_dtype if floating else None
        self.reduce_dtype = policy.reduce_dtype if floating else None


class _Unit:
    """A module that `fully_shard` was called on."""

    def __init__(self, state: Any, is_root: bool) -> None:
        self.state = state
        self.policy = state._mp_policy
        # As in FSDP, the root's are needed again at once.
        groups = state._fsdp_param_groups
        keeps = is_root and state._auto_reshard_after_forward
        self.reshards = not keeps and any(g._reshard_after_forward for g in groups)
        self.saving: list[contextlib.AbstractContextManager] = []


def _owner(hook: Any) -> object:
    """The object whose method `hook` is, or wraps."""
    while not hasattr(hook, "__self__") and hasattr(hook, "__wrapped__"):
        hook = hook.__wrapped__
    return getattr(hook, "__self__", None)


class Shards:
    """How the weights of `model` are sharded."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.units: list[_Unit] = []
        self.parameters: dict[torch.Tensor, tuple[_Parameter, _Unit]] = {}
        # By the address of what was gathered, which stays as long as it is held here: the part that
        # it comes from.
        self._gathered: dict[int, tuple[torch.Tensor, _Parameter, torch.UntypedStorage]] = {}
        self._again: dict[int, torch.Tensor] = {}
        for module in model.modules():
            get_state = getattr(module, "_get_fsdp_state", None)
            if get_state is None or any(get_state() is unit.state for unit in self.units):
                continue
            unit = _Unit(get_state(), is_root=not self.units)
            self.units.append(unit)
            for group in unit.state._fsdp_param_groups:
                for parameter in group.fsdp_params:
                    known = _Parameter(parameter, unit.policy)
                    self.parameters[parameter.sharded_param] = known, unit

    def seen(self, weight: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        """What the model sees of `weight`, of which this rank has `part`."""
        if weight not in self.parameters:
            return wrapped(part, weight)
        parameter, unit = self.parameters[weight]
        full = _Gathered.apply(part, parameter)
        if unit.reshards:
            storage = full.untyped_storage()
            self._gathered[storage._cdata] = part, parameter, storage
        return full if parameter.spec is None else _on_mesh(full, parameter.spec)

    @contextlib.contextmanager
    def functional(self) -> Iterator[None]:
        """In place of FSDP's hooks, which act on memory, those that say the same in the program."""
        if not self.units:
            yield
            return
        states = {id(unit.state): unit for unit in self.units}
        before = []
        handles = []
        for module in self.model.modules():
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                before.append((hooks, dict(hooks)))
                for key, hook in list(hooks.items()):
                    unit = states.get(id(_owner(hook)))
                    if unit is None:
                        continue
                    del hooks[key]
                    if hooks is module._forward_pre_hooks:
                        enter = functools.partial(self._enter, unit)
                        handles.append(
                            module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
                        )
                    else:
                        leave = functools.partial(self._leave, unit)
                        handles.append(module.register_forward_hook(leave))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for hooks, entries in before:
                hooks.clear()
                hooks.update(entries)
            self._gathered.clear()
            self._again.clear()

    def _enter(self, unit: _Unit, module: torch.nn.Module, args: tuple, kwargs: Mapping):
        args, kwargs = unit.state._cast_forward_inputs(args, kwargs)
        if unit.reshards:
            saving = torch.autograd.graph.saved_tensors_hooks(self._save, self._restore)
            saving.__enter__()
            unit.saving.append(saving)
        return args, kwargs

    def _leave(self, unit: _Unit, module: torch.nn.Module, args: tuple, output: Any) -> Any:
        if unit.saving:
            unit.saving.pop().__exit__(None, None, None)
        return unit.state._cast_output_dtype(output)

    def _save(self, tensor: torch.Tensor):
        """What autograd keeps of a gathered weight, or of a view of it: how to gather it again."""
        if _is_dtensor(tensor):
            return tensor
        key = tensor.untyped_storage()._cdata
        if key not in self._gathered:
            return tensor
        return key, tensor.size(), tensor.stride(), tensor.storage_offset()

    def _restore(self, saved) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        key, size, stride, offset = saved
        if key not in self._again:
            part, parameter, _ = self._gathered[key]
            with torch.no_grad():
                self._again[key] = _gather(part.detach(), parameter)
        return self._again[key].as_strided(size, stride, offset)
