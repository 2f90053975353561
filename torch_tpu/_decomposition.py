"""Runs PyTorch's own Python decompositions for the native side."""

import torch


def run(name, overload, arguments):
    """Decomposes one operator call.

    Args:
        name: "aten::mish".
        overload: overload name, "" for the default one.
        arguments: the call's arguments in schema order.

    Returns:
        What the decomposition returns, or NotImplemented if PyTorch has none.
    """
    from torch._decomp import decomposition_table

    packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
    op = getattr(packet, overload or "default")
    function = decomposition_table.get(op)
    if function is None:
        return NotImplemented
    positional = []
    keyword = {}
    for argument, value in zip(op._schema.arguments, arguments, strict=True):
        if argument.kwarg_only:
            keyword[argument.name] = value
        else:
            positional.append(value)
    with torch.no_grad():
        return function(*positional, **keyword)
