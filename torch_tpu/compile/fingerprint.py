"""Which version of this package compiles."""

import functools
import hashlib
import pathlib


@functools.cache
def fingerprint() -> str:
    """Of the code of `torch_tpu.compile`: what another version has cached may be cut, partitioned
    and written otherwise."""
    digest = hashlib.sha256()
    for path in sorted(pathlib.Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
