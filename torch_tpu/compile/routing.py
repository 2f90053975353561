"""Which graphs of `torch.compile` come here."""

import functools

import torch


def route_inductor() -> None:
    """Sends graphs on tpu that are meant for inductor here.

    "inductor" is what `torch.compile` takes by default, and what Transformers' Trainer asks for. It
    has doors for code generators, one for each device, but none for a compiler of whole graphs;
    hence this one method is replaced. Graphs without anything on tpu pass through. And it is made
    when something is to be compiled, which is when `traces` has to be there.
    """
    wrapper = torch._TorchCompileInductorWrapper
    inductor, initialize = wrapper.__call__, wrapper.__init__
    if getattr(inductor, "_serves_tpu", False):
        return

    @functools.wraps(inductor)
    def call(self, module, inputs, **arguments):
        from .backend import on_tpu, tpu

        if on_tpu(module, inputs):
            return tpu(module, inputs)
        return inductor(self, module, inputs, **arguments)

    @functools.wraps(initialize)
    def __init__(self, *arguments, **options):
        from .traces import store

        initialize(self, *arguments, **options)
        store.install()

    call._serves_tpu = True
    wrapper.__call__ = call
    wrapper.__init__ = __init__
