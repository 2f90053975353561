"""Branches and loops: under a capture they become operations that decide while they run."""

from collections.abc import Callable, Sequence

import torch

from torch_tpu import _C

from .higher_order import rule, run


class _Body:
    """A function over tensors, for functions that also take and return numbers and None.

    `fixed`: what comes after the tensors that are passed in.
    """

    def __init__(self, function: Callable, fixed: Sequence) -> None:
        self.function = function
        self.fixed = tuple(fixed)
        self.returned: list = []

    def __call__(self, tensors: list[torch.Tensor]) -> list[torch.Tensor | None]:
        self.returned = _listed(self.function(*tensors, *self.fixed))
        return [_on_tpu(x) if isinstance(x, torch.Tensor) else None for x in self.returned]

    def merge(self, results: list[torch.Tensor | None], other: "_Body | None" = None) -> tuple:
        """The results, with what is not a tensor as the body returned it."""
        if other is not None:
            for mine, theirs in zip(self.returned, other.returned, strict=True):
                if not isinstance(mine, torch.Tensor) and mine != theirs:
                    _C.abort_capture(f"the branches return different numbers, {mine} and {theirs}")
        return tuple(
            result if isinstance(own, torch.Tensor) else own
            for result, own in zip(results, self.returned, strict=True)
        )


def _on_tpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.device.type == "tpu" else tensor.to("tpu")


def _listed(returned: object) -> list:
    return list(returned) if isinstance(returned, (list, tuple)) else [returned]


def _tensors(values: Sequence) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


@rule("cond")
def _cond(pred, true_fn, false_fn, operands):
    if not isinstance(pred, torch.Tensor) or not _C.capturing():
        return (true_fn if pred else false_fn)(*operands)
    on_true, on_false = _Body(true_fn, operands), _Body(false_fn, operands)
    results = _C.record_cond(_on_tpu(pred), on_true, on_false, _tensors(operands))
    return on_true.merge(results, on_false)


@rule("while_loop")
def _while_loop(cond_fn, body_fn, carried_inputs, additional_inputs, mutated_arg_indices=""):
    if not _C.capturing():
        carried = tuple(carried_inputs)
        if not cond_fn(*carried, *additional_inputs):
            return tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in carried)
        while True:
            carried = tuple(body_fn(*carried, *additional_inputs))
            if not cond_fn(*carried, *additional_inputs):
                return carried
    # Carried Python numbers become tensors of no dimensions, which count as numbers in arithmetic.
    carried = [_on_tpu(torch.as_tensor(x)) for x in carried_inputs]
    bodies = [
        lambda tensors, function=function: [
            _on_tpu(torch.as_tensor(x)) for x in _listed(function(*tensors, *additional_inputs))
        ]
        for function in (cond_fn, body_fn)
    ]
    return tuple(_C.record_while(*bodies, carried, _tensors(additional_inputs)))


@rule("while_loop_stack_output")
def _while_loop_stack_output(cond_fn, body_fn, carried_inputs, additional_inputs, *rest, **options):
    if _C.capturing():
        _C.abort_capture("the gradient of while_loop keeps a number of steps that depends on data")
    return torch.ops.higher_order.while_loop_stack_output(
        cond_fn, body_fn, carried_inputs, additional_inputs, *rest, **options
    )


@rule("scan")
def _scan(combine_fn, init, xs, additional_inputs):
    if not _C.capturing():
        return torch.ops.higher_order.scan(combine_fn, init, xs, additional_inputs)
    body = _Body(combine_fn, additional_inputs)
    init, xs = [_on_tpu(x) for x in init], [_on_tpu(x) for x in xs]
    return body.merge(_C.record_scan(body, init, xs, _tensors(additional_inputs)))


@rule("map_impl")
def _map(f, xs, pos_args):
    if not _C.capturing():
        return torch.ops.higher_order.map_impl(f, xs, pos_args)
    body = _Body(f, pos_args)
    return body.merge(_C.record_scan(body, [], [_on_tpu(x) for x in xs], _tensors(pos_args)))


@rule("invoke_subgraph")
def _invoke_subgraph(subgraph, identifier, *operands):
    return subgraph(*operands)


@rule("auto_functionalized_v2")
def _auto_functionalized(mutable_op, _only_clone_these_bases=None, **kwargs):
    """An operator that writes to its arguments runs on copies of them, which are returned too."""
    from torch._higher_order_ops import auto_functionalize, utils

    if not isinstance(mutable_op, torch._ops.HigherOrderOperator):
        return torch.ops.higher_order.auto_functionalized_v2(
            mutable_op, _only_clone_these_bases=_only_clone_these_bases, **kwargs
        )

    class Instance(utils.HopInstance):
        def __call__(self, *args, **kwargs):
            return run(mutable_op, args, kwargs)

    bases = kwargs.pop("_all_bases", [])
    schema = torch.utils._pytree.tree_unflatten([], kwargs.pop("_op_schema")).schema
    copied = range(len(bases)) if _only_clone_these_bases is None else _only_clone_these_bases
    arguments, bases = auto_functionalize._generate_new_op_kwargs_from_bases(
        schema, kwargs, bases, tuple(copied), False
    )
    results = utils.call_op(Instance(mutable_op, schema), (), arguments)
    return (*(results if isinstance(results, tuple) else (results,)), *bases)
