"""From programs of `torch.export` to StableHLO."""

from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from . import archive, artifact
from .signature import Kind, Leaf, Mutation, Signature, Slot, Source
from .written import write


class Exported:
    """A program as StableHLO, with the parameters, buffers and constants of the module it was made
    from."""

    def __init__(self, text: str, signature: Signature, state: dict[str, torch.Tensor]) -> None:
        self._text = text
        self._signature = signature
        self._state = state

    @property
    def text(self) -> str:
        """The StableHLO module. Its function @main takes parameters, buffers and constants first,
        then the tensors among the arguments; `signature` tells which is which."""
        return self._text

    @property
    def signature(self) -> Signature:
        return self._signature

    @property
    def state_dict(self) -> dict[str, torch.Tensor]:
        """What the program takes of the module, by name; not copied."""
        return dict(self._state)

    def save(self, path: str | Path) -> None:
        """Writes one file, a zip archive of the text, the signature as JSON and the state's bytes.
        `load` reads it; it contains no code and nothing pickled."""
        archive.save(path, self._text, self._signature, self._state)

    def portable_artifact(self, version: str | None = None) -> bytes:
        """The text as bytecode that StableHLO of `version` ("1.13.0" by default) and of later ones
        reads. Needs jaxlib (the extra `export`), raises ModuleNotFoundError without it and
        ValueError for a version it cannot write."""
        return artifact.serialize(self._text, version)

    def __repr__(self) -> str:
        s = self._signature
        return (
            f"Exported(platform={s.platform!r}, {len(self._state)} tensors of state, "
            f"{sum(leaf.is_tensor for leaf in s.arguments)} of arguments, "
            f"{sum(leaf.is_tensor for leaf in s.outputs)} of results)"
        )


def export(
    program: "torch.nn.Module | torch.export.ExportedProgram",
    args: tuple | None = None,
    kwargs: dict[str, Any] | None = None,
    *,
    platform: str = "cpu",
) -> Exported:
    """Writes a program out as StableHLO. Nothing is computed and no weight is copied.

    `program` is what `torch.export.export` gave, or a module, which is given to it with the example
    arguments `args` and `kwargs`. Shapes, dtypes, numbers and strings are fixed by the example;
    programs with dynamic shapes are refused. `platform`, "cpu" or "tpu", chooses between ways of
    writing one computation; the device of the module's tensors does not matter.

    Raises TypeError or ValueError for what is not such a program, NotImplementedError for one that
    draws random numbers, RuntimeError for one with an operator that no program can hold.
    """
    if platform not in ("cpu", "tpu"):
        raise ValueError(f'platform must be "cpu" or "tpu", got {platform!r}')
    if isinstance(program, torch.nn.Module):
        if args is None:
            raise TypeError("to export a module, give example arguments: export(module, (x,))")
        program = torch.export.export(program, tuple(args), kwargs or {})
    elif not isinstance(program, torch.export.ExportedProgram):
        raise TypeError(
            f"expected a Module or an ExportedProgram, got {type(program).__name__}; functions can "
            "be wrapped in a Module"
        )
    elif args is not None or kwargs is not None:
        raise TypeError("an ExportedProgram has its example arguments already")
    if program.range_constraints:
        raise ValueError(
            "programs with dynamic shapes cannot be written as StableHLO here: export without "
            "dynamic_shapes, once for each shape"
        )
    # Functional, so that what is changed in place is a result of its own.
    program = program.run_decompositions({})
    return _Export(program, platform).run()


class _Export:
    """One export: which of torch.export's inputs and outputs are what."""

    def __init__(self, program: "torch.export.ExportedProgram", platform: str) -> None:
        self.program = program
        self.platform = platform
        self.state: dict[str, torch.Tensor] = {}
        self.arguments: list[Leaf] = []
        # By the names of the graph's placeholders; None for what is not a tensor.
        self.slots: dict[str, Slot | None] = {}

    def _add_input(self, spec) -> None:
        from torch.export.graph_signature import ConstantArgument, InputKind, TensorArgument

        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            name, program = spec.target, self.program
            holder = program.state_dict if name in program.state_dict else program.constants
            self.state[name] = holder[name]
            self.slots[spec.arg.name] = Slot(Kind.STATE, name)
        elif spec.kind != InputKind.USER_INPUT:
            raise NotImplementedError(f"cannot export an input of kind {spec.kind.name}")
        elif isinstance(spec.arg, TensorArgument):
            self.slots[spec.arg.name] = Slot(Kind.ARGUMENT, position=len(self.arguments))
            self.arguments.append(Leaf(is_tensor=True))
        elif isinstance(spec.arg, ConstantArgument):
            self.slots[spec.arg.name] = None
            self.arguments.append(Leaf(is_tensor=False, constant=spec.arg.value))
        else:
            raise NotImplementedError(f"cannot export an argument like {spec.arg}")

    def run(self) -> Exported:
        from torch.export.graph_signature import ConstantArgument, OutputKind

        signature = self.program.graph_signature
        for spec in signature.input_specs:
            self._add_input(spec)
        placeholders = self.program.graph.find_nodes(op="placeholder")
        slots = [self.slots[node.name] for node in placeholders]
        written = write(
            self.program.graph_module,
            [
                None if slot is None else node.meta["val"]
                for node, slot in zip(placeholders, slots, strict=True)
            ],
            self.platform,
        )

        outputs: list[Leaf] = []
        mutations: list[Mutation] = []
        for spec, output in zip(signature.output_specs, written.outputs, strict=True):
            if isinstance(output, str):
                source = Source(slot=self.slots[output])
            else:
                source = Source(result=output)
            if spec.kind == OutputKind.BUFFER_MUTATION:
                mutations.append(Mutation(Slot(Kind.STATE, spec.target), source))
            elif spec.kind == OutputKind.USER_INPUT_MUTATION:
                mutations.append(Mutation(self.slots[spec.target], source))
            elif spec.kind != OutputKind.USER_OUTPUT:
                raise NotImplementedError(f"cannot export an output of kind {spec.kind.name}")
            elif isinstance(spec.arg, ConstantArgument):
                outputs.append(Leaf(is_tensor=False, constant=spec.arg.value))
            else:
                outputs.append(Leaf(is_tensor=True, source=source))
        call = self.program.call_spec
        return Exported(
            written.text,
            Signature(
                platform=self.platform,
                parameters=[slots[i] for i in written.inputs],
                arguments=self.arguments,
                outputs=outputs,
                mutations=mutations,
                checks=written.checks,
                in_spec=pytree.treespec_dumps(call.in_spec),
                out_spec=pytree.treespec_dumps(call.out_spec),
            ),
            self.state,
        )
