"""What a machine knows of the slice it is part of.

GKE sets variables in the containers of a job: TPU_WORKER_ID, TPU_WORKER_HOSTNAMES, TPU_TOPOLOGY,
TPU_ACCELERATOR_TYPE, the MEGASCALE_* of Multislice jobs; Kubernetes itself sets
JOB_COMPLETION_INDEX in indexed jobs, the host's number where a job is a slice. A TPU VM has it from
Compute Engine's metadata server: the attributes `tpu-env`, `agent-worker-number` and
`worker-network-endpoints`. TORCH_TPU_TOPOLOGY, ours, goes before all of them.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping

_METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/attributes/"

# How accelerators are called there, by the beginning of the name.
_GENERATIONS = {
    "v4": "v4",
    "v5litepod": "v5e",
    "v5lite": "v5e",
    "v5e": "v5e",
    "v5p": "v5p",
    "v6e": "v6e",
    "tpu7x": "tpu7x",
    "v7x": "tpu7x",
}


@dataclasses.dataclass(frozen=True)
class Slice:
    """A slice, and the place of this host in it. What nothing tells is None or empty."""

    topology: str | None = None  # "v5e:4x4"
    hosts: tuple[str, ...] = ()  # of this slice, in the order of their numbers
    worker: int | None = None  # this host's number among them
    num_slices: int = 1
    slice_id: int = 0
    coordinator: str | None = None
    megascale_port: int | None = None


def ask_metadata(attribute: str) -> str | None:
    """An attribute of this virtual machine; None where there is no such attribute or server."""
    import urllib.request  # not with every `import torch`

    request = urllib.request.Request(_METADATA + attribute, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:
            return answer.read().decode()
    except OSError:
        return None


def _settings(text: str | None) -> dict[str, str]:
    """Of lines such as TOPOLOGY: '4x4'."""
    lines = re.findall(r"^(\w+):\s*'?([^'\n]*?)'?\s*$", text or "", re.MULTILINE)
    return dict(lines)


def _name(accelerator: str | None, shape: str | None) -> str | None:
    generation = _GENERATIONS.get((accelerator or "").rpartition("-")[0].lower())
    return f"{generation}:{shape}" if generation and shape else None


def slice_of(
    environ: Mapping[str, str],
    *,
    ask: bool = False,
    metadata: Callable[[str], str | None] = ask_metadata,
) -> Slice:
    """The slice that `environ` describes. With `ask`, the metadata server is asked for what it
    leaves open; where it answers nothing, that stays open."""
    topology = environ.get("TORCH_TPU_TOPOLOGY") or _name(
        environ.get("TPU_ACCELERATOR_TYPE"), environ.get("TPU_TOPOLOGY")
    )
    hosts = tuple(h.strip() for h in environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if h)
    worker = environ.get("TPU_WORKER_ID") or environ.get("JOB_COMPLETION_INDEX")
    megascale = {k: v for k, v in environ.items() if k.startswith("MEGASCALE_") and v}
    if ask and not (topology and hosts and worker):
        settings = _settings(metadata("tpu-env"))
        topology = topology or _name(settings.get("ACCELERATOR_TYPE"), settings.get("TOPOLOGY"))
        megascale = {k: v for k, v in settings.items() if k.startswith("MEGASCALE_")} | megascale
        if not hosts:
            # id:id:address of each host
            endpoints = (metadata("worker-network-endpoints") or "").split(",")
            hosts = tuple(e.split(":")[2].strip() for e in endpoints if e.count(":") >= 2)
        worker = worker or (metadata("agent-worker-number") or "").strip() or None
    port = megascale.get("MEGASCALE_PORT")
    return Slice(
        topology=topology,
        hosts=hosts,
        worker=None if worker is None else int(worker),
        num_slices=int(megascale.get("MEGASCALE_NUM_SLICES", "1")),
        slice_id=int(megascale.get("MEGASCALE_SLICE_ID", "0")),
        coordinator=megascale.get("MEGASCALE_COORDINATOR_ADDRESS"),
        megascale_port=None if port is None else int(port),
    )
