"""The file of an exported program: a zip archive of

    program.mlir      the StableHLO text
    signature.json    see signature.py
    state.json        name, dtype and shape of each parameter, buffer and constant
    state/N           the N-th one's elements, dense, row-major, in the machine's byte order

Nothing in it is code, and nothing is unpickled.
"""

import json
import math
import zipfile
from pathlib import Path
from typing import BinaryIO

import torch

from .program_text import DTYPES
from .signature import Signature

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def is_archive(start: bytes) -> bool:
    """Whether a file that begins so may be one."""
    return start.startswith(b"PK\x03\x04")


def save(path: str | Path, text: str, signature: Signature, state: dict[str, torch.Tensor]) -> None:
    table = [
        {"name": name, "dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape)}
        for name, tensor in state.items()
    ]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("program.mlir", text, zipfile.ZIP_DEFLATED)
        archive.writestr("signature.json", signature.dumps(), zipfile.ZIP_DEFLATED)
        archive.writestr("state.json", json.dumps(table, indent=1), zipfile.ZIP_DEFLATED)
        for i, tensor in enumerate(state.values()):
            elements = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            with archive.open(f"state/{i}", "w", force_zip64=True) as file:
                file.write(memoryview(elements.numpy()))


def load(file: str | Path | BinaryIO) -> tuple[str, Signature, dict[str, torch.Tensor]]:
    """Raises ValueError if the archive does not hold what it should."""
    try:
        with zipfile.ZipFile(file) as archive:
            text = archive.read("program.mlir").decode()
            signature = Signature.loads(archive.read("signature.json").decode())
            state = {}
            for i, entry in enumerate(json.loads(archive.read("state.json"))):
                dtype, shape = DTYPES[entry["dtype"]], entry["shape"]
                elements = bytearray(archive.read(f"state/{i}"))
                if len(elements) != math.prod(shape) * dtype.itemsize:
                    raise ValueError(f"state/{i} has {len(elements)} bytes")
                tensor = torch.frombuffer(elements, dtype=dtype) if elements else torch.empty(0)
                state[entry["name"]] = tensor.to(dtype).reshape(shape)
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not the file of an exported program: {error}") from error
    return text, signature, state
