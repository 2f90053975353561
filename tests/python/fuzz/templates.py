"""The operators of the programs, as lines with gaps.

A gap `<name>` is filled by the function of that name in drawing.py, from left to right; later gaps
see what earlier ones drew (a `<dim>` is one of the last tensor's). Functional lines are
expressions; lines with `<w>` write to a tensor.
"""

from dataclasses import dataclass

from fuzz import undefined
from fuzz.tolerance import Error


@dataclass(frozen=True)
class Template:
    text: str
    error: Error
    guards: tuple  # undefined.py: each gives a reason against a line, or None

    @property
    def writes(self):
        return "<w>" in self.text


TEMPLATES: list[Template] = []


def add(error, lines, *guards):
    for line in lines.strip().splitlines():
        TEMPLATES.append(Template(line.strip(), error, guards))


def each(names, line):
    return "\n".join(line.replace("@", name) for name in names.split())


# --- views. Nothing is computed, so that nothing may differ.

VIEWS = """
<x>.transpose(<dim>, <dim>)
<x>.movedim(<dim>, <dim>)
<x>.permute(<permutation>)
<x>.select(<dim>, <position>)
<x>.narrow(<dim>, <start>, <length>)
<x>[<slices>]
<x>.diagonal(<offset>, <dim>, <other_dim>)
<x>.unfold(<dim>, <window>, <step>)
<x>.as_strided(<strided>)
<x>.expand(<expanded>)
<x>.reshape(<regrouped>)
<x>.view(<regrouped>)
<x>.flatten(<dim>, <dim>)
<x>.unsqueeze(<new_dim>)
<x>.squeeze()
<x>.squeeze(<dim>)
<x>.mT
<x>.t()
<x>.chunk(<small>, <dim>)
<x>.unbind(<dim>)
<x>.split(<small>, <dim>)
<x>.view_as(<same>)
<x>.detach()
<x>.ravel()
<c>.real
<c>.imag
torch.view_as_real(<c>)
<c>.conj()
<x>.view(<same_width>)
"""
# Weighed thrice: what follows is to meet views everywhere.
for _ in range(3):
    add(Error.EXACT, VIEWS)

# --- moving elements

add(
    Error.EXACT,
    """
torch.cat([<x>, <like>], <dim>)
torch.cat([<x>, <like>, <like>], <dim>)
torch.stack([<x>, <same>], <new_dim>)
torch.hstack([<x>, <like>])
<x>.clone()
<x>.contiguous()
<x>.repeat(<repeats>)
<x>.repeat_interleave(<small>, <dim>)
<x>.tile(<small>)
torch.roll(<x>, <offset>, <dim>)
torch.flip(<x>, <dims>)
torch.rot90(<m>)
torch.tril(<m>, <offset>)
torch.triu(<m>, <offset>)
torch.nn.functional.pad(<x>, (<small>, <small>))
torch.nn.functional.pad(<x>, (<offset>, <small>))
torch.where(<condition>, <y>, <y>)
torch.where(<condition>, <y>, <scalar>)
torch.index_select(<x>, <dim>, <index_vector>)
torch.gather(<x>, <dim>, <index_like>)
torch.take(<x>, <flat_index>)
torch.take_along_dim(<x>, <index_like_last>, -1)
torch.scatter(<x>, <dim>, <unique_index>, <scalar_like>)
torch.masked_fill(<x>, <mask>, <scalar_like>)
torch.masked_select(<x>, <mask>)
torch.index_fill(<x>, <dim>, <index_vector>, <scalar_like>)
torch.index_copy(<x>, <dim>, <whole_index>, <same_dtype>)
torch.select_scatter(<x>, <row_of_x>, <last_dim>, <position>)
<x>[<index_vector_first>]
<x>[<mask>]
<x>[..., <index_vector_last>]
<x>[None, ..., ::2]
<x>[<exact_mask>]
torch.nonzero(<x>)
torch.argwhere(<x>)
torch.diag_embed(<x>)
torch.zeros_like(<x>)
torch.ones_like(<x>)
torch.full_like(<x>, <scalar_like>)
torch.arange(<small>, device=device)
torch.eye(<small>, <small>, dtype=<dtype>, device=device)
torch.combinations(<v>)
torch.unravel_index(<positive_index>, (3, 40))
torch.isin(<x>, <y>)
torch.unique(<x>)
torch.broadcast_tensors(<x>, <y>)
torch.meshgrid(<v>, <v>, indexing="ij")
<x>.new_zeros((2, 3))
<x>.new_full((2,), <scalar_like>)
<x>.tolist()
""",
    undefined.scatter_into_overlap,
    undefined.conversion,
    undefined.repeated_index,
)
add(
    Error.EXACT,
    """
<x>.to(<dtype>)
<x>.to(<dtype>)
<x>.to(<dtype>)
<x>.type_as(<y>)
<x>.bool()
""",
    undefined.conversion,
)

