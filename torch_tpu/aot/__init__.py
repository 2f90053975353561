"""Compiling for TPUs that are not here, with libtpu's own compiler (the extra `tpu`).

From the command line:

    python -m torch_tpu.aot compile FILE... --topology v5e:1x1

In a program: `compile_text` for one StableHLO module with all that the compiler tells of it,
`compile_modules` for many of them.
"""

from .compiler import compile_modules
from .plan_report import PlanReport
from .program import CompiledProgram, compile_text, load
from .report import ModuleReport, Status
from .topology import resolve_topology

__all__ = [
    "CompiledProgram",
    "ModuleReport",
    "PlanReport",
    "Status",
    "compile_modules",
    "compile_text",
    "load",
    "resolve_topology",
]
