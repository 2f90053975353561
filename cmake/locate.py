"""Prints where this interpreter's build requirements lie, as a CMake list.

torch root; directory of pjrt_c_api.h; two XLA:CPU plugins for the C++ tests, the package's default
(empty where the package is not installed, as in an isolated build) and the oldest.
Nothing is imported: importing torch would load every installed backend, among them the one about to
be built.
"""

from importlib.util import find_spec
from pathlib import Path


def package_root(name: str) -> Path | None:
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:  # of a parent package
        return None
    return Path(next(iter(spec.submodule_search_locations))) if spec else None


def required(name: str) -> Path:
    root = package_root(name)
    if root is None:
        raise SystemExit(f"the build needs the Python package {name!r}")
    return root


torch = required("torch")
oldest = required("xla_plugins.xla_cpu_pjrt")
default = package_root("fastatomstruct_xla_cpu")
for needed in (torch / "include/ATen/core/Tensor.h", oldest / "include/pjrt_c_api.h"):
    if not needed.exists():
        raise SystemExit(f"the build needs {needed}")
print(
    torch,
    oldest / "include",
    default / "libpjrt_cpu.so" if default else "",
    oldest / "xla_cpu_pjrt.so",
    sep=";",
)
