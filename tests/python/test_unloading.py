"""Programs are unloaded before a process runs out of memory mappings, and come back."""

import functools
import json

import child

# How many mappings a process has before its first program depends on the libraries that torch
# loads, so the limit is set from that: room for some hundred small programs.
PREAMBLE = """
import json, sys, threading

def mappings():
    return sum(1 for _ in open("/proc/self/maps"))

import torch
torch.ones(1, device="tpu").item()
base = mappings()
"""


@functools.cache
def base() -> int:
    return int(child.check(PREAMBLE + "print(base)"))


def run(code, room=300, **environment):
    """What `code` prints, in a process that may have `room` mappings more than it began with."""
    limit = str(base() + room)
    return json.loads(child.check(PREAMBLE + code, TORCH_TPU_MAX_MAPPINGS=limit, **environment))


MANY = """
wrong = loaded = most = 0
hot = torch.arange(5.0, device="tpu")
for _ in range(2):
    for n in range(3, 103):
        x = torch.arange(float(n))
        wrong += not torch.equal((x.to("tpu") * 2 - 1).flip(0).cpu(), (x * 2 - 1).flip(0))
        hot = hot.neg()
        loaded = max(loaded, torch.tpu.compilations()["loaded"])
        most = max(most, mappings())
wrong += not torch.equal(hot.cpu(), torch.arange(5.0))
again = {r.operation for r in torch.tpu.compile_log() if r.reason == "was unloaded to make room"}
print(json.dumps({
    "wrong": wrong, "loaded": loaded, "most": most - base, "again": sorted(again),
    **{k: v for k, v in torch.tpu.compilations().items() if k != "loaded"},
}))
"""


def test_many_programs_in_little_room():
    seen = run(MANY)
    assert seen["wrong"] == 0
    assert seen["misses"] >= 300  # programs wanted in each of the two rounds
    assert 20 < seen["loaded"] < 120
    assert seen["most"] < 300
    assert seen["unloaded"] >= 400
    # Loaded from the disk in the second round, except what was in use all the time.
    assert seen["count"] - seen["misses"] >= 200 and seen["from_disk"] >= 200
    assert "flip" in seen["again"] and "neg" not in seen["again"]


def test_without_the_limit_all_stay():
    seen = run(MANY, room=60_000)
    assert (seen["wrong"], seen["unloaded"], seen["again"]) == (0, 0, [])
    assert seen["loaded"] >= 300


def test_without_a_disk_cache():
    seen = run(MANY.replace("103", "53"), room=200, TORCH_TPU_CACHE="0")
    assert (seen["wrong"], seen["from_disk"]) == (0, 0)
    assert seen["unloaded"] >= 100 and seen["most"] < 200


THREADS = """
sys.setswitchinterval(1e-4)
wrong = []
stop = threading.Event()

def repeat(device):  # few programs, always in flight
    x = torch.arange(6.0)
    while not stop.is_set():
        y = x.to(device)
        for _ in range(20):
            y = (y * 2).add_(x.sum().item() - 15).mul_(0.5)
        if not torch.equal(y.cpu(), x):
            wrong.append(device)

def work(device, start):
    for n in range(start, start + 60):
        x = torch.arange(float(n), dtype=torch.float64)
        y = x.to(device)
        y[1:3] = y.sum()
        z = x.clone()
        z[1:3] = x.sum()
        if not torch.equal((y @ y).cpu(), z @ z):
            wrong.append(n)

repeaters = [threading.Thread(target=repeat, args=(f"tpu:{i}",)) for i in range(2)]
workers = [threading.Thread(target=work, args=(f"tpu:{i % 2}", 4 + 3 * i)) for i in range(3)]
for thread in repeaters + workers: thread.start()
for thread in workers: thread.join()
stop.set()
for thread in repeaters: thread.join()
torch.tpu.synchronize()
print(json.dumps({"wrong": wrong, **torch.tpu.compilations()}))
"""


def test_threads():
    seen = run(THREADS, room=300, TORCH_TPU_DEVICES="2")
    assert seen["wrong"] == []
    assert seen["unloaded"] >= 100 and seen["loaded"] < 150


def test_limit_below_what_the_process_has():
    """Nothing more can be done than to unload what there is."""
    seen = run(MANY.replace("103", "53"), room=-200)
    assert seen["wrong"] == 0
    assert seen["unloaded"] >= 100