# --- arithmetic that rounds once, and correctly

add(
    Error.EXACT,
    """
<x> + <y>
<x> - <y>
<x> * <y>
<x> + <scalar>
<x> - <scalar>
<scalar> - <x>
<x> * <scalar>
<x> == <scalar>
<x> < <scalar>
<x> >= <scalar>
torch.rsub(<x>, <y>)
-<x>
~<x>
"""
    + each(
        "neg sign signbit isnan isinf isfinite isposinf isneginf logical_not positive "
        "ceil floor trunc round frac nan_to_num relu square conj_physical isreal",
        "torch.@(<x>)",
    )
    + "\n"
    + each("abs sgn", "torch.@(<real>)")
    + "\n"
    + each("maximum minimum fmax fmin copysign heaviside gcd lcm", "torch.@(<x>, <y>)")
    + "\n"
    + each("eq ne lt le gt ge logical_and logical_or logical_xor", "torch.@(<x>, <y>)")
    + "\n"
    + each("bitwise_and bitwise_or bitwise_xor", "torch.@(<i>, <y>)")
    + "\n"
    + each("bitwise_left_shift bitwise_right_shift", "torch.@(<i>, <shift>)")
    + """
torch.clamp(<x>, <number>, <number>)
torch.clamp(<x>, min=<number>)
torch.clamp(<x>, <y>, <y>)
torch.nn.functional.hardtanh(<r>)
torch.nn.functional.threshold(<x>, 0.5, 2.0)
torch.equal(<x>, <same>)
torch.result_type(<x>, <y>)
torch.can_cast(torch.float32, <dtype>)
""",
    undefined.complex_product,
    undefined.complex_overflow,
    undefined.comparison_of_nothing,
)
add(
    Error.EXACT,
    """
<x> / <y>
<x> / <scalar>
<x> // <y>
<x> // <number>
<x> % <y>
<x> % <number>
torch.fmod(<x>, <y>)
torch.fmod(<x>, <number>)
torch.div(<x>, <y>, rounding_mode="trunc")
torch.div(<x>, <y>, rounding_mode="floor")
torch.div(<x>, <number>, rounding_mode="floor")
torch.reciprocal(<r>)
""",
    undefined.complex_result,
    undefined.huge_quotient,
)

# --- functions that are not correctly rounded anywhere

UNARY = (
    "sqrt exp exp2 expm1 log log2 log10 log1p rsqrt sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh sigmoid erf erfc erfinv rad2deg deg2rad sinc"
)
add(
    Error.ROUNDED,
    each(UNARY, "torch.@(<real>)")
    + "\n"
    + each("atan2 hypot", "torch.@(<x>, <y>)")
    + """
torch.pow(<x>, <y>)
<x> ** 2
<x> ** 3
<x> ** <number>
2 ** <x>
torch.nn.functional.silu(<r>)
torch.nn.functional.elu(<r>)
torch.nn.functional.softplus(<r>)
torch.nn.functional.leaky_relu(<r>)
torch.nn.functional.hardsigmoid(<r>)
torch.nn.functional.hardswish(<r>)
""",
    undefined.steep_power,
    undefined.trigonometry_far_out,
)
# Differences of larger terms, compared at the terms' size.
add(
    Error.CANCELLED,
    """
torch.lgamma(<real>)
torch.digamma(<real>)
torch.logit(<r>)
torch.nn.functional.gelu(<r>)
torch.nn.functional.mish(<r>)
torch.logaddexp(<r>, <y>)
torch.logaddexp2(<r>, <y>)
torch.xlogy(<x>, <y>)
torch.nn.functional.logsigmoid(<r>)
torch.log_softmax(<r>, <dim>)
torch.softmax(<r>, <dim>)
torch.logsumexp(<r>, <dim>)
torch.logcumsumexp(<r>, <dim>)
""",
    undefined.trigonometry_far_out,
    undefined.gamma_poles,
    undefined.infinite_gelu,
)
add(
    Error.ACCUMULATED,
    """
torch.lerp(<x>, <same_dtype>, <number>)
torch.addcmul(<x>, <same_dtype>, <same_dtype>, value=<number>)
torch.add(<x>, <y>, alpha=<number>)
torch.sub(<x>, <y>, alpha=<number>)
""",
    undefined.order_of_products,
)

