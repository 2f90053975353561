"""What a forked process may do: as with CUDA, everything but use the device of its parent."""

import child

# In a process of its own: a fork of pytest's would carry its threads' locks.
PREAMBLE = """
import os, sys, torch

def forked(f):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            f()
            code = 0
        except BaseException as error:
            print(type(error).__name__, error)
        sys.stdout.flush()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
REFUSED = (
    "RuntimeError Cannot re-initialize TPU in forked subprocess. To use TPU with multiprocessing, "
    "you must use the 'spawn' start method"
)


def test_use_after_fork_is_an_error():
    lines = child.check(
        PREAMBLE
        + """
x = torch.ones(3, device="tpu")
uses = [
    lambda: torch.ones(2, device="tpu"),
    lambda: x + 1,
    lambda: x.cpu(),
    lambda: x.sum().item(),
    lambda: x.add_(1),
    lambda: torch.ones(2).to("tpu"),
    lambda: torch.randn(2, device="tpu:1"),
    lambda: torch.tpu.synchronize(),
    lambda: torch.tpu.current_device(),
    lambda: torch.tpu.get_rng_state(),
    lambda: torch.tpu.Event(),
    lambda: torch.tpu.get_device_properties(0),
    lambda: torch.tpu.init(),
]
for use in uses:
    print(forked(use))
print(x.tolist())
"""
    ).splitlines()
    assert lines[-1] == "[1.0, 1.0, 1.0]"
    assert lines[:-1] == [REFUSED, "1"] * 13


def test_what_a_forked_process_may_do():
    lines = child.check(
        PREAMBLE
        + """
x = torch.ones(300, 300, device="tpu")
y = x @ x

def work():
    assert torch.tpu._is_in_bad_fork()
    assert not torch.tpu.is_initialized()
    assert torch.tpu.is_available() and torch.tpu.device_count() == 4
    torch.manual_seed(1)
    assert torch.rand(3).device.type == "cpu"
    # Tensors of the parent may be looked at and dropped.
    assert x.shape == (300, 300) and x.device.type == "tpu" and x[1:].T.stride() == (1, 300)
    assert torch.tpu.empty_cache() is None
    globals().pop("x"), globals().pop("y")
    print("worked")

print(forked(work))
print(y.sum().item())
"""
    ).splitlines()
    assert lines == ["worked", "0", "27000000.0"]


def test_a_fork_before_first_use_may_use_the_device():
    lines = child.check(
        PREAMBLE
        + """
torch.manual_seed(3)
assert torch.tpu.is_available()
draw = lambda: print(torch.rand(2, device="tpu").tolist())
print(forked(draw))
draw()
"""
    ).splitlines()
    assert lines[1] == "0"
    assert lines[0] == lines[2]


def test_exit_of_a_forked_process():
    """Its interpreter shuts down in order, with tensors of the parent in it."""
    lines = child.check("""
        import os, sys, torch
        x = torch.ones(500, 500, device="tpu")
        y = [x @ x for _ in range(4)]
        sys.stdout.flush()
        if os.fork() == 0:
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    """).splitlines()
    assert lines == ["3"]


def test_data_loader_workers():
    lines = child.check("""
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Squares(Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, i):
                return torch.tensor([float(i * i)])

        class OnDevice(Squares):
            def __getitem__(self, i):
                return super().__getitem__(i).to("tpu")

        weight = torch.full((1,), 2.0, device="tpu")
        for pin in (False, True):
            loader = DataLoader(Squares(), batch_size=4, num_workers=2, pin_memory=pin,
                                multiprocessing_context="fork")
            print([(batch.to("tpu") * weight).sum().item() for batch in loader])
        try:
            list(DataLoader(OnDevice(), num_workers=1, multiprocessing_context="fork"))
        except RuntimeError as error:
            print("Cannot re-initialize TPU in forked subprocess" in str(error))
        print(weight.item())
    """).splitlines()
    assert lines == ["[28.0, 252.0]", "[28.0, 252.0]", "True", "2.0"]


def test_spawned_processes_use_the_device():
    done = child.run(
        """
        import torch
        import torch.multiprocessing as mp

        if __name__ == "__main__":
            torch.ones(1, device="tpu")
            with mp.get_context("spawn").Pool(1) as pool:
                print(pool.apply(torch.tpu.device_count), pool.apply(torch.tpu.current_device))
        """
    )
    assert done.stdout == "4 0\n", done.stderr
