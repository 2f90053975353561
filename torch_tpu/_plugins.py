"""Where the PJRT plugins that come as Python packages lie. Nothing is imported or loaded here."""

from importlib.util import find_spec
from pathlib import Path


def _file_in_package(package: str, file: str) -> str | None:
    spec = find_spec(package)
    for root in (spec and spec.submodule_search_locations) or ():
        path = Path(root) / file
        if path.exists():
            return str(path)
    return None


def cpu_plugin() -> str | None:
    """The XLA:CPU plugin."""
    return _file_in_package("fastatomstruct_xla_cpu", "libpjrt_cpu.so")


def libtpu() -> str | None:
    """libtpu, the plugin for TPUs (the extra `tpu`)."""
    return _file_in_package("libtpu", "libtpu.so")
