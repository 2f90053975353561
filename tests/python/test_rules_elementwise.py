"""Elementwise operators against CPU PyTorch."""

import math

import pytest
import torch
from agreement import agree, agree_on
from rule_inputs import SPECIAL, TOLERANCE, all_layouts, out_forms, values, with_gradients, words

UNARY = words("""
    abs absolute acos acosh angle asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc
    erfinv exp exp2 expm1 floor frac isfinite isinf isnan isneginf isposinf isreal lgamma log
    log10 log1p log2 logical_not logit nan_to_num neg positive rad2deg reciprocal round rsqrt
    sgn sigmoid sign signbit sin sinc sinh sqrt square tan tanh trunc special.entr
    special.erfcx special.i0 special.i0e special.i1 special.i1e special.log_ndtr special.ndtr
    special.ndtri
""")
ACTIVATIONS = words("""
    relu relu6 leaky_relu elu selu celu gelu silu mish hardswish hardsigmoid hardtanh softplus
    softsign tanhshrink softshrink hardshrink logsigmoid threshold rrelu
""")


def named(name):
    module = torch
    for part in name.split("."):
        module = getattr(module, part)
    return module


def activation(name):
    function = getattr(torch.nn.functional, name)
    if name == "threshold":
        return lambda x, **kwargs: function(x, 0.3, -4.0, **kwargs)
    return function


def function_of(name):
    return activation(name) if name in ACTIVATIONS else named(name)


# Near their poles these lose digits: absolutely little, relatively much.
LOOSE = {"digamma": 4, "lgamma": 4, "special.ndtri": 4, "special.log_ndtr": 4, "erfinv": 2}


def tolerance_of(name, dtype):
    return TOLERANCE.get(dtype, 5e-6) * LOOSE.get(name, 1)


@pytest.mark.parametrize("name", UNARY + ACTIVATIONS)
def test_unary_in_every_layout(name):
    x = values(4, 6)
    agree_on(all_layouts(function_of(name)), x, tolerance=tolerance_of(name, x.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", UNARY + ACTIVATIONS)
def test_unary_of_special_values(name, dtype):
    function = function_of(name)
    x = torch.tensor(SPECIAL).to(dtype)
    if name in ("digamma", "lgamma"):
        x = x[(x.abs() < 1e4) & (x != 88)]  # large ones overflow at different places
    if name == "gelu":
        x = x[x != math.inf]  # CPU gives NaN
    if dtype.itemsize == 2 and name in ("special.erfcx", "special.log_ndtr", "special.ndtri"):
        pytest.skip("not implemented on CPU")
    if name in ("special.i0", "special.i1", "special.erfcx", "special.entr"):
        x = x[x.abs() < 80]
    if name in ("sin", "cos", "tan", "sinc", "special.i0e"):
        x = x[x.abs() < 1e4]  # of 1e30 there is no telling
    if name in ("deg2rad", "rad2deg") and dtype is torch.float16:
        x = x[:10]
    agree_on(function, x, tolerance=tolerance_of(name, dtype))


@pytest.mark.parametrize("name", UNARY + ACTIVATIONS)
def test_unary_of_integers(name):
    function = function_of(name)
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool):
        if dtype is torch.uint8 and name in ("hardtanh", "threshold"):
            continue  # their default bounds are negative
        low = 0 if dtype is torch.uint8 else -3
        x = values(3, 5, dtype=dtype, low=low, high=4)
        agree_on(function, x, tolerance=tolerance_of(name, torch.float32))


COMPLEX = words("""
    abs acos acosh angle asin asinh atan atanh cos cosh exp exp2 expm1 isfinite isinf isnan
    isreal log log10 log1p log2 logical_not neg positive reciprocal rsqrt sgn sigmoid sin sinc
    sinh sqrt square tan tanh
""")


@pytest.mark.parametrize("name", COMPLEX)
def test_unary_of_complex(name):
    agree_on(named(name), values(3, 5, dtype=torch.complex64), tolerance=2e-5)


# CPU refuses an out= of a wider type for these.
SAME_TYPE = words("abs absolute ceil floor frac nan_to_num neg round sgn sign trunc")


@pytest.mark.parametrize("name", UNARY)
def test_unary_forms(name):
    function = named(name)
    x = values(3, 4, low=0.1, high=0.9)
    if name not in ("isfinite", "isinf", "isnan", "isreal", "positive"):
        agree_on(out_forms(function, wider=name not in SAME_TYPE), x, tolerance=2e-5)
    in_place = getattr(torch.Tensor, name + "_", None)
    if in_place is None:
        return

    def run(x):
        view = x[:, 1:3]
        assert in_place(view) is view
        return x

    agree_on(run, x, tolerance=2e-5)
    agree_on(lambda x: in_place(x), values(3, 4, dtype=torch.int64, low=1, high=3))


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "elu", "selu", "celu", "silu", "mish"])
def test_activation_in_place(name):
    function = activation(name)

    def run(x):
        function(x[1:], inplace=True)
        return x

    agree_on(run, values(3, 4), tolerance=1e-6)


