"""What a TPU process has to be told before its client is created, from what torchrun tells it.

libtpu takes the layout of a job from environment variables. One process a chip:

TPU_PROCESS_BOUNDS            how many processes lie along x, y and z: the shape of the slice
TPU_CHIPS_PER_PROCESS_BOUNDS  how many chips each has along them: 1,1,1
TPU_VISIBLE_CHIPS             which of the host's chips this process opens: its local rank
TPU_VISIBLE_DEVICES           the older name of the same
TPU_PROCESS_ADDRESSES         host:port of all processes of the slice, host by host
TPU_PROCESS_PORT              this process's own port among them
CLOUD_TPU_TASK_ID             this process's place among them

and where a job has several slices, joined by the data-centre network:

MEGASCALE_COORDINATOR_ADDRESS host:port of the process that the others report to
MEGASCALE_NUM_SLICES, MEGASCALE_SLICE_ID
MEGASCALE_PORT                this process's own port for that network

Where this comes from: the first group is what PyTorch/XLA sets for one process a chip and what the
authors of JAX published for processes that share a host; the second is what GKE sets for
Multislice jobs, which have one process a host. That each process of a host needs a MEGASCALE_PORT
of its own follows from its being a server's port. Shapes of slices and machines are those of the
Cloud TPU documentation (https://cloud.google.com/tpu/docs/v4, .../v5e, .../v5p, .../v6e,
.../tpu7x). Nothing of it has met a chip yet.

A chip of tpu7x shows itself as two devices; a process has its chip, so it sees both.
"""

import dataclasses
import functools
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence

import torch.distributed as dist

from torch_tpu import _C
from torch_tpu.aot.topology import GENERATIONS, resolve_topology

from .hosts import agent_store, exchange, own_address
from .machine import Slice, slice_of
from .presence import libtpu_chosen

PORT = 8476
MEGASCALE_PORT = 8576

# Processes of one host along x, y, z by how many there are. Four and eight are whole machines of
# all generations that have such; one and two are parts of one.
_ON_ONE_HOST = {1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (2, 4, 1)}
# Machines of eight chips exist only as slices of their own.
_CHIPS_OF_A_HOST = 4
_WITH_EIGHT = ("v5e", "v6e")

_FLAT = ((2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SMALL = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))


@dataclasses.dataclass(frozen=True)
class Ranks:
    """A process among those of a job; what torchrun calls WORLD_SIZE, LOCAL_WORLD_SIZE, LOCAL_RANK
    and (the number of the host among all hosts of the job) GROUP_RANK."""

    world_size: int
    local_world_size: int
    node_rank: int
    local_rank: int

    def __post_init__(self):
        if self.local_world_size < 1 or self.world_size % self.local_world_size:
            raise ValueError(
                f"{self.world_size} ranks on hosts with {self.local_world_size} each: "
                "every host of a slice has the same number"
            )
        if not 0 <= self.local_rank < self.local_world_size:
            raise ValueError(
                f"local rank {self.local_rank} of {self.local_world_size} ranks on the host"
            )
        if not 0 <= self.node_rank < self.nodes:
            raise ValueError(f"host {self.node_rank} of {self.nodes} hosts")

    @property
    def nodes(self) -> int:
        return self.world_size // self.local_world_size


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def slice_bounds(topology: str, chips_per_host: int) -> tuple[int, int, int]:
    """Chips of a slice along x, y and z.

    `topology` is a generation and a shape in chips ("v5e:4x4", "v5p:2x2x4"), `chips_per_host` how
    many of them each host has. Raises ValueError for shapes that are not made, or not of such
    hosts, with those that are.
    """
    resolve_topology(topology)
    generation, _, text = topology.partition(":")
    shape = tuple(int(n) for n in text.split("x"))
    bounds = (*shape, 1)[:3] if len(shape) == 2 else shape
    chips = math.prod(shape)
    if chips <= 2:
        if bounds != _ON_ONE_HOST[chips]:
            fits = _text(_ON_ONE_HOST[2][: len(shape)])
            raise ValueError(f"{topology}: two chips of a host are {generation}:{fits}")
    elif GENERATIONS[generation] == 2:
        if shape not in _FLAT:
            listed = ", ".join(map(_text, _FLAT))
            raise ValueError(f"{topology}: slices of {generation} are {listed}")
    elif shape not in _SMALL and (list(shape) != sorted(shape) or any(n % 4 for n in shape)):
        listed = ", ".join(map(_text, _SMALL))
        raise ValueError(
            f"{topology}: slices of {generation} are {listed}, and those whose sides are multiples "
            "of 4 in ascending order, such as 4x4x4 and 4x4x8"
        )
    if chips == chips_per_host and (chips != 8 or generation in _WITH_EIGHT):
        return bounds
    if chips_per_host != _CHIPS_OF_A_HOST or chips < _CHIPS_OF_A_HOST:
        fits = f"{min(chips, _CHIPS_OF_A_HOST)} a host"
        if chips == 8 and generation in _WITH_EIGHT:
            fits += " or 8 on one host"
        raise ValueError(
            f"{topology} with {chips_per_host} chips a host: its {chips} chips are {fits}"
        )
    return bounds


