"""What Dynamo is told about the functions of `torch.tpu`, without loading it."""

import types

import torch

# The same for as long as the process runs.
_CONSTANT = ("is_available", "device_count", "is_bf16_supported", "get_device_name")


def mark(tpu: types.ModuleType) -> None:
    """Constants are computed once; what acts on devices and generators runs outside of graphs."""
    for name in _CONSTANT:
        getattr(tpu, name)._dynamo_marked_constant = True
    for module in (tpu.random, tpu.memory, tpu.diagnostics):
        for function in vars(module).values():
            if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
                _leave_out(function)
    _leave_out(tpu.synchronize)


def _leave_out(function: types.FunctionType) -> None:
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = f"torch.tpu.{function.__name__} is not part of graphs"
    # Called from ordinary code between two graphs, it and what it calls are not traced either.
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
