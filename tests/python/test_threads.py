"""Several threads on one device, on one tensor, and on each other's tensors."""

import threading
import time

import pytest
import torch
from torch import nn

THREADS = 4


def together(*functions, timeout=120):
    """Runs each function in a thread of its own, all starting at once; raises what one raised."""
    start, errors = threading.Barrier(len(functions)), []

    def run(function):
        start.wait()
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(f,), daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def each(function):
    """A function of the thread's number, for all threads."""
    return [lambda i=i: function(i) for i in range(THREADS)]


@pytest.mark.parametrize("rounds", [100])
@pytest.mark.parametrize(
    "write",
    {
        "add_": lambda row: row.add_(1),
        "mul_": lambda row: row.mul_(1).add_(1),
        "copy_": lambda row: row.copy_(row + 1),
        "setitem": lambda row: row.__setitem__(slice(None), row + 1),
        "index_put_": lambda row: row.index_put_(
            (torch.arange(8, device="tpu"),), torch.ones(8, device="tpu"), accumulate=True
        ),
        "out=": lambda row: torch.add(row, 1, out=row),
        "host copy_": lambda row: row.copy_(row.cpu() + 1),
        "foreach": lambda row: torch._foreach_add_([row[:4], row[4:]], 1),
    }.items(),
    ids=lambda item: item[0],
)
def test_writes_to_rows_of_one_tensor(write, rounds):
    x = torch.zeros(THREADS, 8, device="tpu")

    def work(i):
        for _ in range(rounds):
            write[1](x[i])

    together(*each(work))
    assert torch.equal(x.cpu(), torch.full((THREADS, 8), float(rounds)))


def test_writes_to_columns_of_other_dtypes():
    """Each thread sees the storage as another dtype, so its value changes type all the time."""
    x = torch.zeros(6, 8, dtype=torch.int32, device="tpu")
    dtypes = [torch.int32, torch.uint8, torch.int16, torch.float32]

    def work(i):
        rows = x[i].view(dtypes[i])
        for _ in range(50):
            rows.add_(1)

    together(*each(work))
    for i, dtype in enumerate(dtypes):
        assert torch.equal(x.cpu()[i].view(dtype), torch.full_like(x.cpu()[i].view(dtype), 50)), (
            dtype
        )
    assert x.cpu()[4:].eq(0).all()


def test_first_writes_to_an_empty_tensor():
    for _ in range(20):
        x = torch.empty(THREADS, 8, device="tpu")
        together(*each(lambda i, x=x: x[i].fill_(i + 1)))
        assert x.cpu()[:, 0].tolist() == [1, 2, 3, 4]


def test_readers_see_whole_writes():
    x = torch.zeros(64, device="tpu")
    done = threading.Event()

    def write():
        try:
            for _ in range(300):
                x.add_(1)
        finally:
            done.set()

    def read():
        last = 0.0
        while not done.is_set():
            for seen in (x.cpu(), (x + 0).cpu(), x[::2].clone().cpu()):
                assert seen.unique().numel() == 1, "a write was seen in part"
                assert seen[0] >= last
                last = seen[0].item()

    together(write, read, read)
    assert x[5].item() == 300


def test_writers_of_each_others_tensors_do_not_deadlock():
    a, b = torch.ones(8, device="tpu"), torch.ones(8, device="tpu")

    def forth():
        for _ in range(200):
            a.add_(b, alpha=0)

    def back():
        for _ in range(200):
            b.add_(a, alpha=0)

    def both():
        for _ in range(100):
            torch._foreach_mul_([b, a], 1)
            a.copy_(a.clone())

    together(forth, back, forth, both)
    assert a.tolist() == b.tolist() == [1.0] * 8


def test_copies_across_two_storages_do_not_deadlock():
    a, b = torch.ones(8, device="tpu"), torch.ones(8, device="tpu")

    def copy(target, source):
        for _ in range(200):
            target[::2].copy_(source[::2])

    together(*[lambda: copy(a, b), lambda: copy(b, a)] * 2)
    assert a.tolist() == b.tolist() == [1.0] * 8


