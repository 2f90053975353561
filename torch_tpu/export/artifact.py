"""Portable artifacts: StableHLO as bytecode that other versions of it read. Needs jaxlib."""

# The oldest StableHLO that this package writes for.
OLDEST = "1.13.0"


def is_artifact(start: bytes) -> bool:
    """Whether a file that begins so is MLIR bytecode."""
    return start.startswith(b"ML\xefR")


def _dialect():
    try:
        from jaxlib.mlir.dialects import stablehlo
    except ImportError as error:
        raise ModuleNotFoundError(
            "portable artifacts need jaxlib: pip install 'torch-tpu[export]'", name="jaxlib"
        ) from error
    return stablehlo


def serialize(text: str, version: str | None) -> bytes:
    """For StableHLO `version` and later ones. Raises ValueError for a version that does not exist
    or cannot hold the program."""
    stablehlo = _dialect()
    try:
        return stablehlo.serialize_portable_artifact_str(text, version or OLDEST)
    except Exception as error:  # nanobind's own
        raise ValueError(
            f"no portable artifact for StableHLO {version or OLDEST} (known: "
            f"{stablehlo.get_minimum_version()} to {stablehlo.get_current_version()}): {error}"
        ) from error


def deserialize(artifact: bytes) -> str:
    """The module's text. Raises ValueError for what is not an artifact of a version known here."""
    stablehlo = _dialect()
    try:
        from jaxlib.mlir import ir

        with ir.Context() as context:
            return str(stablehlo.deserialize_portable_artifact(context, artifact))
    except Exception as error:  # nanobind's own
        raise ValueError(f"not a portable artifact of StableHLO: {error}") from error
