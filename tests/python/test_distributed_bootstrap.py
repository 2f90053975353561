"""What a TPU process is told before its client is created. Nothing here needs a TPU."""

import datetime
import pathlib
import re
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from torch_tpu import _C
from torch_tpu.distributed import presence
from torch_tpu.distributed.bootstrap import (
    Ranks,
    environment_from,
    prepare,
    process_environment,
    slice_bounds,
)
from torch_tpu.distributed.hosts import agent_store, exchange, own_address
from torch_tpu.distributed.machine import Slice, slice_of


def names(count):
    return [f"h{i}" for i in range(count)]


# topology, chips a host, hosts, TPU_PROCESS_BOUNDS
FITTING = [
    ("v4:1x1x1", 1, 1, "1,1,1"),
    ("v4:2x2x1", 4, 1, "2,2,1"),
    ("v4:2x2x2", 4, 2, "2,2,2"),
    ("v4:2x2x4", 4, 4, "2,2,4"),
    ("v4:4x4x8", 4, 32, "4,4,8"),
    ("v5p:2x2x1", 4, 1, "2,2,1"),
    ("v5p:2x4x4", 4, 8, "2,4,4"),
    ("v5p:4x4x4", 4, 16, "4,4,4"),
    ("tpu7x:2x2x1", 4, 1, "2,2,1"),
    ("tpu7x:2x2x2", 4, 2, "2,2,2"),
    ("tpu7x:4x4x4", 4, 16, "4,4,4"),
    ("v5e:1x1", 1, 1, "1,1,1"),
    ("v5e:1x2", 2, 1, "1,2,1"),
    ("v5e:2x2", 4, 1, "2,2,1"),
    ("v5e:2x4", 8, 1, "2,4,1"),
    ("v5e:2x4", 4, 2, "2,4,1"),
    ("v5e:16x16", 4, 64, "16,16,1"),
    ("v6e:1x1", 1, 1, "1,1,1"),
    ("v6e:2x4", 8, 1, "2,4,1"),
    ("v6e:4x8", 4, 8, "4,8,1"),
]


@pytest.mark.parametrize(("topology", "chips", "hosts", "bounds"), FITTING)
def test_every_process_of_a_slice(topology, chips, hosts, bounds):
    told = [
        process_environment(Ranks(chips * hosts, chips, node, local), names(hosts), topology)
        for node in range(hosts)
        for local in range(chips)
    ]
    assert {t["TPU_PROCESS_BOUNDS"] for t in told} == {bounds}
    assert {t["TPU_CHIPS_PER_PROCESS_BOUNDS"] for t in told} == {"1,1,1"}
    assert [t["CLOUD_TPU_TASK_ID"] for t in told] == [str(i) for i in range(chips * hosts)]
    (addresses,) = {t["TPU_PROCESS_ADDRESSES"] for t in told}
    addresses = addresses.split(",")
    assert len(set(addresses)) == chips * hosts
    for task, t in enumerate(told):
        node, local = divmod(task, chips)
        assert t["TPU_VISIBLE_CHIPS"] == t["TPU_VISIBLE_DEVICES"] == str(local)
        assert addresses[task] == f"h{node}:{t['TPU_PROCESS_PORT']}"
        assert not any(name.startswith("MEGASCALE") for name in t)


def test_in_full():
    assert process_environment(Ranks(8, 4, 1, 2), ["a", "b"], "v4:2x2x2", port=7000) == {
        "TPU_PROCESS_BOUNDS": "2,2,2",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_VISIBLE_CHIPS": "2",
        "TPU_VISIBLE_DEVICES": "2",
        "TPU_PROCESS_ADDRESSES": "a:7000,a:7001,a:7002,a:7003,b:7000,b:7001,b:7002,b:7003",
        "TPU_PROCESS_PORT": "7002",
        "CLOUD_TPU_TASK_ID": "6",
    }


@pytest.mark.parametrize(
    ("ranks", "bounds"), [(1, "1,1,1"), (2, "1,2,1"), (4, "2,2,1"), (8, "2,4,1")]
)
def test_one_host_needs_no_topology(ranks, bounds):
    told = process_environment(Ranks(ranks, ranks, 0, ranks - 1), ["localhost"])
    assert told["TPU_PROCESS_BOUNDS"] == bounds


