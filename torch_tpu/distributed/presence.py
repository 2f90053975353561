"""Whether libtpu is the plugin that will be loaded, told without loading it.

The choice itself is made in csrc/pjrt/discovery.cpp when the client starts, which is too late for
the variables that libtpu reads; a test holds the two together.
"""

import glob
from collections.abc import Mapping
from pathlib import Path

from torch_tpu import _plugins

GOOGLE = "0x1ae0"
TPUS = frozenset(("0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"))


def _word(path: Path) -> str:
    try:
        return path.read_text().strip().lower()
    except OSError:
        return ""


def tpu_present(root: str = "/") -> bool:
    """Whether a TPU is on the PCI bus and has a device node."""
    devices = glob.glob(f"{root}/sys/bus/pci/devices/*")
    nodes = ("accel[0-9]*", "accel/accel[0-9]*", "vfio/[0-9]*")
    return any(
        _word(Path(d) / "vendor") == GOOGLE and _word(Path(d) / "device") in TPUS for d in devices
    ) and any(glob.glob(f"{root}/dev/{node}") for node in nodes)


def libtpu_chosen(environ: Mapping[str, str], root: str = "/") -> bool:
    """Whether the client will be libtpu's, for a TPU in this machine."""
    plugin = environ.get("TORCH_TPU_PLUGIN")
    if plugin and Path(plugin).name != "libtpu.so":
        return False
    return bool(plugin or _plugins.libtpu()) and tpu_present(root)