def process_environment(
    ranks: Ranks,
    hosts: Sequence[str],
    topology: str | None = None,
    *,
    chips_per_host: int | None = None,
    num_slices: int = 1,
    coordinator: str | None = None,
    port: int = PORT,
    megascale_port: int = MEGASCALE_PORT,
) -> dict[str, str]:
    """The variables of one process of a job that has a process for each chip.

    `hosts` are names or addresses of the hosts of this process's slice, in the order of their
    numbers. `topology` is the shape of one slice, as `slice_bounds` takes it; a slice of one host
    needs none. `chips_per_host` is `ranks.local_world_size` unless given. With several slices,
    hosts are numbered slice by slice, and `coordinator` is the first slice's first host. Process
    i of a host takes `port` + i and, with several slices, `megascale_port` + i.

    Pure: reads and sets nothing. Raises ValueError, saying what would fit, where ranks, hosts and
    topology do not.
    """
    local = ranks.local_world_size
    if num_slices < 1 or ranks.nodes % num_slices:
        raise ValueError(
            f"{ranks.nodes} hosts do not make {num_slices} slices of the same size; "
            "the number of hosts is a multiple of that of slices"
        )
    in_slice = ranks.nodes // num_slices
    if len(hosts) != in_slice:
        raise ValueError(
            f"a slice of {in_slice} hosts, but the names of {len(hosts)}: {', '.join(hosts) or '-'}"
        )
    if topology is None:
        if in_slice > 1:
            raise ValueError(
                f"a slice of {in_slice} hosts needs the name of its topology, such as "
                f"v5e:4x4 for 16 chips; set TORCH_TPU_TOPOLOGY"
            )
        if local not in _ON_ONE_HOST:
            raise ValueError(f"{local} ranks on one host: 1, 2, 4 or 8 fit, one for each chip")
        bounds = _ON_ONE_HOST[local]
    else:
        bounds = slice_bounds(topology, local if chips_per_host is None else chips_per_host)
        chips = math.prod(bounds)
        if chips != in_slice * local:
            raise ValueError(
                f"{topology} has {chips} chips and takes as many ranks a slice, but there are "
                f"{in_slice * local} ({in_slice} hosts with {local} each)"
            )
    if chips_per_host is not None and chips_per_host != local and in_slice > 1:
        raise ValueError(
            f"hosts of {chips_per_host} chips take {chips_per_host} ranks, not {local}"
        )
    slice_id, host = divmod(ranks.node_rank, in_slice)
    environment = {
        "TPU_PROCESS_BOUNDS": ",".join(map(str, bounds)),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_VISIBLE_CHIPS": str(ranks.local_rank),
        "TPU_VISIBLE_DEVICES": str(ranks.local_rank),
        "TPU_PROCESS_ADDRESSES": ",".join(f"{h}:{port + i}" for h in hosts for i in range(local)),
        "TPU_PROCESS_PORT": str(port + ranks.local_rank),
        "CLOUD_TPU_TASK_ID": str(host * local + ranks.local_rank),
    }
    if num_slices > 1:
        if coordinator is None:
            if slice_id:
                raise ValueError(
                    "several slices need the address of the first one's first host; "
                    "set MEGASCALE_COORDINATOR_ADDRESS"
                )
            coordinator = hosts[0]
        if not re.search(r":\d+$", coordinator):
            coordinator = f"{coordinator}:{megascale_port}"
        environment |= {
            "MEGASCALE_COORDINATOR_ADDRESS": coordinator,
            "MEGASCALE_NUM_SLICES": str(num_slices),
            "MEGASCALE_SLICE_ID": str(slice_id),
            "MEGASCALE_PORT": str(megascale_port + ranks.local_rank),
        }
    return environment