SMOOTH = [n for n in UNARY if not n.startswith("is") and n not in ("signbit", "logical_not")]


@pytest.mark.parametrize("name", SMOOTH + ACTIVATIONS)
def test_unary_gradient(name):
    x = values(3, 4, low=0.1, high=0.9)
    agree_on(with_gradients(function_of(name)), x, tolerance=3e-5)
    agree_on(with_gradients(function_of(name)), values(3, 4).mT, tolerance=1e-4)


BINARY = words("""
    add sub mul div true_divide floor_divide remainder fmod pow maximum minimum fmax fmin
    atan2 hypot copysign nextafter logaddexp logaddexp2 xlogy heaviside eq ne lt le gt ge
    logical_and logical_or logical_xor special.xlog1py special.zeta float_power
""")
INTEGER = words("""
    bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift gcd lcm
""")


@pytest.mark.parametrize("name", BINARY)
def test_binary_broadcasts(name):
    function = named(name)

    def run(a, b, row, one):
        return [
            function(a, b),
            function(a, row),
            function(one, a),
            function(a.mT, b.mT),
            function(a[:, ::2], b[:, 1::2]),
            function(a[:, :0], b[:, :0]),
            function(a[0, 0], b[0, 0]),
            function(row.expand(3, 4), b),
        ]

    a, b = values(3, 4), values(3, 4, seed=1)
    if name in ("special.zeta", "pow", "float_power"):
        a, b = a.abs() + 1.1, b.abs() + 0.5
    row, one = b[:1] + 0.25, a[:, :1] + 0.5
    agree_on(run, a, b, row, one, tolerance=1e-5)


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8]
DTYPES += [torch.bool]


@pytest.mark.parametrize("name", BINARY + INTEGER)
def test_binary_promotes(name):
    function = named(name)
    for i, first in enumerate(DTYPES):
        second = DTYPES[(i + 2) % len(DTYPES)]
        if name == "special.zeta" and first is torch.bfloat16:
            continue  # not implemented on CPU
        a = values(2, 3, dtype=first, low=1, high=4)
        b = values(2, 3, dtype=second, low=1, high=4, seed=1)
        if second is torch.bool:
            b |= True  # no division by zero
        for left, right in ((a, b), (a, a.flip(0)), (a, b[0, 0])):
            agree_on(
                function, left, right, tolerance=1e-2 if torch.bfloat16 in (first, second) else 1e-5
            )


TENSORS_ONLY = words("""
    atan2 fmax fmin gcd lcm heaviside hypot logaddexp logaddexp2 logical_and logical_or logical_xor
    maximum minimum nextafter
""")


@pytest.mark.parametrize("name", BINARY + INTEGER)
def test_binary_with_numbers(name):
    function = named(name)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        if name == "special.zeta" and dtype is torch.bfloat16:
            continue
        x = values(2, 3, dtype=dtype, low=1, high=4)
        for number in () if name in TENSORS_ONLY else (2, 0.5, True):
            tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-5
            agree_on(lambda x, number=number: function(x, number), x, tolerance=tolerance)
        agree_on(lambda x: function(x, torch.tensor(3)), x, tolerance=2e-2)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "remainder", "floor_divide"])
