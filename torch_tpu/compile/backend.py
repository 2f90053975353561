"""The backend "tpu" of `torch.compile`."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import torch
from torch.fx import GraphModule
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .artifact import CompiledGraph
from .buckets import Padding, by_shape
from .fingerprint import fingerprint
from .inference import inference_program
from .partition import partition
from .staging import values_of
from .traces import store


def on_tpu(module: GraphModule, inputs: Sequence) -> bool:
    """Whether anything that the graph takes or makes is on tpu."""
    for value in inputs:
        if isinstance(value, torch.Tensor) and value.device.type == "tpu":
            return True
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        if tensor.device.type == "tpu":
            return True
    return any(
        isinstance(value, torch.Tensor) and value.device.type == "tpu"
        for node in module.graph.nodes
        for value in values_of(node, "example_value")
    )


def _compile_inference(module: GraphModule, inputs: Sequence) -> CompiledGraph:
    compiled = CompiledGraph.of(module, "compiled", padding=Padding.of(module))
    compiled.executable.prepare()
    return compiled


def _compile_forward(module: GraphModule, inputs: Sequence) -> CompiledGraph:
    context = torch._guards.TracingContext.try_get()
    # What is behind these outputs is for the backward pass alone.
    kept = context.fw_metadata.num_forward if context is not None else None
    padding = Padding.of(module, kept)
    compiled = CompiledGraph.of(module, "compiled", padding=padding)
    layouts = compiled.executable.prepare()
    if context is not None:
        context.torch_tpu_forward = (compiled.executable, layouts)
    return compiled


def _compile_backward(module: GraphModule, inputs: Sequence) -> CompiledGraph:
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    # Activations that only the backward pass holds.
    donated = tuple(getattr(metadata, "bw_donated_idxs", None) or ())
    forward, layouts = getattr(context, "torch_tpu_forward", (None, {}))
    if forward is None:
        padding = Padding.of(module)
    else:
        padding = dataclasses.replace(
            forward.padding, kept=None, layouts=layouts, results=by_shape(layouts)
        )
    compiled = CompiledGraph.of(module, "compiled backward", donated, padding)
    compiled.executable.prepare()
    if forward is not None and forward.buckets is not None and compiled.executable.buckets is None:
        forward.refuse(padding.refused)
    return compiled


def _aot_autograd() -> Callable:
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import SerializableAOTDispatchCompiler

    return aot_autograd(
        fw_compiler=SerializableAOTDispatchCompiler(CompiledGraph, _compile_forward),
        bw_compiler=SerializableAOTDispatchCompiler(CompiledGraph, _compile_backward),
        inference_compiler=SerializableAOTDispatchCompiler(CompiledGraph, _compile_inference),
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )


def _share_storage(inputs: Sequence) -> bool:
    plain = [
        x for x in inputs if isinstance(x, torch.Tensor) and not is_traceable_wrapper_subclass(x)
    ]
    return len({x.untyped_storage()._cdata for x in plain}) < len(plain)


def tpu(module: GraphModule, inputs: Sequence, **options) -> Callable:
    """Compiles a graph of `torch.compile`: `torch.compile(f, backend="tpu")`.

    `mode` and `options` of `torch.compile` are accepted and mean nothing here. A graph without
    anything on tpu goes to inductor.
    """
    if not on_tpu(module, inputs):
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(module, inputs)
    program = inference_program(module, inputs, "compiled")
    run = program.prepared() if program is not None else None
    store.note(program if run is not None else None)
    if run is not None:
        return run
    tag = f"{torch.compiler.config.cache_key_tag} torch_tpu {fingerprint()}"
    caching = torch._functorch.config.enable_autograd_cache and not _share_storage(inputs)
    with (
        torch.compiler.config.patch(cache_key_tag=tag),
        torch._functorch.config.patch(
            donated_buffer=True,
            # The keys of AOTAutograd's cache leave out where in a common storage inputs lie.
            enable_autograd_cache=caching,
            # Its entries hold our artifacts, rather than keys of inductor's. They are written once
            # the backward pass is there, so it may not wait for its first use, outside of this
            # block; that costs little, since programs are captured when they first run.
            bundled_autograd_cache=True,
            force_non_lazy_backward_lowering=True,
        ),
    ):
        return _aot_autograd()(module, inputs)


store.install()
