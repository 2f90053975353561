"""Runs the same code on the CPU and on the tpu: what comes out must be the same."""

import torch


def outcome(function, device):
    """What a function of a device returns or raises."""
    try:
        return function(torch.device(device)), None
    except Exception as error:
        return None, error


def same(actual, expected, where="result", tolerance=0.0):
    """Compares values; tensors by dtype, shape, strides, offset and elements."""
    assert type(actual) is type(expected), f"{where}: {actual!r} instead of {expected!r}"
    if isinstance(expected, torch.Tensor):
        for name in ("dtype", "shape", "requires_grad"):
            a, e = getattr(actual, name), getattr(expected, name)
            assert a == e, f"{where}: {name} is {a}, on the cpu {e}"
        for name in ("stride", "storage_offset", "is_conj", "is_neg", "is_contiguous"):
            a, e = getattr(actual, name)(), getattr(expected, name)()
            assert a == e, f"{where}: {name}() is {a}, on the cpu {e}"
        a, e = actual.detach().cpu().resolve_conj(), expected.detach().resolve_conj()
        assert torch.equal(a, e) or torch.allclose(
            a, e, rtol=tolerance, atol=tolerance, equal_nan=True
        ), f"{where}: {actual} instead of {expected}"
    elif isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected), f"{where}: {actual!r} instead of {expected!r}"
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            same(a, e, f"{where}[{i}]", tolerance)
    else:
        assert actual == expected, f"{where}: {actual!r} instead of {expected!r}"


def moved(value, device):
    """Copies of the tensors in lists and tuples, on a device."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().to(device)
    if isinstance(value, (list, tuple)):
        return type(value)(moved(v, device) for v in value)
    return value


def agree_on(function, *arguments, tolerance=0.0):
    """Calls `function` with the arguments on either device; nothing may fall back."""
    torch.tpu.clear_fallbacks()
    agree(lambda device: function(*moved(arguments, device)), tolerance=tolerance)
    assert torch.tpu.fallbacks() == []


def agree(function, device="tpu", tolerance=0.0):
    """Calls `function` with the CPU and with the tpu; results or errors must be the same."""
    expected, cpu_error = outcome(function, "cpu")
    actual, tpu_error = outcome(function, device)
    if cpu_error is None and tpu_error is None:
        same(actual, expected, tolerance=tolerance)
        return
    assert type(tpu_error) is type(cpu_error), f"tpu: {tpu_error!r}, cpu: {cpu_error!r}"
    expected, actual = str(cpu_error).splitlines()[0], str(tpu_error).splitlines()[0]
    # CPU kernels have names of their own: '"silu_cpu" not implemented for 'Long''.
    missing = expected.find("not implemented for")
    assert expected[max(missing, 0) :] in actual, f"tpu: {actual!r}, cpu: {expected!r}"
