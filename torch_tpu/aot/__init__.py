"""`torch.tpu.aot`: compiling for TPUs that are not here, with libtpu's compiler (the extra `tpu`).

From the command line:

    python -m torch_tpu.aot plan MODEL_CONFIG --topology v5e:1x1
    python -m torch_tpu.aot compile FILE... --topology v5e:1x1

In a program: `compile` for a call of a module or a training step with it, `compile_text` for one
StableHLO module, `compile_modules` for many of them.
"""

import importlib

# Loaded when asked for: `import torch` brings this package, and few programs use it.
_WHERE = {
    "AdamW": "trace",
    "CompiledProgram": "program",
    "ModuleReport": "report",
    "PlanReport": "plan_report",
    "Status": "report",
    "compile": "plan",
    "compile_modules": "compiler",
    "compile_text": "program",
    "load": "program",
    "lower": "plan",
    "resolve_topology": "topology",
    "world": "ranks",
}

__all__ = list(_WHERE)


def __getattr__(name: str):
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
