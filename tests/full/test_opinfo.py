"""All operators of PyTorch's OpInfo tables against CPU PyTorch: values, dtypes, strides."""

import itertools

import pytest
import torch
from agreement import outcome
from opinfo_gradients import SPARSE, moved
from rule_inputs import words
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

DTYPES = (torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool)
# Samples of one operator and dtype, spread over the first so many.
COUNT, AMONG = 4, 24

# Results that are random or undefined: everything but their values is compared.
WITHOUT_VALUES = words("""
    bernoulli cauchy empty empty_like empty_permuted empty_strided exponential geometric
    log_normal multinomial new_empty new_empty_strided normal nn.functional.alpha_dropout
    nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d
    nn.functional.feature_alpha_dropout nn.functional.feature_alpha_dropout_with_train
    nn.functional.rrelu nn.functional.scaled_dot_product_attention pca_lowrank poisson rand
    rand_like randint randint_like randn randn_like randperm svd_lowrank uniform
""")

# Of equal elements an unstable sort may name either first: the last result is left out.
TIES = words("argsort kthvalue sort topk")
# What a copied sample cannot be (reads beside the view it is given), and a dtype there is not.
NOT_HERE = {"as_strided.partial_views", "chalf"}

TOLERANCE = {
    torch.float16: 5e-3,
    torch.bfloat16: 4e-2,
    torch.float32: 2e-4,
    torch.complex64: 2e-4,
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
}

CASES = [
    pytest.param(op, dtype, id=f"{op.full_name}-{str(dtype)[6:]}")
    for dtype in DTYPES
    for op in op_db
    if dtype in op.supported_dtypes("cpu") and op.full_name not in SPARSE | NOT_HERE
]


def widened(x):
    if isinstance(x, torch.dtype):
        return torch.float32 if x is torch.bfloat16 else x
    return x.float() if isinstance(x, torch.Tensor) and x.dtype is torch.bfloat16 else x


def compare(op, actual, expected, exact):
    """Leaf by leaf; layouts of sparse results are not ours.

    `exact` gives the leaves computed in float32: CPU PyTorch rounds bfloat16 sums step by step, so
    what differs from it may be nearer to these.
    """
    actual, expected = tree_flatten(actual)[0], tree_flatten(expected)[0]
    assert len(actual) == len(expected)
    values = op.name not in WITHOUT_VALUES
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if not isinstance(e, torch.Tensor):
            if values and not isinstance(e, torch.device):
                torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-4, equal_nan=True)
            continue
        assert (a.dtype, a.shape) == (e.dtype, e.shape)
        if e.layout is torch.strided:
            significant = [i for i, d in enumerate(e.shape) if d > 1 and e.numel() > 0]
            assert [a.stride(i) for i in significant] == [e.stride(i) for i in significant]
        if not values or (op.name in TIES and i + 1 == len(expected)):
            continue
        tolerance = TOLERANCE.get(e.dtype, 0.0)
        close = {"rtol": tolerance, "atol": tolerance, "equal_nan": True, "check_stride": False}
        try:
            torch.testing.assert_close(a.cpu(), e, **close)
        except AssertionError:
            if e.dtype is not torch.bfloat16:
                raise
            torch.testing.assert_close(a.cpu(), exact()[i].to(e.dtype), **close)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op,dtype", CASES)
def test_operator(op, dtype):
    torch.manual_seed(0)
    drawn = list(itertools.islice(op.sample_inputs("cpu", dtype), AMONG))
    torch.tpu.clear_fallbacks()
    for sample in drawn[:: max(1, len(drawn) // COUNT)][:COUNT]:

        def run(device, sample=sample, convert=lambda x: x):
            torch.manual_seed(0)
            input, args, kwargs = tree_map(convert, moved(op, sample, device))
            result = op.op(input, *args, **kwargs)
            # Takes away what is free: signs of singular vectors, say.
            process = sample.output_process_fn_grad
            result = result if process is None else process(result)
            # A logarithm's imaginary part is one of many.
            return result.exp() if op.name == "logcumsumexp" and dtype.is_complex else result

        expected, cpu_error = outcome(run, "cpu")
        actual, error = outcome(run, "tpu")
        assert (error is None) == (cpu_error is None), f"tpu: {error!r}, cpu: {cpu_error!r}"
        if error is None:
            exact = lambda: tree_flatten(run("cpu", convert=widened))[0]  # noqa: E731
            compare(op, actual, expected, exact)
    on_cpu = sorted({record["op"] for record in torch.tpu.fallbacks()})
    if on_cpu:
        pytest.skip(f"right, by way of the CPU: {', '.join(on_cpu)}")
