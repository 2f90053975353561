"""Compiling for TPUs that are not here, with libtpu's own compiler (the extra `tpu`).

From the command line:

    python -m torch_tpu.aot compile FILE... --topology v5e:1x1

In a program: `compile_modules`.
"""

from .compiler import compile_modules
from .report import ModuleReport
from .topology import resolve_topology

__all__ = ["ModuleReport", "compile_modules", "resolve_topology"]
