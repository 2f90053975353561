"""Numerical checks of gradients with the sample inputs and settings of PyTorch's OpInfo tables."""

import itertools

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import gradcheck, gradgradcheck
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

# Elements of all inputs that need a gradient.
SMALL = 50

# What is checked: gradients, those of the in-place form, directional derivatives, gradients of
# gradients.
KINDS = ("backward", "inplace", "forward", "second")

# No tpu tensor is sparse, as the results of these are.
SPARSE = {"to_sparse", "sparse.sampled_addmm", "sparse.mm.reduce"}


def differentiable(dtype=torch.float64, kind="backward"):
    """OpInfos for which CPU PyTorch claims this kind of derivative in `dtype`."""
    claims = {
        "backward": lambda op: True,
        "inplace": lambda op: op.inplace_variant and op.supports_inplace_autograd,
        "forward": lambda op: op.supports_forward_ad,
        "second": lambda op: op.supports_gradgrad,
    }[kind]
    return [
        op
        for op in op_db
        if op.supports_autograd and dtype in op.supported_backward_dtypes("cpu") and claims(op)
    ]


def moved(op, sample, device):
    """The sample's input, args and kwargs on `device`, with new leaves for the old ones."""

    def move(value):
        if isinstance(value, torch.Tensor):
            return value.detach().to(device).requires_grad_(value.requires_grad)
        if isinstance(value, torch.device) or value == "cpu":
            return torch.device(device)
        return value

    # The places of tensor_split are on the CPU for every device.
    args = sample.args if op.name == "tensor_split" else tree_map(move, sample.args)
    return tree_map(move, sample.input), args, tree_map(move, sample.kwargs)


def _size(sample):
    flat, _ = tree_flatten((sample.input, sample.args, sample.kwargs))
    return sum(v.numel() for v in flat if isinstance(v, torch.Tensor) and v.requires_grad)


def samples(op, count, dtype=torch.float64, kind="backward"):
    """The first `count` small samples with something to differentiate, else the smallest one."""
    torch.manual_seed(0)
    conjugated = {"include_conjugated_inputs": dtype.is_complex and op.test_conjugated_samples}
    drawn = op.sample_inputs("cpu", dtype, requires_grad=True, **conjugated)
    drawn = (s for s in drawn if _size(s) > 0 and not (kind == "inplace" and s.broadcasts_input))
    drawn = list(itertools.islice(drawn, 24))
    small = [s for s in drawn if _size(s) <= SMALL]
    return small[:count] or sorted(drawn, key=_size)[:1]


def check(op, sample, device, kind="backward"):
    """Compares derivatives with differences, as PyTorch's own test does.

    Tolerances, wrappers and what else an operator needs come from its OpInfo. Raises what
    `torch.autograd.gradcheck` raises.
    """
    flat, spec = tree_flatten(moved(op, sample, device))
    places = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor) and v.requires_grad]
    variant = op.op
    if kind == "inplace":
        variant = lambda x, *args, **kwargs: op.inplace_variant(x.clone(), *args, **kwargs)  # noqa: E731

    def function(*inputs):
        values = list(flat)
        for place, value in zip(places, inputs, strict=True):
            values[place] = value
        input, args, kwargs = tree_unflatten(values, spec)
        result = op.gradcheck_wrapper(variant, input, *args, **kwargs)
        process = sample.output_process_fn_grad
        return result if process is None else process(result)

    inputs = tuple(flat[i] for i in places)
    options = {"nondet_tol": op.gradcheck_nondet_tol, "fast_mode": op.gradcheck_fast_mode}
    if kind == "second":
        batched = op.check_batched_gradgrad
        assert gradgradcheck(
            function,
            inputs,
            gen_non_contig_grad_outputs=True,
            check_batched_grad=batched,
            **options,
        )
        return
    if kind == "forward":
        options |= {"check_forward_ad": True, "check_backward_ad": False}
        options |= {"check_undefined_grad": False, "check_batched_grad": False}
        options["check_batched_forward_grad"] = op.check_batched_forward_grad
    else:
        options["check_batched_grad"] = op.check_batched_grad
    assert gradcheck(function, inputs, check_grad_dtypes=True, **options)


def verdict(op, device, kind="backward", dtype=torch.float64):
    """Checks an operator's first samples. Says why there was nothing to check, if so, else None."""
    drawn = samples(op, 2 if kind == "backward" else 1, dtype, kind)
    if not drawn:
        return "no sample input needs a gradient"
    if op.full_name in SPARSE:
        return "results are sparse"
    torch.tpu.clear_fallbacks()
    for sample in drawn:
        try:
            check(op, sample, device, kind)
        except Exception as error:
            # Some operators, those that draw random numbers or change the dtype, say, cannot be
            # checked on any device; PyTorch's own test knows their names.
            try:
                check(op, sample, "cpu", kind)
            except Exception as same:
                return f"not on the CPU either: {type(same).__name__}"
            raise error
    on_cpu = sorted({record["op"] for record in torch.tpu.fallbacks()})
    return f"right, by way of the CPU: {', '.join(on_cpu)}" if on_cpu else None
