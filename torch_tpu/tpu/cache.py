"""Compiled programs kept on disk, shared by processes and by runs.

On unless TORCH_TPU_CACHE=0. TORCH_TPU_CACHE_DIR names the directory (default: `torch_tpu` in the
user's cache directory), TORCH_TPU_CACHE_SIZE its limit, in bytes or with K, M or G (default: 4G);
beyond it the programs that were not used for longest are removed. Entries are the plugin's own
serialized programs, kept under everything they depend on, and traces of `torch.compile`
(`docs/compile.md`), which are pickles. A directory that belongs to another user or that others may
write to is not used.
"""

from typing import Any

from torch_tpu import _C


def info() -> dict[str, Any]:
    """`directory`; `unusable`: why nothing is kept, or None; `entries`, `bytes` and `limit` of the
    directory; `hits`, `misses` and `stored` of this process. Traces count like programs."""
    return _C.cache_info()


def clear() -> None:
    """Removes all programs and traces from the directory."""
    _C.clear_cache()