_TORCHRUN = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK")
_LAID_OUT = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "TPU_PROCESS_ADDRESSES")


def ranks_from(environ: Mapping[str, str], here: Slice) -> Ranks | None:
    """This process's place, from torchrun's variables and the number the machine has in its slice.

    None where torchrun's variables are not there, or where the job's author has laid out the chips
    himself. Warns if torchrun numbers the hosts otherwise than the slice.
    """
    if any(name not in environ for name in _TORCHRUN) or any(map(environ.get, _LAID_OUT)):
        return None
    world, local, local_rank, node = (int(environ[name]) for name in _TORCHRUN)
    nodes = world // max(local, 1)
    if here.worker is not None and nodes > 1:
        place = here.slice_id * (nodes // here.num_slices) + here.worker
        if place != node:
            # Chips are told apart by the number the machine has; ranks are torchrun's.
            warnings.warn(
                f"this is host {place} of the job, but torchrun calls it {node}: ranks are not in "
                "the order of the chips. Start torchrun with --node-rank=$TPU_WORKER_ID (and the "
                "slice's number times its hosts added, where there are several)",
                stacklevel=2,
            )
        node = place
    return Ranks(world, local, node, local_rank)


def environment_from(
    environ: Mapping[str, str],
    here: Slice,
    ask_hosts: Callable[[Ranks], Sequence[str]] = lambda ranks: (),
) -> dict[str, str]:
    """The variables from torchrun's and what the machine says of its slice.

    `ask_hosts` gives the addresses of all hosts of the job where the machine does not tell. Empty
    where `ranks_from` gives nothing. Raises ValueError as `process_environment` does.
    """
    ranks = ranks_from(environ, here)
    if ranks is None:
        return {}
    in_slice = max(ranks.nodes // here.num_slices, 1)
    hosts: Sequence[str] = here.hosts
    coordinator = here.coordinator
    if ranks.nodes > 1 and not hosts:
        everyone = ask_hosts(ranks)
        first = ranks.node_rank // in_slice * in_slice
        hosts = everyone[first : first + in_slice]
        coordinator = coordinator or next(iter(everyone), None)
    elif in_slice == 1 and len(hosts) != 1:
        hosts = ["localhost"]  # a job on one host, whether or not that host is part of more
    return process_environment(
        ranks,
        hosts,
        here.topology if in_slice > 1 else None,
        num_slices=here.num_slices,
        coordinator=coordinator,
        megascale_port=here.megascale_port or MEGASCALE_PORT,
    )


def _ask_hosts(store: dist.Store | None, environ: Mapping[str, str], ranks: Ranks) -> list[str]:
    if store is None:
        return []
    return exchange(store, own_address(environ["MASTER_ADDR"]), ranks.node_rank, ranks.nodes)


def prepare(environ: MutableMapping[str, str] = os.environ, root: str = "/") -> None:
    """Sets in `environ` what libtpu needs, and gives its client torchrun's store to find the other
    processes by, if torchrun started this process and libtpu is the plugin that will be loaded.
    Warns if the ranks do not fit the chips, or hosts do not answer: a program that never uses the
    device may go on. `root` is where /sys and /dev are looked for."""
    if "LOCAL_RANK" not in environ or not libtpu_chosen(environ, root):
        return
    try:
        several = environ.get("WORLD_SIZE") != environ.get("LOCAL_WORLD_SIZE")
        here = slice_of(environ, ask=several)
        store = functools.cache(lambda: agent_store(environ))  # one connection for both uses
        environ.update(
            environment_from(environ, here, lambda ranks: _ask_hosts(store(), environ, ranks))
        )
        if environ.get("WORLD_SIZE", "1") != "1" and store() is not None:
            _C.set_client_store(_C.ClientStore(dist.PrefixStore("client/", store())))
    except (ValueError, OSError, dist.DistError) as error:
        warnings.warn(f"the TPU is not set up for these ranks: {error}", stacklevel=2)