# --- complex functions, compared by distance in the plane

add(
    Error.ROUNDED,
    """
torch.abs(<c>)
torch.sgn(<c>)
torch.angle(<c>)
torch.exp(<c>)
torch.sqrt(<c>)
torch.tanh(<c>)
<c> * <c>
<c> / <c>
torch.square(<c>)
torch.polar(<real32>, <same_dtype>)
torch.complex(<real32>, <same_dtype>)
""",
    undefined.branch_cut,
)

# --- reductions

add(
    Error.EXACT,
    each("amax amin all any", "torch.@(<x>, <dim>, keepdim=<boolean>)")
    + "\n"
    + each("max min all any", "torch.@(<x>)")
    + "\n"
    + each("max min median", "torch.@(<x>, <dim>).values")
    + """
torch.max(<x>, <dim>)
torch.min(<x>, <dim>, keepdim=<boolean>)
torch.argmax(<x>, <dim>)
torch.argmin(<x>, <dim>, keepdim=<boolean>)
torch.argmax(<x>)
torch.amax(<x>, <dims>)
torch.aminmax(<x>, dim=<dim>)
torch.count_nonzero(<x>)
torch.count_nonzero(<x>, <dim>)
torch.cummax(<x>, <dim>)
torch.cummin(<x>, <dim>)
torch.sort(<x>, stable=True, dim=<dim>, descending=<boolean>)
torch.argsort(<x>, stable=True, dim=<dim>)
torch.msort(<x>)
torch.topk(<x>, <small>, <dim>).values
torch.topk(<x>, <small>, <dim>, largest=<boolean>)
torch.kthvalue(<r>, <small>, <dim>).values
torch.searchsorted(<ascending>, <x>)
torch.bucketize(<x>, <ascending>)
torch.bincount(<small_counts>)
torch.diff(<x>, dim=<dim>)
""",
    undefined.ties,
    undefined.no_kernel,
    undefined.nothing_to_scan,
    undefined.complex_overflow,
)
add(
    Error.ACCUMULATED,
    """
torch.sum(<x>)
torch.sum(<x>, <dims>, keepdim=<boolean>)
torch.sum(<x>, <dim>, dtype=<dtype>)
torch.mean(<x>)
torch.mean(<x>, <dims>, keepdim=<boolean>)
torch.nansum(<real>, <dim>)
torch.prod(<x>)
torch.prod(<x>, <dim>, keepdim=<boolean>)
torch.cumsum(<x>, <dim>)
torch.cumsum(<x>, <dim>, dtype=<dtype>)
torch.cumprod(<x>, <dim>)
torch.var(<x>, <dim>)
torch.std(<x>, <dims>, keepdim=<boolean>)
torch.var_mean(<x>)
torch.linalg.vector_norm(<x>)
torch.linalg.vector_norm(<x>, 1, <dim>)
torch.norm(<x>)
torch.scatter_add(<x>, <dim>, <index_like>, <source_like>)
torch.index_add(<x>, <dim>, <whole_index>, <same_dtype>)
torch.scatter_reduce(<x>, <dim>, <index_like>, <source_like>, "<reduction>")
torch.cov(<m>)
""",
    undefined.conversion,
    undefined.order_of_products,
    undefined.infinite_mean,
    undefined.no_kernel,
)

# --- products

add(
    Error.ACCUMULATED,
    """
<m> @ <right>
torch.mm(<m>, <right>)
torch.matmul(<x>, <right>)
torch.matmul(<x>, <right>)
torch.mv(<m>, <right_vector>)
torch.dot(<v>, <same_dtype>)
torch.vdot(<v>, <same_dtype>)
torch.outer(<v>, <v>)
torch.kron(<m>, <m>)
torch.inner(<x>, <same_dtype>)
torch.bmm(<batch>, <right>)
torch.addmm(<start_value>, <m>, <right>, beta=<number>, alpha=<number>)
torch.nn.functional.linear(<x>, <weight>)
torch.einsum("ij,kj->ik", <m>, <weight>)
torch.tensordot(<m>, <right>, 1)
torch.cdist(<real32m>, <weight>)
""",
    undefined.no_kernel,
    undefined.order_of_products,
)

