"""The launch queue: a thread starts programs while operators follow one another closely."""

import child
import pytest
import torch

STEP = 2000


@pytest.fixture
def burst():
    """Operators in such number that the thread serves the queue."""
    x = torch.zeros(8, device="tpu")
    for _ in range(STEP):
        x = x + 1
    return x


def test_order_of_reads_and_writes(burst):
    x, expected, seen = torch.zeros(4, device="tpu"), torch.zeros(4), []
    for i in range(STEP):
        for t in (x, expected):
            t[i % 4] += i
            t.mul_(-1)
        if i % 97 == 0:
            seen.append((x.clone(), expected.clone()))
    assert torch.equal(burst.cpu(), torch.full((8,), float(STEP)))
    for ours, cpu in seen:
        assert torch.equal(ours.cpu(), cpu)


def test_memory_is_that_of_what_lives():
    """Queued launches hold their arguments; what asks for the memory sees none of that."""
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    x = torch.zeros(1 << 16, device="tpu")
    size = x.numel() * x.element_size()
    torch.tpu.reset_peak_memory_stats()
    for _ in range(300):
        x.add_(1)
    assert torch.tpu.memory_allocated() - before == size
    # The first addition may find the zeros still in use, later ones overwrite their argument.
    assert torch.tpu.max_memory_allocated() - before <= 3 * size
    assert x[0].item() == 300


def test_results_that_nobody_keeps(burst):
    x = torch.ones(8, device="tpu")
    before = torch.tpu.memory_allocated()
    for _ in range(STEP):
        x + 1
    assert torch.tpu.memory_allocated() == before


def test_check_inside_a_burst(burst):
    """An index out of range is told at the next synchronisation, and later results are right."""
    x = torch.arange(8.0, device="tpu")
    bad = torch.tensor([9], device="tpu")
    y = x
    for i in range(200):
        if i == 100:
            x[bad]
        y = y + 1
    with pytest.raises(IndexError, match="index"):
        torch.tpu.synchronize()
    assert torch.equal(y.cpu(), torch.arange(8.0) + 200)
    torch.tpu.synchronize()


ENDS = {
    "exit": "",
    "os._exit": "import os; os._exit(0)",
    "exception": "sys.stderr.close(); raise SystemExit(0)",
    "forked child": """
import os
pid = os.fork()
if pid == 0:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print((x + 1)[0].item())
""",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_process_ends_in_a_burst(end):
    printed = child.check(
        f"""
import sys, torch
x = torch.zeros(8, device="tpu")
for _ in range({STEP}):
    x = x + 1
{end}
"""
    )
    assert printed == (f"{STEP + 1.0}\n" if "fork" in end else "")


def test_same_numbers_with_and_without_the_thread():
    code = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
x, model = torch.randn(16, 8).to("tpu"), model.to("tpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(40):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item())
"""
    without, served = (child.check(code, TORCH_TPU_LAUNCH_THREAD=on) for on in "01")
    assert 0 < float(without) < 1
    assert served == without