def test_number_on_the_left(name):
    operator = {
        "add": lambda x: 2 + x,
        "sub": lambda x: 2 - x,
        "mul": lambda x: 2.5 * x,
        "div": lambda x: 2 / x,
        "pow": lambda x: 2**x,
        "remainder": lambda x: 7 % x,
        "floor_divide": lambda x: 7 // x,
    }[name]
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        agree_on(operator, values(2, 3, dtype=dtype, low=1, high=5), tolerance=1e-2)


@pytest.mark.parametrize("name", BINARY)
def test_binary_of_special_values(name):
    function = named(name)
    for dtype in (torch.float32, torch.bfloat16):
        if name == "special.zeta" and dtype is torch.bfloat16:
            continue
        x = torch.tensor(SPECIAL).to(dtype)
        if name in ("special.zeta", "nextafter"):
            x = x[x.abs() < 4]
        if name == "special.zeta":
            x = x[~x.isnan()]
        if name in ("remainder", "fmod", "floor_divide", "pow", "float_power"):
            x = x[(x.abs() < 1e4) & (x.abs() > 1e-4) | ~x.isfinite() | (x == 0)]
        tolerance = 2e-2 if dtype is torch.bfloat16 else 2e-5
        agree_on(lambda x: function(x[:, None], x[None]), x, tolerance=tolerance)


@pytest.mark.parametrize("name", INTEGER)
def test_integer_arithmetic(name):
    function = named(name)
    for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8):
        low = 0 if dtype is torch.uint8 else -9
        a = values(4, 5, dtype=dtype, low=low, high=10)
        b = values(4, 5, dtype=dtype, low=0, high=7, seed=1)
        agree_on(function, a, b)
        agree_on(out_forms(function), a, b)


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod", "div"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integer_division(name, dtype):
    low = 0 if dtype is torch.uint8 else -9
    a = values(6, 7, dtype=dtype, low=low, high=10)
    b = values(6, 7, dtype=dtype, low=1, high=5, seed=1)
    agree_on(named(name), a, b)
    if low < 0:
        agree_on(named(name), a, -b)
    for mode in ("floor", "trunc"):
        agree_on(lambda a, b, mode=mode: torch.div(a, b, rounding_mode=mode), a, b)
        agree_on(lambda a, mode=mode: torch.div(a, 2.5, rounding_mode=mode), a, tolerance=1e-6)


def test_integer_overflow_wraps():
    for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8):
        top = torch.iinfo(dtype)
        x = torch.tensor([top.max, top.min, 3], dtype=dtype)
        agree_on(lambda x: [x + 1, x - 1, x * 3, -x, x.abs(), x**2, x << 1], x)


def test_integer_powers():
    base = torch.tensor([-3, -2, -1, 0, 1, 2, 3])
    agree_on(lambda x: [x**0, x**1, x**5, x ** torch.tensor(3)], base)
    agree_on(lambda x, y: torch.pow(x, y), base, torch.arange(7))
    agree_on(lambda x: x**-1, base)
    agree_on(lambda x: torch.pow(2, x), torch.arange(5))
    agree_on(lambda x: x**0.5, base)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -0.5, -1, -2, 1.7, math.nan, math.inf])
def test_float_powers(exponent):
    x = torch.tensor(SPECIAL)
    x = x[(x.abs() < 1e4) & (x.abs() > 1e-4) | ~x.isfinite() | (x == 0)]
    agree_on(lambda x: [x**exponent, torch.pow(x.double(), exponent)], x, tolerance=1e-5)
    agree_on(with_gradients(lambda x: x**exponent), values(5, low=0.5, high=2), tolerance=1e-5)


IN_PLACE = words("""
    add sub mul div floor_divide remainder fmod pow atan2 hypot copysign xlogy
""")


