"""Exported programs as callables on the live device."""

import io
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_tpu import _C

from . import archive, artifact
from .program_text import main_types
from .signature import Kind, Signature, Slot, Source


def _short(dtype: torch.dtype, shape) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


class LoadedFunction:
    """A StableHLO module's main function: takes and returns tensors on `device`.

    Results never require gradients. Arguments are not changed.
    """

    def __init__(
        self, text: str, device: torch.device, *, module: bytes | None = None, name: str = "program"
    ) -> None:
        """`module` is what is compiled, where that is not the text."""
        self.parameter_types, self.result_types = main_types(text)
        self.device = device
        self._program = _C.LoadedProgram(
            name, module or text, self.parameter_types, self.result_types
        )

    def __call__(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Raises TypeError for another number of arguments or what is not a tensor, RuntimeError
        for a tensor of another dtype, shape or device."""
        for i, argument in enumerate(arguments):
            if not isinstance(argument, torch.Tensor):
                raise TypeError(f"argument {i}: expected a tensor, got {type(argument).__name__}")
        return tuple(self._program.run(self.device.index, [a.detach() for a in arguments]))


class LoadedModule:
    """An exported program with its parameters, buffers and constants: called like the module that
    was exported, with tensors on `device`.

    Results never require gradients. Buffers that the module changes are kept here, changed, from
    call to call; arguments that it changes in place are changed.
    """

    def __init__(
        self, text: str, signature: Signature, state: dict[str, torch.Tensor], device: torch.device
    ) -> None:
        self.device = device
        self._signature = signature
        self._in_spec = pytree.treespec_loads(signature.in_spec)
        self._out_spec = pytree.treespec_loads(signature.out_spec)
        self._function = LoadedFunction(text, device)
        types = self._function.parameter_types
        if len(types) != len(signature.parameters):
            raise ValueError("the program's signature does not fit its text")
        # An argument that nothing depends on is not among them.
        self._argument_types = {
            slot.position: expected
            for slot, expected in zip(signature.parameters, types, strict=True)
            if slot.kind == Kind.ARGUMENT
        }
        self._state = {name: tensor.to(device) for name, tensor in state.items()}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The parameters, buffers and constants as they are now, by their names."""
        return dict(self._state)

    def _flatten(self, args: tuple, kwargs: dict[str, Any]) -> list[Any]:
        names = self._in_spec.child(1).context
        if set(names) == set(kwargs):
            kwargs = {name: kwargs[name] for name in names}  # in whatever order they come
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in_spec:
            raise TypeError(
                "the program was exported for arguments of another structure: (args, kwargs) "
                f"should be {self._in_spec}, are {spec}"
            )
        return leaves

    def _check(self, leaves: list[Any], args: tuple, kwargs: dict[str, Any]) -> None:
        def where(i: int) -> str:
            paths = pytree.tree_flatten_with_path((args, kwargs))[0]
            path = paths[i][0]
            of = "argument " if path[0].idx == 0 else "keyword argument "
            return of + pytree.keystr(path[1:])

        for i, (value, leaf) in enumerate(zip(leaves, self._signature.arguments, strict=True)):
            if not leaf.is_tensor:
                if type(value) is not type(leaf.constant) or value != leaf.constant:
                    raise ValueError(
                        f"{where(i)} is {value!r}, but the program was exported with "
                        f"{leaf.constant!r} and knows nothing else"
                    )
                continue
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"{where(i)}: expected a tensor, got {type(value).__name__}")
            if value.device != self.device:
                raise ValueError(f"{where(i)} is on {value.device}, the program on {self.device}")
            expected = self._argument_types.get(i)
            if expected is not None and expected != (value.dtype, list(value.shape)):
                raise ValueError(
                    f"{where(i)} is {_short(value.dtype, value.shape)}, but the program was "
                    f"exported for {_short(*expected)}"
                )

    @torch.no_grad()
    def __call__(self, *args, **kwargs) -> Any:
        """Raises TypeError for arguments of another structure and ValueError for tensors of another
        dtype, shape or device or other constants than the program was exported with; both name the
        argument. IndexError if an index was out of range: nothing is changed then."""
        leaves = self._flatten(args, kwargs)
        self._check(leaves, args, kwargs)

        def value_of(slot: Slot) -> torch.Tensor:
            return self._state[slot.name] if slot.kind == Kind.STATE else leaves[slot.position]

        def after(source: Source) -> torch.Tensor:
            return value_of(source.slot) if source.slot else results[source.result]

        results = self._function(*(value_of(slot) for slot in self._signature.parameters))
        if not all(results[i].item() for i in self._signature.checks):
            raise IndexError("index out of range in an exported program")
        # What is returned as it was is not what it is changed into.
        outputs = [
            after(leaf.source) if leaf.is_tensor else leaf.constant
            for leaf in self._signature.outputs
        ]
        for mutation in self._signature.mutations:
            value_of(mutation.slot).copy_(after(mutation.source))
        return pytree.tree_unflatten(outputs, self._out_spec)


def load(
    source: str | Path | bytes, device: str | torch.device = "tpu"
) -> LoadedModule | LoadedFunction:
    """Makes a program ready to run on `device`.

    `source` is the path of a file, or its contents: a file that `Exported.save` wrote, the text of
    a StableHLO module (also as a string), or a portable artifact, which needs jaxlib (the extra
    `export`). Saved programs are called like the module that was exported; of the others, which
    know nothing of a module, the main function, with its tensors one after another, returns a tuple
    of tensors. Raises ValueError for what is none of these, RuntimeError if it does not compile.
    """
    device = torch.device(device)
    if device.type != "tpu":
        raise ValueError(f"programs run on a tpu device, not on {device}")
    if device.index is None:
        device = torch.device("tpu", torch.tpu.current_device())
    if isinstance(source, str) and "\n" in source:
        return LoadedFunction(source, device)
    contents = source if isinstance(source, bytes) else Path(source).read_bytes()
    if archive.is_archive(contents):
        text, signature, state = archive.load(io.BytesIO(contents))
        return LoadedModule(text, signature, state, device)
    if artifact.is_artifact(contents):
        # The text is of jaxlib's version, which may be newer than the plugin's.
        return LoadedFunction(artifact.deserialize(contents), device, module=contents)
    try:
        text = contents.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            "neither a saved program, nor the text of a StableHLO module, nor a portable artifact"
        ) from error
    return LoadedFunction(text, device)
