"""What PyTorch leaves undefined, and what magnifies rounding without bound.

Each guard looks at a line that has not run yet (`step.line`, `step.operands`, `step.target`) and
returns a reason why its result may differ between correct implementations, or None. Such a line is
not used. These are the only exceptions of the fuzzer.
"""

import re

import torch

DTYPE = re.compile(r"torch\.(float32|float64|bfloat16|float16|int64|int32|uint8|bool|complex64)")


def finite(x):
    return x[x.isfinite()] if x.is_floating_point() or x.is_complex() else x


def largest(x):
    """The largest finite magnitude."""
    x = finite(x.to(torch.complex128 if x.is_complex() else torch.float64))
    return x.abs().max().item() if x.numel() else 0.0


def conversion(step):
    """A float that is no value of the integer type it is converted to."""
    if step.target is not None:
        dtype = step.target.dtype
    elif (named := DTYPE.search(step.line)) is not None:
        dtype = getattr(torch, named[1])
    elif "type_as" in step.line:
        dtype = step.operands[-1].dtype
    elif "_scatter(" in step.line:
        dtype = step.operands[0].dtype
    else:
        return None
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        # A number beyond a narrow type's range is an error in one path and infinity in another.
        return None
    limits = torch.iinfo(dtype)
    for x in step.operands:
        if not (x.is_floating_point() or x.is_complex()):
            continue
        real = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
        real = real.to(torch.float64)
        if not bool(((real > max(limits.min, -(2**31)) - 0.5) & (real < limits.max)).all()):
            return "a float outside of the integer's range"
    return None


def checked_value(step):
    """A 0-d value that the target's dtype cannot hold, put where a mask is.

    One on the CPU is a number, whose range is checked; one on the device is converted.
    """
    if step.target is None or "] =" not in step.line:
        return None
    for x in step.operands:
        if x.is_complex() and not step.target.is_complex() and step.target.dtype != torch.bool:
            return "a complex number into real ones"
        narrow = step.target.is_floating_point() and x.dim() == 0
        if narrow and largest(x) > torch.finfo(step.target.dtype).max:
            return "a number beyond the range"
    return None


def repeated_index(step):
    """Which of several writes to one element comes last is nowhere said."""
    return "an index twice" if "index_copy" in step.line and not step.unique else None


def overlap(step):
    """Writing to a tensor whose elements share memory, or read by the same operator elsewhere.

    PyTorch raises where it notices, and notices only layouts it finds simple.
    """
    memory = step.memory(step.target)
    if memory.unique().numel() != memory.numel():
        return "the target overlaps itself"
    for x in step.operands:
        shares = x.untyped_storage().data_ptr() == step.target.untyped_storage().data_ptr()
        if shares and ("out=" in step.line or "masked_scatter" in step.line):
            return "a result in the place of an operand"
        if shares and not x.is_set_to(step.target):
            theirs = step.memory(x)
            if torch.isin(theirs, memory).any():
                return "the target overlaps an operand"
    return None


def complex_overflow(step):
    """Infinite parts make a complex product depend on how it is written."""
    if not any(x.is_complex() for x in step.operands) and "j" not in step.line:
        return None
    if any(not bool(x.isfinite().all()) or largest(x) > 1e15 for x in step.operands):
        return "a complex product of infinities"
    return None


def complex_result(step):
    """Complex division rounds more than once; it has templates of its own."""
    return "complex" if any(x.is_complex() for x in step.operands) or "j" in step.line else None


def complex_product(step):
    """CPU kernels fuse its multiplications and additions past the last whole vector."""
    product = any(word in step.line for word in (" * ", "*=", "mul_", "square"))
    return "a complex product" if product and complex_result(step) else None


def huge_quotient(step):
    """A floored quotient beyond the integers that its type can tell apart."""
    if len(step.operands) == 0 or not any(x.is_floating_point() for x in step.operands):
        return None
    if not any(word in step.line for word in ("//", "rounding_mode", "%", "fmod")):
        return None
    if any(largest(x) > 200 for x in step.operands):
        return "a quotient of large numbers, floored"
    return None


def branch_cut(step):
    """Near its cut, and at infinities and zeros, a complex sign hangs on one rounding."""
    for x in step.operands:
        if not x.is_complex():
            continue
        parts = torch.view_as_real(x.resolve_conj()).abs()
        if not bool(parts.isfinite().all()) or bool((parts < 1e-2).any() or (parts > 20).any()):
            return "a complex number near a cut or far out"
    return None


def trigonometry_far_out(step):
    """Where one unit in the last place of the operand is a large part of a period.

    docs/numerics.md has the errors of these functions over the whole range.
    """
    if any(largest(x) > 1e4 for x in step.operands):
        return "an operand far out"
    return branch_cut(step)


def steep_power(step):
    """A power's error grows with the logarithm of its result: stay where that is small."""
    if "**" in step.line or "pow" in step.line:
        for x in step.operands:
            if x.is_complex():
                return "complex power"
            if largest(x) > 30:
                return "a power of large numbers"
    return None


def gamma_poles(step):
    """Next to its poles the gamma function turns one rounding into everything."""
    if "gamma" not in step.line:
        return None
    real = [x for x in step.operands if not x.is_complex()]
    return "left of zero" if any(bool((x < 0.5).any()) for x in real) else None


