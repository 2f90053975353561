"""The programs by which ranks with devices in reach exchange tensors, compiled for slices of TPUs
that are not here."""

import pytest

from torch_tpu import _C
from torch_tpu.aot import compile_modules

SLICES = ("v5e:2x2", "v6e:2x2", "v5p:2x2x1", "v4:2x2x1")
MOVED = ("float32", "bfloat16", "int32", "bool", "float8_e4m3fn")
CALLS = [
    *(("all_reduce", op, "float32") for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX")),
    *(("all_reduce", op, "int32") for op in ("SUM", "AVG", "MAX", "BAND", "BOR", "BXOR")),
    *(("all_reduce", "SUM", d) for d in ("bfloat16", "float16", "int64", "bool", "complex64")),
    *(("reduce_scatter", op, d) for op in ("SUM", "AVG", "MAX") for d in ("float32", "bfloat16")),
    *(
        (call, "", d)
        for call in ("broadcast", "all_gather", "scatter", "all_to_all", "send")
        for d in MOVED
    ),
]


def write(directory, call, reduce, dtype, ranks):
    ranks = 2 if call == "send" else ranks
    text = _C.collective_module(call, reduce, dtype, [8, 16], ranks)
    file = directory / f"{call}-{reduce}-{dtype}-{ranks}.mlir"
    file.write_text(text)
    return file


@pytest.mark.parametrize("topology, ranks", [*((s, 4) for s in SLICES), ("2*v5e:2x2", 8)])
def test_collectives_compile_for_slices(tmp_path, topology, ranks):
    some = CALLS if topology == "v5e:2x2" else CALLS[::4]
    files = [write(tmp_path, *call, ranks) for call in some]
    reports = compile_modules(files, topology, jobs=1)
    assert [r.status for r in reports] == ["ok"] * len(files), [
        (r.name, r.message) for r in reports if r.status != "ok"
    ]
    for report in reports:
        assert report.argument_bytes > 0, report


def test_more_ranks_than_devices(tmp_path):
    file = write(tmp_path, "all_reduce", "SUM", "float32", 8)
    (report,) = compile_modules([file], "v5e:2x2", jobs=1)
    assert report.status == "error"
    assert "8 devices at once, and the topology has 4" in report.message
