"""The addresses of a job's hosts, where the machine does not tell: through torchrun's store."""

import datetime
import socket
from collections.abc import Mapping

import torch.distributed as dist

_TIMEOUT = datetime.timedelta(seconds=60)


def agent_store(environ: Mapping[str, str]) -> dist.Store | None:
    """The store of torchrun's first agent, with a name space for this start of the ranks; None
    where ranks have to make a store of their own, which is for `init_process_group` to do."""
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    store = dist.TCPStore(
        environ["MASTER_ADDR"], int(environ["MASTER_PORT"]), is_master=False, timeout=_TIMEOUT
    )
    start = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"torch_tpu/hosts/{start}/", store)


def own_address(peer: str) -> str:
    """The address by which this host reaches `peer`, and so is reached."""
    family, kind, protocol, _, address = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # a datagram socket: nothing is sent
        return probe.getsockname()[0]


def exchange(store: dist.Store, address: str, place: int, nodes: int) -> list[str]:
    """The addresses of all hosts, in their order. Every process of every host calls this; those of
    one host say the same. Raises DistStoreError if a host says nothing in time."""
    store.set(str(place), address)
    return [store.get(str(node)).decode() for node in range(nodes)]