# --- writing

add(
    Error.EXACT,
    """
<w>.copy_(<y>)
<w>.copy_(<y>)
<w>.fill_(<scalar_like>)
<w>.zero_()
<w>[<slices>] = <scalar_like>
<w>[<slices>] = <scalar_tensor>
<w>[<exact_mask>] = <scalar_like>
<w>[<mask>] = <scalar_tensor>
<w>[<unique_first>] = <scalar_tensor>
<w>[..., <unique_last>] = <scalar_like>
<w>.masked_fill_(<mask>, <scalar_like>)
<w>.index_put_((<unique_first>,), <scalar_same>)
<w>.index_fill_(<dim>, <index_vector>, <scalar_like>)
<w>.scatter_(<dim>, <unique_index>, <scalar_like>)
<w>.scatter_(<dim>, <unique_index>, <source_like>)
<w>.index_copy_(<dim>, <whole_index>, <same_dtype>)
<w>.transpose(<dim>, <dim>).copy_(<scalar_tensor>)
<w>.select(<dim>, <position>).fill_(<scalar_like>)
<w>.masked_scatter_(<mask>, <same_dtype>)
<w>.add_(<y>)
<w>.add_(<y>)
<w>.sub_(<y>)
<w>.mul_(<y>)
<w> += <scalar>
<w> *= <scalar>
<w>.neg_()
<w>.abs_()
<w>.relu_()
<w>.clamp_(<number>, <number>)
<w>.floor_()
<w>.logical_not_()
<w>.bitwise_xor_(<y>)
<w>.eq_(<y>)
<w>.lt_(<scalar>)
<w>.logical_and_(<y>)
<w>.triu_(<offset>)
<w>.t_()
<w>.squeeze_()
<w>.unsqueeze_(<new_dim>)
<w>.transpose_(<dim>, <dim>)
<w>.fill_diagonal_(<number>)
<w>.put_(<unique_flat>, <source_like>)
<w>.resize_(<resized>)
<w>.swapaxes_(<dim>, <dim>)
torch.add(<x>, <y>, out=<w>)
torch.maximum(<x>, <y>, out=<w>)
torch.lt(<x>, <y>, out=<w>)
torch.logical_and(<x>, <y>, out=<w>)
torch.neg(<x>, out=<w>)
torch.cat([<x>, <same_dtype>], <dim>, out=<w>)
torch.gather(<x>, <dim>, <index_like>, out=<w>)
torch.index_select(<x>, <dim>, <index_vector>, out=<w>)
torch._foreach_add_([<w>], <scalar>)
""",
    undefined.checked_value,
    undefined.cat_of_two_faults,
    undefined.complex_product,
    undefined.conversion,
    undefined.repeated_index,
    undefined.complex_overflow,
    undefined.comparison_of_nothing,
    undefined.overlap,
)
add(
    Error.ROUNDED,
    """
<w>.div_(<y>)
<w>.exp_()
<w>.sigmoid_()
<w>.tanh_()
<w>.sqrt_()
torch.exp(<x>, out=<w>)
torch.atan2(<x>, <y>, out=<w>)
torch.div(<x>, <y>, out=<w>)
""",
    undefined.wide_out,
    undefined.conversion,
    undefined.branch_cut,
    undefined.trigonometry_far_out,
    undefined.overlap,
)
add(
    Error.ACCUMULATED,
    """
<w>.index_add_(<dim>, <whole_index>, <same_dtype>)
<w>.scatter_add_(<dim>, <index_like>, <source_like>)
<w>.index_put_((<index_vector_first>,), <scalar_same>, accumulate=True)
<w>.cumsum_(<dim>)
<w>.addcmul_(<y>, <scalar_tensor>, value=<number>)
<w>.lerp_(<same_dtype>, <number>)
torch.sum(<x>, <dim>, out=<w>)
torch.mm(<m>, <right>, out=<w>)
torch.cumsum(<x>, <dim>, out=<w>)
""",
    undefined.conversion,
    undefined.overlap,
    undefined.scan_of_bool,
)