def ties(step):
    """Which of equal elements an operator without `stable` picks."""
    if not any(word in step.line for word in ("topk", "kthvalue", "mode", "median")):
        return None
    x = step.operands[0]
    if x.is_complex():
        return None
    if x.is_floating_point() and bool(x.isnan().any()):
        return "more than one NaN"
    return "equal elements" if x.unique().numel() != x.numel() else None


def order_of_products(step):
    """Whether a product or a sum overflows on its way depends on the order of its factors."""
    limit = 1e3 if "prod" in step.line else 1e4
    for x in step.operands:
        if (x.is_floating_point() or x.is_complex()) and largest(x) > limit:
            return "large factors"
    return complex_overflow(step)


def subnormal(step):
    """Numbers below the smallest normal one, which XLA takes for zero on every target."""
    for x in step.operands if step.target is None else [step.target, *step.operands]:
        if x.is_floating_point() or x.is_complex():
            parts = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
            least = torch.finfo(parts.dtype).smallest_normal
            if bool(((parts != 0) & (parts.abs() < least)).any()):
                return "a subnormal number"
    return None


def out_of_range(expected, actual):
    """An index out of range is IndexError here; on the CPU it depends on the kernel's path."""
    return isinstance(actual, IndexError) and "out of" in str(expected)


def strides(x):
    """Strides of dimensions along which there is a step to make; others address nothing.

    PyTorch's own kernels differ in those: TensorIterator makes them row-major, clone keeps them.
    """
    if x.numel() == 0:
        return []
    return [stride for stride, length in zip(x.stride(), x.shape, strict=True) if length > 1]


def properties(line):
    """What else of a result is compared; whether a product of conjugates is lazy is a detail."""
    found = {"offset": torch.Tensor.storage_offset, "strides": strides}
    if "_scatter(" in line:
        # PyTorch clones all the memory self lies in, where we clone what self spans.
        del found["offset"]
    lazy = ("torch.dot", "torch.vdot", "@", "mm(", "mv(", "matmul", "inner", "einsum", "tensordot")
    if not any(word in line for word in lazy):
        found |= {"conjugate bit": torch.is_conj, "negative bit": torch.is_neg}
    return found


def scan_of_bool(step):
    """Two faults, of which either may be found first: no kernel, and a result that does not fit."""
    return "bool" if step.target.dtype == torch.bool else None


def no_kernel(step):
    """Lengths at which a kernel may return before it finds that it does not know the dtype."""
    operands = step.operands if step.target is None else [step.target, *step.operands]
    unknown = any(x.dtype == torch.bool or x.is_complex() for x in operands) or "j" in step.line
    unknown |= "torch.bool" in step.line
    if unknown and any(x.dim() == 0 or x.numel() == 0 for x in operands):
        return "nothing to do for a kernel that there is not"
    return None


def comparison_of_nothing(step):
    """The same for comparisons, which know no complex numbers."""
    if any(word in step.line for word in ("<", ">", "lt", "le", "gt", "ge")):
        return no_kernel(step)
    return None


def infinite_gelu(step):
    """gelu(inf): NaN in the CPU's float32 kernel, infinity in its float64 kernel and here."""
    if "gelu" in step.line and any(bool((~x.isfinite()).any()) for x in step.operands):
        return "infinity"
    return None


def wide_out(step):
    """A function computed in float32, as rounded there, in an out= tensor of float64."""
    if "out=" not in step.line or step.target.dtype != torch.float64:
        return None
    double = any(x.dtype in (torch.float64, torch.complex128) for x in step.operands)
    return None if double else "float32 in float64"


def scatter_into_overlap(step):
    """Writing to a slice of a clone whose elements share memory."""
    if "_scatter(" not in step.line:
        return None
    memory = step.memory(step.operands[0])
    return "elements share memory" if memory.unique().numel() != memory.numel() else None


def cat_of_two_faults(step):
    """Ranks that differ and an out= tensor that cannot hold the result."""
    if "torch.cat" not in step.line or "out=" not in step.line:
        return None
    ranks = {x.dim() for x in step.operands if x.shape != (0,)}
    return "ranks differ" if len(ranks) > 1 else None


def nothing_to_scan(step):
    """cummax and cummin of no element do not look at their dimension."""
    return "empty" if "torch.cumm" in step.line and step.operands[0].numel() == 0 else None


def complex_half(step):
    """PyTorch promotes float16 with complex numbers to ComplexHalf, which the device lacks."""
    operands = step.operands if step.target is None else [step.target, *step.operands]
    dtypes = {x.dtype for x in operands}
    made = torch.complex64 in dtypes or any(w in step.line for w in ("j", "complex(", "polar("))
    return "ComplexHalf" if torch.float16 in dtypes and made else None


def infinite_mean(step):
    """The mean of var_mean, by Welford's recurrence on the CPU: NaN where the mean is infinite."""
    if "var_mean" in step.line and any(bool(x.isinf().any()) for x in step.operands):
        return "infinity"
    return None


# Apply to every line.
ALWAYS = (subnormal, complex_half)