@pytest.mark.parametrize(
    ("topology", "chips", "fits"),
    [
        ("v4:2x2", 4, "3 dimensions"),
        ("v9:2x2", 4, "v4, v5e, v5p, v6e, tpu7x"),
        ("", 4, "expected a generation"),
        ("v5e:2x2x1", 4, "2 dimensions"),
        ("v5e:3x3", 4, "2x2, 2x4, 4x4"),
        ("v5e:4x2", 4, "2x2, 2x4, 4x4"),
        ("v6e:32x32", 4, "16x16"),
        ("v5e:2x1", 2, "v5e:1x2"),
        ("v4:2x1x1", 2, "v4:1x2x1"),
        ("v5p:2x2x3", 4, "2x2x4"),
        ("v5p:4x4x2", 4, "2x4x4"),
        ("tpu7x:8x4x4", 4, "ascending"),
        ("v4:2x2x2", 8, "4 a host"),
        ("v4:2x2x1", 2, "4 a host"),
        ("v5e:2x4", 2, "4 a host or 8 on one host"),
        ("v5e:4x4", 8, "4 a host"),
        ("v6e:1x1", 4, "1 a host"),
    ],
)
def test_impossible_slices(topology, chips, fits):
    with pytest.raises(ValueError, match=re.escape(fits)):
        slice_bounds(topology, chips)


@pytest.mark.parametrize(
    ("ranks", "hosts", "arguments", "fits"),
    [
        ((8, 4, 0, 0), 2, {}, "TORCH_TPU_TOPOLOGY"),
        ((3, 3, 0, 0), 1, {}, "1, 2, 4 or 8 fit"),
        ((8, 4, 0, 0), 2, {"topology": "v5e:4x4"}, "has 16 chips"),
        ((4, 2, 0, 0), 2, {"topology": "v4:2x2x1", "chips_per_host": 4}, "take 4 ranks"),
        ((8, 4, 0, 0), 1, {"topology": "v5e:2x4"}, "a slice of 2 hosts"),
        ((12, 4, 0, 0), 1, {"num_slices": 2}, "multiple"),
        ((8, 4, 1, 0), 1, {"num_slices": 2}, "MEGASCALE_COORDINATOR_ADDRESS"),
    ],
)
def test_impossible_jobs(ranks, hosts, arguments, fits):
    with pytest.raises(ValueError, match=re.escape(fits)):
        process_environment(Ranks(*ranks), names(hosts), **arguments)


@pytest.mark.parametrize("ranks", [(5, 4, 0, 0), (4, 0, 0, 0), (8, 4, 2, 0), (8, 4, 0, 4)])
def test_impossible_ranks(ranks):
    with pytest.raises(ValueError):
        Ranks(*ranks)


def test_several_slices():
    told = [
        process_environment(
            Ranks(16, 4, node, local),
            [f"s{node // 2}h{i}" for i in range(2)],
            "v5e:2x4",
            num_slices=2,
            coordinator="s0h0",
            megascale_port=9000,
        )
        for node in range(4)
        for local in range(4)
    ]
    assert [t["MEGASCALE_SLICE_ID"] for t in told] == ["0"] * 8 + ["1"] * 8
    assert [t["CLOUD_TPU_TASK_ID"] for t in told] == [str(i) for i in range(8)] * 2
    assert [t["MEGASCALE_PORT"] for t in told] == ["9000", "9001", "9002", "9003"] * 4
    assert {t["MEGASCALE_COORDINATOR_ADDRESS"] for t in told} == {"s0h0:9000"}
    assert {t["MEGASCALE_NUM_SLICES"] for t in told} == {"2"}
    assert told[8]["TPU_PROCESS_ADDRESSES"].startswith("s1h0:8476,")


TORCHRUN = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "3", "GROUP_RANK": "2"}
GKE = {
    "TPU_WORKER_HOSTNAMES": "h0,h1,h2,h3",
    "TPU_WORKER_ID": "2",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_TOPOLOGY": "4x4",
}


