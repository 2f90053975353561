"""Whether libtpu is the plugin that will be loaded, told without loading it.

The choice itself is made in csrc/pjrt/discovery.cpp when the client starts, which is too late for
the variables that libtpu reads.
"""

from collections.abc import Mapping
from pathlib import Path

from torch_tpu import _C, _plugins


def libtpu_chosen(environ: Mapping[str, str], root: str = "/") -> bool:
    """Whether the client will be libtpu's, for a TPU in this machine. `root` is where /sys and /dev
    are looked for."""
    plugin = environ.get("TORCH_TPU_PLUGIN")
    if plugin and Path(plugin).name != "libtpu.so":
        return False
    return bool(plugin or _plugins.libtpu()) and _C.tpu_present(f"{root}/sys", f"{root}/dev")
