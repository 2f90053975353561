"""Rows of a tensor: loops over them need a program or a few, not one for each row."""

import pytest
import torch


def compiled() -> int:
    return torch.tpu.compilations()["count"]


@pytest.mark.parametrize("shape", [(60, 4, 5), (60,), (60, 3)])
def test_reading_rows(shape):
    x = torch.randn(shape)
    y = x.to("tpu")
    before = compiled()
    rows = [y[i] * 2 + 1 for i in range(60)]
    assert compiled() - before < 20
    for i, row in enumerate(rows):
        assert torch.equal(row.cpu(), x[i] * 2 + 1)
        assert row.stride() == x[i].stride()


def test_reading_windows_that_overlap():
    x = torch.randn(70)
    y = x.to("tpu")
    before = compiled()
    sums = [y[i : i + 7].sum() for i in range(60)]
    assert compiled() - before < 20
    for i, total in enumerate(sums):
        torch.testing.assert_close(total.cpu(), x[i : i + 7].sum())


# Rows without their ends: runs that divide the tensor, that do not, and another order of memory.
GAPPED = {
    "inputs": ((60, 4, 9), lambda x: x[:, :-1]),
    "targets": ((60, 4, 9), lambda x: x[:, 1:]),
    "inner": ((60, 4, 9), lambda x: x[1:, 1:-1]),
    "transposed": ((60, 4, 9), lambda x: x[:, :-1].t()),
    "deep": ((60, 2, 4, 9), lambda x: x[:, 1:, 2:]),
    "one of one": ((60, 1, 4, 9), lambda x: x[:, :, :-1]),
}


@pytest.mark.parametrize("case", GAPPED)
def test_reading_rows_without_their_ends(case):
    shape, part = GAPPED[case]
    x = torch.randn(shape)
    y = x.to("tpu")
    before = compiled()
    found = [part(y[i]) * 2 + 1 for i in range(60)]
    assert compiled() - before < 20
    for i, row in enumerate(found):
        want = part(x[i]) * 2 + 1
        assert torch.equal(row.cpu(), want)
        assert row.stride() == want.stride()


def test_reading_windows_with_gaps_that_overlap():
    x = torch.randn(300)
    y = x.to("tpu")
    before = compiled()
    for i in range(60):
        found = y.as_strided((4, 8), (9, 1), i)
        torch.testing.assert_close(found.sum(1).cpu(), x.as_strided((4, 8), (9, 1), i).sum(1))
    assert compiled() - before < 20


@pytest.mark.parametrize("case", GAPPED)
def test_graphs_read_rows_without_their_ends(case):
    shape, part = GAPPED[case]
    torch._dynamo.reset()
    fast = torch.compile(lambda t: t.exp() + 1, backend="tpu")
    x = torch.randn(shape)
    y = x.to("tpu")
    before = None
    for i in range(12):
        found, want = fast(part(y[i])), part(x[i]).exp() + 1
        torch.testing.assert_close(found.cpu(), want)
        assert found.stride() == want.stride()
        before = compiled() if i == 1 else before
    assert compiled() == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_writing_rows(dtype):
    x = torch.zeros(60, 4, dtype=dtype)
    y = x.to("tpu")
    values = torch.arange(60 * 4).reshape(60, 4).float()
    on_tpu = values.to("tpu")
    before = compiled()
    for i in range(60):
        y[i] = on_tpu[59 - i]  # converts as it goes
        x[i] = values[59 - i]
    assert compiled() - before < 20
    assert torch.equal(y.cpu(), x)


def test_writing_windows_that_overlap():
    x = torch.zeros(64)
    y = x.to("tpu")
    ones = torch.ones(5, device="tpu")
    before = compiled()
    for i in range(50):
        y[i : i + 5].copy_(ones * i)
        x[i : i + 5].copy_(torch.ones(5) * i)
    assert compiled() - before < 8
    assert torch.equal(y.cpu(), x)


def test_a_row_written_through_is_seen_by_views():
    x = torch.zeros(20, 3, device="tpu")
    views = [x[i] for i in range(20)]
    for i in range(20):
        x[i].copy_(torch.full((3,), float(i), device="tpu"))
    assert [v.cpu().tolist() for v in views] == [[float(i)] * 3 for i in range(20)]


def test_batches_of_a_data_set_share_a_compiled_program():
    data = torch.randint(10, (12, 4, 9))
    table = torch.randn(10, 3)

    def lookup(ids, table):
        return torch.nn.functional.embedding(ids[:, :-1], table).sum(-1)

    torch._dynamo.reset()
    fast = torch.compile(lookup, backend="tpu")
    on_tpu, weights = data.to("tpu"), table.to("tpu").requires_grad_()
    before = None
    for i in range(12):
        found = fast(on_tpu[i], weights)
        torch.testing.assert_close(found.cpu(), lookup(data[i], table))
        if i == 1:
            before = compiled()
    assert compiled() == before


def test_a_slice_that_a_graph_writes_to_is_not_copied():
    torch._dynamo.reset()

    @torch.compile(backend="tpu")
    def write(row, value):
        row.mul_(2).add_(value)

    x = torch.arange(12.0).reshape(4, 3)
    y = x.to("tpu")
    for i in range(4):
        write(y[i], torch.tensor(1.0, device="tpu"))
    assert torch.equal(y.cpu(), x * 2 + 1)


def test_a_slice_that_a_graph_returns_is_a_view_of_it():
    torch._dynamo.reset()
    x = torch.arange(12.0, device="tpu").reshape(4, 3)
    for i in range(3):
        part = torch.compile(lambda t: t.view(3, 1), backend="tpu")(x[i])
        part.fill_(-1)
    assert x.cpu().tolist() == [[-1.0] * 3] * 3 + [[9.0, 10.0, 11.0]]