def test_gke():
    here = slice_of(GKE)
    assert here == Slice("v5e:4x4", ("h0", "h1", "h2", "h3"), 2)
    told = environment_from(TORCHRUN, here)
    assert told == process_environment(Ranks(16, 4, 2, 3), names(4), "v5e:4x4")
    assert told["CLOUD_TPU_TASK_ID"] == "11"


def test_indexed_job_and_own_topology():
    environ = {k: v for k, v in GKE.items() if k != "TPU_WORKER_ID"}
    environ |= {"JOB_COMPLETION_INDEX": "1", "TORCH_TPU_TOPOLOGY": "v6e:4x4"}
    here = slice_of(environ)
    assert (here.worker, here.topology) == (1, "v6e:4x4")


def test_multislice_job():
    environ = GKE | {
        "TPU_WORKER_ID": "1",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
        "MEGASCALE_COORDINATOR_ADDRESS": "job-0-0",
        "MEGASCALE_PORT": "8080",
    }
    told = environment_from(TORCHRUN | {"WORLD_SIZE": "32", "GROUP_RANK": "5"}, slice_of(environ))
    assert told["CLOUD_TPU_TASK_ID"] == "7"
    assert told["MEGASCALE_SLICE_ID"] == "1" and told["MEGASCALE_PORT"] == "8083"
    assert told["MEGASCALE_COORDINATOR_ADDRESS"] == "job-0-0:8080"


def test_metadata_server():
    attributes = {
        "tpu-env": "ACCELERATOR_TYPE: 'v4-32'\nTOPOLOGY: '2x2x4'\nWRAP: 'false,false,false'\n",
        "worker-network-endpoints": "a:b:10.0.0.1,a:b:10.0.0.2,a:b:10.0.0.3,a:b:10.0.0.4",
        "agent-worker-number": "2",
    }
    here = slice_of({}, ask=True, metadata=attributes.get)
    assert here == Slice("v4:2x2x4", tuple(f"10.0.0.{i}" for i in (1, 2, 3, 4)), 2)
    assert slice_of({}, metadata=attributes.get) == Slice()
    assert slice_of({}, ask=True, metadata=lambda name: None) == Slice()


def test_the_chips_order_is_the_machines():
    with pytest.warns(UserWarning, match="--node-rank"):
        told = environment_from(TORCHRUN | {"GROUP_RANK": "0"}, slice_of(GKE))
    assert told["CLOUD_TPU_TASK_ID"] == "11"


def test_one_host_of_a_larger_slice():
    told = environment_from(TORCHRUN | {"WORLD_SIZE": "4", "GROUP_RANK": "0"}, slice_of(GKE))
    assert told["TPU_PROCESS_BOUNDS"] == "2,2,1"
    assert told["TPU_PROCESS_ADDRESSES"].startswith("localhost:")
    assert told["CLOUD_TPU_TASK_ID"] == "3"


def test_hosts_tell_one_another():
    """Two hosts of two slices each, whose names nothing tells but torchrun's store."""
    server = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    environ = TORCHRUN | {
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(server.port),
        "MEGASCALE_NUM_SLICES": "2",
        "TORCH_TPU_TOPOLOGY": "v5e:2x4",
    }

    def host(node):
        def ask(ranks):
            assert ranks == Ranks(16, 4, node, 3)
            return exchange(agent_store(environ), f"10.0.0.{node}", node, ranks.nodes)

        mine = environ | {"GROUP_RANK": str(node)}
        return environment_from(mine, slice_of(mine), ask)

    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(host, range(4)))
    assert [t["TPU_PROCESS_ADDRESSES"].split(",")[4] for t in told] == [
        "10.0.0.1:8476",
        "10.0.0.1:8476",
        "10.0.0.3:8476",
        "10.0.0.3:8476",
    ]
    assert {t["MEGASCALE_COORDINATOR_ADDRESS"] for t in told} == {"10.0.0.0:8576"}
    assert [t["MEGASCALE_SLICE_ID"] for t in told] == ["0", "0", "1", "1"]
    assert agent_store(TORCHRUN) is None
    assert own_address("127.0.0.1") == "127.0.0.1"
    with pytest.raises(ValueError, match="the names of 0"):
        environment_from(environ, slice_of(environ))


