"""Host memory of collectives that becomes device memory."""

from torchrun import torchrun


def test_large_results():
    out = torchrun("memory.py", 2).stdout
    assert out.count("passed ") == 3, out
