"""Portable artifacts: StableHLO as bytecode that other versions of it read. Needs jaxlib."""

import contextlib

# The oldest StableHLO that this package writes for.
OLDEST = "1.13.0"


def is_artifact(start: bytes) -> bool:
    """Whether a file that begins so is MLIR bytecode."""
    return start.startswith(b"ML\xefR")


@contextlib.contextmanager
def _stablehlo():
    """The Python module of the dialect, within a context that knows what programs consist of."""
    try:
        from jaxlib.mlir import ir
        from jaxlib.mlir._mlir_libs import _jax_mlir_ext
        from jaxlib.mlir.dialects import chlo, stablehlo
    except ImportError as error:
        raise ModuleNotFoundError(
            "portable artifacts need jaxlib: pip install 'torch-tpu[export]'", name="jaxlib"
        ) from error
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    with ir.Context() as context:
        context.append_dialect_registry(registry)
        stablehlo.register_dialect(context)
        chlo.register_dialect(context)
        context.load_all_available_dialects()
        yield stablehlo


def serialize(text: str, version: str | None) -> bytes:
    """For StableHLO `version` and later ones. Raises ValueError for a version that does not exist
    or cannot hold the program."""
    version = version or OLDEST
    with _stablehlo() as stablehlo:
        from jaxlib.mlir import ir, passmanager

        try:
            module = ir.Module.parse(text)
            # Artifacts hold nothing but StableHLO.
            stablehlo.register_stablehlo_passes()
            legalize = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
            passmanager.PassManager.parse(legalize).run(module.operation)
            return stablehlo.serialize_portable_artifact(module, version)
        except Exception as error:  # the bindings' own types
            raise ValueError(
                f"no portable artifact for StableHLO {version} (known: "
                f"{stablehlo.get_minimum_version()} to {stablehlo.get_current_version()}): {error}"
            ) from error


def deserialize(artifact: bytes) -> str:
    """The module's text. Raises ValueError for what is not an artifact of a version known here."""
    with _stablehlo() as stablehlo:
        from jaxlib.mlir import ir

        try:
            return str(stablehlo.deserialize_portable_artifact(ir.Context.current, artifact))
        except Exception as error:  # the bindings' own types
            raise ValueError(f"not a portable artifact of StableHLO: {error}") from error