@pytest.mark.parametrize("name", IN_PLACE)
def test_binary_forms(name):
    in_place = getattr(torch.Tensor, name + "_")

    def run(a, b):
        whole = a.clone()
        view = whole.mT[1:]
        assert in_place(view, b.mT[1:]) is view
        again = a.clone()
        in_place(again, b[:1])
        overlap = a.clone()
        in_place(overlap, overlap)
        number = a.clone()
        in_place(number, number[0, 0] if name in ("atan2", "hypot") else 2)
        return whole, again, overlap, number

    a, b = values(3, 4, low=0.5, high=3), values(3, 4, low=0.5, high=3, seed=1)
    agree_on(run, a, b, tolerance=1e-5)
    agree_on(out_forms(getattr(torch, name)), a, b, tolerance=1e-5)
    # What does not fit: types that cannot be cast, shapes that cannot be broadcast.
    whole = values(3, 4, dtype=torch.int64, low=1, high=4)
    agree_on(lambda a, b: in_place(a, b), whole, b)
    agree_on(lambda a, b: in_place(a, b), a[:1], b)
    agree_on(lambda a, b: in_place(a, b), a, b[:, :3])


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or"])
def test_comparison_forms(name):
    function, in_place = getattr(torch, name), getattr(torch.Tensor, name + "_")

    def run(a, b):
        into = torch.zeros_like(a)
        function(a, b, out=into)
        in_place(a, b)
        return into, a

    for dtype in (torch.float32, torch.int64, torch.bool):
        a, b = values(3, 4, dtype=dtype), values(3, 4, dtype=dtype, seed=1)
        agree_on(run, a, b)


GRADIENT = words("""
    add sub mul div remainder fmod pow maximum minimum fmax fmin atan2 hypot copysign
""")
GRADIENT += ["logaddexp", "logaddexp2", "xlogy"]


@pytest.mark.parametrize("name", GRADIENT)
def test_binary_gradient(name):
    a, b = values(3, 4, low=0.5, high=3), values(3, 4, low=0.5, high=3, seed=1)
    agree_on(with_gradients(named(name)), a, b, tolerance=2e-5)
    agree_on(with_gradients(named(name)), a, b[:1], tolerance=2e-5)


@pytest.mark.parametrize("alpha", [1, 2, -0.5, True])
def test_alpha(alpha):
    for dtype in (torch.float32, torch.int64):
        a, b = values(3, 4, dtype=dtype), values(3, 4, dtype=dtype, seed=1)
        agree_on(lambda a, b: torch.add(a, b, alpha=alpha), a, b, tolerance=1e-6)
        agree_on(lambda a, b: torch.sub(a, b, alpha=alpha), a, b, tolerance=1e-6)
        agree_on(lambda a: torch.rsub(a, 3, alpha=alpha), a, tolerance=1e-6)


def ternary(name):
    return {
        "addcmul": lambda a, b, c: torch.addcmul(a, b, c, value=0.7),
        "addcdiv": lambda a, b, c: torch.addcdiv(a, b, c, value=-1.3),
        "lerp": torch.lerp,
        "lerp_number": lambda a, b, c: torch.lerp(a, b, 0.3) + c,
        "clamp": lambda a, b, c: torch.clamp(a, torch.minimum(b, c), torch.maximum(b, c)),
        "where": lambda a, b, c: torch.where(a > 1, b, c),
        "clamp_numbers": lambda a, b, c: a.clamp(0.8, 1.9) + b.clamp(min=1) + c.clamp(max=1.5),
    }[name]


@pytest.mark.parametrize(
    "name", ["addcmul", "addcdiv", "lerp", "lerp_number", "clamp", "where", "clamp_numbers"]
)
def test_ternary(name):
    a, b, c = (values(3, 4, low=0.5, high=2, seed=i) for i in range(3))
    agree_on(with_gradients(ternary(name)), a, b, c, tolerance=1e-5)
    agree_on(ternary(name), a.mT, b[0, 0], c[:1].mT, tolerance=1e-5)
    half = [t.bfloat16() for t in (a, b, c)]
    agree_on(ternary(name), *half, tolerance=1.6e-2)
    agree_on(ternary(name), *[t[:, :0] for t in (a, b, c)])
    agree_on(ternary(name), a, b, c[:, :3])


def test_ternary_forms():
    def run(a, b, c):
        x, y, z = a.clone(), a.clone(), a.clone()
        x[1:].addcmul_(b[1:], c[1:], value=2)
        y.addcdiv_(b, c, value=0.5)
        z.lerp_(b, c)
        out = torch.empty(0, device=a.device)
        torch.addcmul(a, b, c, out=out)
        return x, y, z, out, a.clone().clamp_(0.7, 1.2), a.clone().clamp_min_(b)

    agree_on(run, *(values(3, 4, low=0.5, high=2, seed=i) for i in range(3)), tolerance=1e-5)


