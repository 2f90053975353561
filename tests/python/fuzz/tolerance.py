"""How far a result on the tpu may be from the CPU's, and why no further.

EXACT        nothing is rounded, or each element once and correctly: every bit counts.
ROUNDED      functions that nobody rounds correctly: FUNCTION_ULPS units in the last place of the
             type they are computed in. float16 and bfloat16 compute in float32 and round once more,
             where two results on either side of a midpoint part by one unit of the narrow type.
CANCELLED    the same for functions that subtract larger terms near a zero of theirs: the units are
             those of the larger of the result and 1, the size of the terms.
ACCUMULATED  sums of n terms in any order: by the standard bound (Higham, Accuracy and Stability of
             Numerical Algorithms, 4.2) each is within n eps S of the exact sum, S the sum of the
             terms' magnitudes. S is found by running the line on magnitudes, in float64.

A subnormal result may be zero: XLA flushes them, on every target.
"""

import enum

import torch

FUNCTION_ULPS = 16
COMPLEX_ULPS = 64  # parts of a complex function are made of several functions


class Error(enum.Enum):
    EXACT = enum.auto()
    ROUNDED = enum.auto()
    CANCELLED = enum.auto()
    ACCUMULATED = enum.auto()


def real_dtype(dtype):
    return dtype.to_real() if dtype.is_complex else dtype


def unit(dtype):
    """Relative size of a unit in the last place of a result, or of what it was computed in."""
    return torch.finfo(real_dtype(dtype)).eps


def compute_unit(dtype):
    double = dtype in (torch.float64, torch.complex128)
    return unit(torch.float64 if double else torch.float32)


def allowance(error, expected, magnitude, terms, roundings):
    """The largest allowed difference from `expected`, element by element, in float64.

    `magnitude` and `terms` are S and n of ACCUMULATED; `roundings` to the narrow type are made.
    """
    size = expected.abs().to(torch.float64)
    if error is Error.EXACT:
        return torch.zeros_like(size)
    narrow = unit(expected.dtype) > compute_unit(expected.dtype)
    last = unit(expected.dtype) * size if narrow else torch.zeros_like(size)
    ulps = COMPLEX_ULPS if expected.is_complex() else FUNCTION_ULPS
    eps = compute_unit(expected.dtype)
    if error is Error.ROUNDED:
        return last + ulps * eps * size
    # CPU kernels round terms to the narrow type on some of their paths and not on others.
    if error is Error.CANCELLED:
        return (ulps * eps + (unit(expected.dtype) if narrow else 0)) * size.clamp(min=1)
    if narrow:
        last = roundings * unit(expected.dtype) * magnitude
    return last + 4 * (terms + 2) * eps * magnitude


def smallest_normal(dtype):
    # The narrow types compute in float32, of which bfloat16 has the range.
    dtype = real_dtype(dtype)
    return torch.finfo(torch.float32 if dtype == torch.bfloat16 else dtype).smallest_normal


def differs(actual, expected, error, magnitude=None, terms=1, roundings=1):
    """None, or what is different about the values of two CPU tensors of one dtype and shape."""
    actual, expected = actual.resolve_conj(), expected.resolve_conj()
    if torch.equal(actual, expected):
        return None
    if not (expected.is_floating_point() or expected.is_complex()):
        return "values"
    if expected.is_complex():
        same_kind = (actual.isfinite() == expected.isfinite()).all()
        unlike = torch.where(expected.isfinite(), actual - expected, 0).abs()
    else:
        infinite = (actual == expected) | ~(actual.isinf() | expected.isinf())
        same_kind = (actual.isnan() == expected.isnan()).all() and infinite.all()
        unlike = torch.where(
            expected.isfinite() & actual.isfinite(), actual.double() - expected.double(), 0
        ).abs()
    if not bool(same_kind):
        return "infinities or NaN"
    allowed = allowance(error, expected, magnitude, terms, roundings)
    allowed = allowed + smallest_normal(expected.dtype)
    beyond = expected.isfinite() & (unlike.double() > allowed)
    if not bool(beyond.any()):
        return None
    units = unlike.double() / (unit(expected.dtype) * expected.abs().double() + 1e-300)
    worst = units[beyond].max()
    return f"values, by {worst:.3g} units in the last place"
