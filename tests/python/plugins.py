"""The XLA:CPU plugins that tests may run on. As a program: prints the path of the one named."""

import sys
from importlib.util import find_spec
from pathlib import Path

# The package's default; the oldest PJRT interface and StableHLO we speak; a new and strict one.
FILES = {
    "default": ("fastatomstruct_xla_cpu", "libpjrt_cpu.so"),
    "oldest": ("xla_plugins", "xla_cpu_pjrt/xla_cpu_pjrt.so"),
    "newest": ("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so"),
}


def path(name: str) -> str | None:
    """Where a plugin lies; None if its package is not installed."""
    package, file = FILES[name]
    spec = find_spec(package)
    for root in (spec and spec.submodule_search_locations) or ():
        if (Path(root) / file).exists():
            return str(Path(root) / file)
    return None


if __name__ == "__main__":
    print(path(sys.argv[1]) or sys.exit(f"{FILES[sys.argv[1]][0]} is not installed"))