def test_where_promotes_and_broadcasts():
    mask = values(3, 1, dtype=torch.bool)
    a, b = values(3, 4), values(1, 4, dtype=torch.int64, seed=1)
    agree_on(torch.where, mask, a, b)
    agree_on(lambda m, a: [torch.where(m, a, 2), torch.where(m, 1.5, a)], mask, a)
    agree_on(lambda m: torch.where(m, 1, 0.5), mask)
    agree_on(lambda m, b: torch.where(m, b, 0.5), mask, b)
    agree_on(torch.where, mask.to(torch.uint8), a, a)
    agree_on(torch.where, a, a, a)


def test_clamp_of_nan_and_integers():
    x = torch.tensor(SPECIAL)
    agree_on(lambda x: [x.clamp(-1, 1), x.clamp(min=x.flip(0)), x.clamp(2, 1)], x)
    agree_on(lambda x: [x.clamp(-1, 2), x.clamp(0.5, 2.5), x.clamp(max=1)], torch.arange(-3, 5))
    agree_on(lambda x: x.clamp(), x)


def test_round_with_decimals():
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 12.345, -12.355, 0.125])
    agree_on(lambda x: [x.round(), x.round(decimals=1), x.round(decimals=-1)], x, tolerance=1e-6)


def test_nan_to_num():
    x = torch.tensor(SPECIAL)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        agree_on(lambda x: [x.nan_to_num(), x.nan_to_num(1, 2, -3)], x.to(dtype))


def test_gelu_and_softplus_arguments():
    x = values(3, 5, low=-5, high=5)
    functional = torch.nn.functional
    for approximate in ("none", "tanh"):
        agree_on(
            with_gradients(lambda x, a=approximate: functional.gelu(x, approximate=a)),
            x,
            tolerance=1e-5,
        )
    agree_on(with_gradients(lambda x: functional.softplus(x, 2.0, 3.0)), x, tolerance=1e-5)
    agree_on(with_gradients(lambda x: functional.elu(x, 0.7)), x, tolerance=1e-5)
    agree_on(with_gradients(lambda x: functional.leaky_relu(x, -0.2)), x, tolerance=1e-5)
    agree_on(with_gradients(lambda x: functional.hardtanh(x, -0.5, 1.5)), x, tolerance=1e-5)
    agree_on(with_gradients(lambda x: functional.glu(x[:, :4], -1)), x, tolerance=1e-5)
    agree_on(
        with_gradients(functional.prelu), x, torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]), tolerance=1e-5
    )
    agree_on(functional.gelu, x.bfloat16(), tolerance=1.6e-2)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_polygamma(n):
    agree_on(
        lambda x: torch.polygamma(n, x), torch.tensor([0.3, 1.5, 20.0, -0.5, -8.3]), tolerance=1e-4
    )
    agree_on(with_gradients(lambda x: torch.polygamma(n, x)), values(4, low=0.5), tolerance=1e-3)


def test_complex_parts():
    x = values(3, 4, dtype=torch.complex64)
    agree_on(lambda x: [x.real, x.imag, x.conj(), x.conj() * 2, x.mT.conj() + 1], x)
    agree_on(lambda x: [torch.view_as_real(x), torch.complex(x.real, x.imag)], x)
    agree_on(with_gradients(lambda x: (x * x.conj()).real), x, tolerance=1e-5)
    agree_on(lambda x: torch.polar(x.abs(), x.angle()), x, tolerance=1e-5)
    agree_on(lambda x: x < x, x)


