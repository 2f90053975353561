"""What a StableHLO module says of its main function, read from its text."""

import re

import torch

TensorType = tuple[torch.dtype, list[int]]

DTYPES = {
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "ui8": torch.uint8,
    "ui16": torch.uint16,
    "ui32": torch.uint32,
    "ui64": torch.uint64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "complex<f32>": torch.complex64,
    "complex<f64>": torch.complex128,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2": torch.float8_e5m2,
    "f8E4M3FNUZ": torch.float8_e4m3fnuz,
    "f8E5M2FNUZ": torch.float8_e5m2fnuz,
}

# Attributes may hold strings, and these anything.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|->|[(){}]|tensor<((?:[^<>]|<[^<>]*>)*)>')
_DIMENSION = re.compile(r"(\d+)x")


def _tensor_type(inside: str) -> TensorType:
    """The dtype and shape of what stands between the brackets of tensor<...>."""
    dims, position = [], 0
    while match := _DIMENSION.match(inside, position):
        dims.append(int(match[1]))
        position = match.end()
    dtype = DTYPES.get(inside[position:].strip())
    if dtype is None:
        raise ValueError(
            f"the module's main function has a tensor<{inside}>: only static shapes of PyTorch's "
            "dtypes can be loaded"
        )
    return dtype, dims


def main_types(text: str) -> tuple[list[TensorType], list[TensorType]]:
    """Types of the parameters and of the results of `func.func @main`.

    Raises ValueError if there is no such function or a type is not a tensor's that PyTorch has.
    """
    start = re.search(r"func\.func\s+(?:public\s+)?@main\s*\(", text)
    if start is None:
        raise ValueError("not the text of a StableHLO module: it has no function @main")
    parameters: list[TensorType] = []
    results: list[TensorType] = []
    current, round_depth, curly_depth, arrow = parameters, 1, 0, False
    for token in _TOKEN.finditer(text, start.end()):
        word = token[0]
        if word == "{":
            if round_depth == 0 and (current is parameters or not arrow):
                break  # the body
            curly_depth += 1
        elif word == "}":
            curly_depth -= 1
        elif curly_depth > 0 or word.startswith('"'):
            continue
        elif word == "->":
            current, arrow = results, True
        elif word == "(":
            round_depth += 1
        elif word == ")":
            round_depth -= 1
            if current is results:
                break
        else:
            current.append(_tensor_type(token[1]))
            if current is results and round_depth == 0:
                break  # a single result without parentheses
    return parameters, results
