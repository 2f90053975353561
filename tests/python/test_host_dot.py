"""Small float32 products run as calls of the host's own dot: values, orders, gradients, limits."""

import pytest
import torch
from agreement import agree_on
from child import run

TOLERANCE = 2e-5


def matrix(*shape, transposed=False, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if transposed:
        *batch, rows, columns = shape
        return torch.randn(*batch, columns, rows, generator=generator)
    return torch.randn(*shape, generator=generator)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize(
    "m, k, n", [(8, 64, 64), (1, 37, 65), (37, 19, 1), (13, 7, 11), (33, 40, 3)]
)
def test_two_dimensions(m, k, n, left, right):
    def product(a, b):
        return (a.mT if left else a) @ (b.mT if right else b)

    a, b = matrix(m, k, transposed=left), matrix(k, n, transposed=right, seed=1)
    agree_on(product, a, b, tolerance=TOLERANCE)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
def test_batches(left, right):
    def product(a, b):
        return torch.bmm(a.mT if left else a, b.mT if right else b)

    a, b = matrix(3, 5, 17, transposed=left), matrix(3, 17, 9, transposed=right, seed=1)
    agree_on(product, a, b, tolerance=TOLERANCE)


def test_batch_in_another_order():
    def product(a, b):
        return torch.bmm(a.permute(1, 0, 2), b.permute(2, 0, 1))

    agree_on(product, matrix(5, 3, 17), matrix(17, 9, 3, seed=1), tolerance=TOLERANCE)


def test_views_with_steps():
    def product(a, b):
        return a[::2, 1:] @ b[:, ::3]

    agree_on(product, matrix(20, 16), matrix(15, 40, seed=1), tolerance=TOLERANCE)


@pytest.mark.parametrize(
    "function, shapes",
    [
        (torch.mv, [(30, 40), (40,)]),
        (torch.dot, [(700,), (700,)]),
        (torch.addmv, [(30,), (30, 40), (40,)]),
        (torch.addmm, [(12,), (10, 20), (20, 12)]),
        (torch.baddbmm, [(4, 10, 12), (4, 10, 20), (4, 20, 12)]),
        (torch.addbmm, [(10, 12), (4, 10, 20), (4, 20, 12)]),
        (torch.nn.functional.linear, [(2, 3, 20), (12, 20), (12,)]),
        (torch.matmul, [(2, 3, 4, 5), (3, 5, 6)]),
        (torch.nn.functional.scaled_dot_product_attention, [(2, 3, 6, 8)] * 3),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_operators(function, shapes):
    operands = [matrix(*shape, seed=i) for i, shape in enumerate(shapes)]
    agree_on(function, *operands, tolerance=TOLERANCE)


def test_nothing_to_sum_is_zero():
    agree_on(torch.mm, torch.empty(3, 0), torch.empty(0, 5))
    agree_on(torch.mm, torch.empty(0, 4), torch.empty(4, 5))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_values(value):
    a, b = torch.ones(12, 24), torch.ones(24, 20)
    a[3, 23] = value
    b[5, 19] = 0
    b[23, 7] = 0  # an infinity times zero is no number
    agree_on(torch.mm, a, b)
    agree_on(lambda a, b: a @ b.mT, a, b.mT.contiguous())


def test_gradients():
    def gradients(x, w, b):
        x, w, b = (t.requires_grad_() for t in (x, w, b))
        torch.nn.functional.linear(x, w, b).square().sum().backward()
        return x.grad, w.grad, b.grad

    agree_on(gradients, matrix(9, 33), matrix(21, 33, seed=1), matrix(21, seed=2), tolerance=2e-4)


def test_the_same_bits_every_time():
    a, b = matrix(31, 50).to("tpu"), matrix(50, 29).to("tpu")
    first = (a @ b).cpu()
    assert all(torch.equal((a @ b).cpu(), first) for _ in range(20))


def test_what_is_called_when():
    done = run(
        """
        import torch
        def product(m, k, n, dtype=torch.float32):
            return (torch.ones(m, k, dtype=dtype, device="tpu")
                    @ torch.ones(n, k, dtype=dtype, device="tpu").mT).cpu()
        assert (product(10, 16, 11) == 16).all()
        assert (product(10, 16, 12, torch.float64) == 16).all()
        assert (product(10, 16, 13, torch.bfloat16) == 16).all()
        assert (product(200, 200, 201) == 200).all()
        # Sums down the columns of a large matrix, which XLA:CPU is slow at; and along its rows.
        wide = torch.ones(1000, 1001, device="tpu")
        assert ((torch.ones(1, 1000, device="tpu") @ wide).cpu() == 1000).all()
        assert ((wide @ torch.ones(1001, 1, device="tpu")).cpu() == 1001).all()
        """,
        TORCH_TPU_PRINT_MODULES="1",
    )
    products = [
        line
        for line in done.stderr.splitlines()
        if "torch_tpu_dot" in line or "dot_general" in line
    ]
    called = [line for line in products if "torch_tpu_dot" in line]
    assert len(products) == 6 and len(called) == 2, products
    # It reads the transposed operand where it lies.
    assert '"torch_tpu_dot_nt"' in called[0] and "1x10x11xf32" in called[0]
    assert '"torch_tpu_dot_nn"' in called[1] and "1x1x1001xf32" in called[1]