def test_synchronize_during_donation():
    """Waiting looks at buffers that other threads give away at the same time."""
    tensors = [torch.zeros(16, device="tpu") for _ in range(2)]
    done = threading.Event()

    def write(x):
        try:
            for _ in range(1000):
                x.add_(1)
        finally:
            done.set()

    def wait():
        event = torch.tpu.Event()
        while not done.is_set():
            torch.tpu.synchronize()
            event.record()
            event.synchronize()
            event.query()

    together(lambda: write(tensors[0]), lambda: write(tensors[1]), wait, wait)
    assert [t[0].item() for t in tensors] == [1000, 1000]


def test_loading_weights():
    """Transformers loads checkpoints with four threads that copy and convert."""
    hosts = [[torch.full((100, 50), float(10 * i + j)) for j in range(25)] for i in range(THREADS)]
    loaded = [[] for _ in range(THREADS)]

    def load(i):
        for j, host in enumerate(hosts[i]):
            dtype = [torch.float32, torch.bfloat16][j % 2]
            loaded[i].append(host.t().to("tpu", dtype, non_blocking=j % 3 == 0))
            hosts[i][j] = None

    together(*each(load))
    for i, row in enumerate(loaded):
        for j, x in enumerate(row):
            assert x.shape == (50, 100) and x.unique().tolist() == [10 * i + j]


def test_copies_to_all_devices():
    def work(i):
        for j in range(50):
            x = torch.full((20,), float(j), device=f"tpu:{i}")
            y = x.to(f"tpu:{(i + 1) % 4}") + 1
            assert y.device.index == (i + 1) % 4 and y.tolist() == [j + 1.0] * 20

    together(*each(work))


def test_first_calls_of_one_program():
    """All threads miss the caches at once."""
    for size in range(20, 30):
        x = torch.ones(size, 3, device="tpu")
        results = [None] * THREADS

        def work(i, x=x, results=results):
            results[i] = (x * 3 - 1).t().contiguous().cpu()

        together(*each(work))
        assert all(r.shape == (3, size) and r.unique().tolist() == [2] for r in results)


def test_storages_come_and_go():
    """Addresses are never in use twice."""
    live, lock = set(), threading.Lock()

    def work(i):
        for n in range(300):
            x = torch.full((n % 40 + 1,), float(i), device="tpu")
            address = x.data_ptr()
            with lock:
                assert address not in live
                live.add(address)
            assert x[-1].item() == i
            with lock:
                live.remove(address)
            del x

    together(*each(work))


def test_backward_from_several_threads():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).tpu()
    inputs = [torch.randn(4, 6, device="tpu") for _ in range(THREADS)]
    expected = []
    for x in inputs:
        expected.append(torch.autograd.grad(model(x).sum(), list(model.parameters())))
    found = [None] * THREADS

    def work(i):
        for _ in range(10):
            found[i] = torch.autograd.grad(model(inputs[i]).sum(), list(model.parameters()))

    together(*each(work))
    for gradients, right in zip(found, expected, strict=True):
        for a, b in zip(gradients, right, strict=True):
            torch.testing.assert_close(a.cpu(), b.cpu())


def test_backward_accumulates_from_several_threads():
    """Hogwild: all threads add to the same .grad."""
    weight = torch.ones(5, device="tpu", requires_grad=True)
    weight.grad = torch.zeros(5, device="tpu")

    def work(i):
        for _ in range(25):
            (weight * (i + 1)).sum().backward()

    together(*each(work))
    assert weight.grad.tolist() == [25.0 * (1 + 2 + 3 + 4)] * 5


def test_each_thread_trains_its_own():
    def train(device, i, losses):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.arange(4.0).to(device) * (i + 1))
        optimizer = torch.optim.Adam([weight], lr=0.1)
        for _ in range(15):
            optimizer.zero_grad()
            loss = (weight**2).mean()
            loss.backward()
            optimizer.step()
            losses[i].append(loss.item())

    expected, found = [[] for _ in range(THREADS)], [[] for _ in range(THREADS)]
    for i in range(THREADS):
        train("cpu", i, expected)
    together(*each(lambda i: train(f"tpu:{i % 2}", i, found)))
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected))
