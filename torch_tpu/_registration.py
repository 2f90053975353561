"""Registration with PyTorch: the device name, its modules, and the generated methods."""

import sys
import threading

import torch

_NAME = "tpu"
_lock = threading.RLock()
_registered = False


def _alias(name: str, module) -> None:
    """Makes `import torch.<name>`, also of a submodule, find what is loaded already."""
    prefix = module.__name__ + "."
    for path, loaded in list(sys.modules.items()):
        if path.startswith(prefix):
            sys.modules[f"torch.{name}.{path.removeprefix(prefix)}"] = loaded
    sys.modules[f"torch.{name}"] = module


def register() -> None:
    global _registered
    with _lock:
        if _registered:
            return
        # The name comes first: kernels and generated methods are registered under it.
        torch.utils.rename_privateuse1_backend(_NAME)

        from torch_tpu import _C, _plugins

        _C.configure(_plugins.cpu_plugin(), _plugins.libtpu())

        from torch_tpu import aot, backends, export, tpu

        torch._register_device_module(_NAME, tpu)
        _alias(_NAME, tpu)
        tpu.export = export
        _alias("tpu.export", export)
        tpu.aot = aot
        _alias("tpu.aot", aot)
        torch.backends.tpu = backends
        _alias("backends.tpu", backends)
        torch.utils.generate_methods_for_privateuse1_backend(
            for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
        )
        from torch_tpu.compile import fake, untraced
        from torch_tpu.compile.autocast import pass_through_autocast
        from torch_tpu.compile.flex_attention import accept_flex_attention
        from torch_tpu.compile.routing import route_inductor

        fake.register()
        untraced.mark(tpu)
        route_inductor()
        pass_through_autocast()
        accept_flex_attention()
        if torch.distributed.is_available():
            from torch_tpu import distributed

            distributed.register()
            tpu.distributed = distributed
            _alias("tpu.distributed", distributed)
        _registered = True
