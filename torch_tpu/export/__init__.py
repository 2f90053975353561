"""`torch.tpu.export`: programs of `torch.export` as StableHLO, and StableHLO as a callable.

    exported = torch.tpu.export.export(model, (x,))
    exported.save("model.zip")
    f = torch.tpu.export.load("model.zip")
    y = f(x.to("tpu"))

`Exported.text` is read by every compiler that takes StableHLO, `portable_artifact` by older and
newer versions of them.
"""

from .exported import Exported, export
from .loaded import LoadedFunction, LoadedModule, load

__all__ = ["Exported", "LoadedFunction", "LoadedModule", "export", "load"]