def test_wide_integers_keep_all_digits():
    x = torch.tensor([2**62 + 1, -(2**53) - 1, 2**31])
    agree_on(
        lambda x: [x + 1, x * 1, x // 3, x % 1000, x.abs(), x == 2**62 + 1, x.clamp(max=2**40)], x
    )


def test_casts():
    x = torch.tensor([0.0, 1.9, -1.9, 3.5, 127.4])
    kinds = DTYPES + [torch.int8, torch.int16, torch.float16, torch.complex64]
    for dtype in kinds:
        agree_on(lambda x, dtype=dtype: x.to(dtype), x)
        agree_on(lambda x, dtype=dtype: x.to(dtype).to(torch.float32), x.abs())
    narrow = [torch.float8_e4m3fn, torch.float8_e5m2]
    agree_on(lambda x: [x.to(d).to(torch.float32) for d in narrow], values(4, 4))


def test_mixed_devices_are_an_error():
    agree(lambda device: torch.ones(2, device=device) + torch.ones([], device="cpu"))
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(2, device="tpu") + torch.ones(2)


REFUSED = {
    torch.complex64: words("atan2 copysign logaddexp2 xlogy special.xlog1py hypot nextafter"),
    torch.bool: words("addcmul"),
    torch.int64: words("lerp"),
}


@pytest.mark.parametrize("dtype", REFUSED)
def test_dtypes_without_a_kernel(dtype):
    x = torch.ones(2, 3, dtype=dtype)
    for name in REFUSED[dtype]:
        operands = {"addcmul": (x, x, x), "lerp": (x, x, 0.5)}.get(name, (x, x))
        agree_on(named(name), *operands)
    if dtype == torch.complex64:
        agree_on(torch.relu, x)
        agree_on(torch.nn.functional.hardtanh, x)
        agree_on(torch.nn.functional.mse_loss, x, x)
    if dtype == torch.bool:
        agree_on(torch.clamp, x, x, x)
        agree_on(lambda x: x.cumsum(0, dtype=torch.bool), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_remainders_by_a_number_of_many_digits(dtype):
    x = values(40, dtype=dtype, low=-8, high=8)
    agree_on(lambda x: [x % 0.1, x // 0.1, torch.fmod(x, 0.3), torch.remainder(7.7, x)], x)


@pytest.mark.parametrize("name", ["sinh", "cosh"])
def test_hyperbolic_functions_far_out(name):
    """As exp(x - ln 2) they would lose five bits; and exp(x) overflows before they do."""
    function, x = getattr(torch, name), torch.linspace(-89, 89, 4001)
    exact = function(x.double())
    error = (function(x.to("tpu")).cpu().double() - exact).abs() / exact.abs().clamp(min=1e-30)
    assert error.max() < 6 * torch.finfo(torch.float32).eps
    agree_on(function, torch.tensor(SPECIAL + [89.2, -89.2, 90.0]), tolerance=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_which_operands_are_rounded(dtype):
    """All to the result's dtype, but for a number that is multiplied or divided by."""
    x, many = values(40, dtype=dtype), torch.arange(1001, 1041)
    digits = torch.tensor(0.1)
    agree_on(lambda x: [x + 0.1, x - 0.1, 0.1 - x, x * 0.1, x / 0.1, 0.1 / x], x)
    agree_on(lambda x, n: [x + n, x - n, n - x, x * n, n * x, x / n, n / x], x, digits)
    agree_on(lambda x, n: [x + n, x - n, n - x, x * n, n * x, x / n, n / x], x, many)
    agree_on(lambda x, n: [x + n, n - x, x * n, n * x, x / n, n / x], x, many[0])
    agree_on(lambda x, n: x.sub_(n), x, digits.to(torch.float16))
    agree_on(lambda x, n: torch.sub(x, n, alpha=0), x, torch.tensor(-(2**31)))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]
)
def test_false_times_nan(dtype):
    """XLA takes the product of a converted predicate for a selection."""
    mask, x = torch.tensor([[False], [True]]), torch.tensor([math.nan, math.inf, 2.0]).to(dtype)
    if dtype.is_complex:
        x = x[:1]  # infinities times zero are a matter of the formula
    agree_on(lambda m, x: [m * x, x * m, m * x[0]], mask, x)
    if not dtype.is_complex:
        agree_on(lambda m, x: [m / x, m / x[0], x / m], mask, x)


def test_log1p_in_double_precision():
    x = torch.cat([torch.linspace(-0.999, 2, 2001), torch.logspace(-20, 30, 500)]).double()
    x = torch.cat([x, torch.tensor([-0.4142, 0.0, -0.0, -1, -2, math.inf, -math.inf, math.nan])])
    expected, actual = torch.log1p(x), torch.log1p(x.to("tpu")).cpu()
    torch.testing.assert_close(actual, expected, rtol=1e-15, atol=0, equal_nan=True)
    assert torch.equal(actual.signbit(), expected.signbit())