@pytest.mark.parametrize("given", ["TPU_VISIBLE_CHIPS", "TPU_PROCESS_ADDRESSES"])
def test_what_is_given_stays(given):
    assert environment_from(TORCHRUN | {given: "1"}, slice_of(GKE)) == {}


def machine(root: pathlib.Path, device="0x0063", node="vfio/0"):
    pci = root / "sys/bus/pci/devices/0000:00:05.0"
    pci.mkdir(parents=True)
    (pci / "vendor").write_text("0x1ae0\n")
    (pci / "device").write_text(device + "\n")
    (root / "dev" / node).parent.mkdir(parents=True)
    (root / "dev" / node).touch()
    return str(root)


ONE_HOST = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "1", "GROUP_RANK": "0"}


def test_prepare_on_a_tpu(tmp_path):
    root = machine(tmp_path)
    environ = ONE_HOST | {"TORCH_TPU_PLUGIN": "/anywhere/libtpu.so"}
    prepare(environ, root)
    assert environ["TPU_PROCESS_BOUNDS"] == "2,2,1" and environ["TPU_VISIBLE_CHIPS"] == "1"
    environ = ONE_HOST | {"TORCH_TPU_PLUGIN": "/libtpu.so"}
    environ |= {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
    before = dict(environ)
    with pytest.warns(UserWarning, match="1, 2, 4 or 8 fit"):
        prepare(environ, root)
    assert environ == before


def test_the_client_finds_other_processes_by_the_store_of_torchrun(tmp_path, monkeypatch):
    server = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    given = []
    monkeypatch.setattr(_C, "set_client_store", given.append)
    environ = ONE_HOST | {
        "TORCH_TPU_PLUGIN": "/libtpu.so",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(server.port),
    }
    prepare(environ, machine(tmp_path))
    (store,) = given
    store.put("address", "here:1")

    def keys(restart: str) -> dist.Store:
        start = environ | {"TORCHELASTIC_RESTART_COUNT": restart}
        return dist.PrefixStore("client/", agent_store(start))

    assert keys("2").get("address") == b"here:1"
    assert not keys("3").check(["address"])  # each start of the ranks has its own


def test_a_store_of_the_client():
    store = _C.ClientStore(dist.HashStore())
    assert store.try_get("key") is None
    store.put("key", "value")
    assert store.get("key", datetime.timedelta(seconds=1)) == store.try_get("key") == "value"
    with pytest.raises(RuntimeError, match="no rank has put other"):
        store.get("other", datetime.timedelta(milliseconds=20))


@pytest.mark.parametrize(
    ("environ", "device", "node"),
    [
        (ONE_HOST | {"TORCH_TPU_PLUGIN": "/cpu.so"}, "0x0063", "vfio/0"),
        ({"TORCH_TPU_PLUGIN": "/libtpu.so"}, "0x0063", "vfio/0"),  # no torchrun
        (ONE_HOST | {"TORCH_TPU_PLUGIN": "/libtpu.so"}, "0x0042", "vfio/0"),  # a network card
        (ONE_HOST | {"TORCH_TPU_PLUGIN": "/libtpu.so"}, "0x0063", "vfio/vfio"),
    ],
)
def test_prepare_elsewhere(tmp_path, environ, device, node):
    root = machine(tmp_path, device, node)
    before = dict(environ)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare(environ, root)
    assert environ == before


def test_the_chips_that_discovery_knows_are_present(tmp_path):
    source = pathlib.Path(__file__).parents[2] / "csrc/pjrt/discovery.cpp"
    google, *chips = re.findall(r'"(0x[0-9a-f]{4})"', source.read_text())
    assert google == "0x1ae0" and len(chips) == 7
    for chip in chips:
        root = machine(tmp_path / chip, chip)
        assert presence.libtpu_chosen({"TORCH_TPU_PLUGIN": "/libtpu.so"}, root)
