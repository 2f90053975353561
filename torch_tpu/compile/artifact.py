"""What PyTorch's AOTAutograd cache keeps of a compiled graph."""

import dataclasses

import torch
from torch._inductor.output_code import OutputCode
from torch.fx import GraphModule

from .buckets import Padding
from .executable import Executable

# Of a node's metadata these are needed to run it; the rest is large or cannot be kept.
_KEPT = ("val", "stack_trace")


@dataclasses.dataclass
class CompiledGraph(OutputCode):
    """An `Executable` that AOTAutograd's cache can store and restore."""

    executable: Executable | None = None
    name: str = ""
    donated: tuple[int, ...] = ()
    padding: Padding | None = None
    _stored: bytes | None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        self._boxed_call = True

    @classmethod
    def of(
        cls,
        module: GraphModule,
        name: str,
        donated: tuple[int, ...] = (),
        padding: Padding | None = None,
    ) -> "CompiledGraph":
        return cls(Executable(module, name, donated, padding), name, donated, padding)

    def __call__(self, inputs: list) -> list:
        return self.executable(inputs)

    def prepare_for_serialization(self) -> None:
        from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
        from torch.fx._graph_pickler import GraphPickler, Options

        graph = self.executable.module.graph
        if graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects):
            # AOTAutograd's entries leave out that such graphs take tokens first.
            raise BypassAOTAutogradCache("operators with effects")
        # Constants are real tensors, and are to be read as such.
        with torch.utils._python_dispatch._disable_current_modes():
            self._stored = GraphPickler.dumps(
                self.executable.module,
                Options(ops_filter=None, node_metadata_key_filter=lambda key: key in _KEPT),
            )
        self.executable = None

    def post_compile(self, example_inputs, constants, graph_kwargs) -> None:
        if self.executable is not None:
            return
        from torch._guards import detect_fake_mode
        from torch._subclasses import FakeTensorMode
        from torch.fx._graph_pickler import GraphPickler
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        mode = detect_fake_mode(example_inputs) or FakeTensorMode(shape_env=ShapeEnv())
        self.executable = Executable(
            GraphPickler.loads(self._stored, mode), self.name, self.donated, self.padding
        )
        self._stored = None

    def set_triton_bundle(self, triton_bundle) -> None:
        """There is none: called for every compiled graph."""
