"""Programs kept on disk."""

import json
import os
import subprocess
import sys

import child
import pytest
import torch

PROGRAM = """
import json, torch
x = torch.arange(12.0).reshape(3, 4).to("tpu")
y = (x @ x.t()).softmax(-1).sort(descending=True)[0] + x.cumsum(0)[:, :3]
print(json.dumps({"y": y.tolist(), **torch.tpu.compilations(), **torch.tpu.cache.info()}))
"""


def run(directory, **environment):
    return json.loads(
        child.check(PROGRAM, TORCH_TPU_CACHE="1", TORCH_TPU_CACHE_DIR=str(directory), **environment)
    )


def entries(directory):
    return sorted(directory.glob("*.executable"))


def test_second_process_compiles_nothing(tmp_path):
    directory = tmp_path / "new" / "cache"
    first = run(directory)
    assert first["count"] >= 5 and first["from_disk"] == 0
    assert (first["hits"], first["misses"]) == (0, first["count"])
    assert first["stored"] == first["entries"] == first["count"] == len(entries(directory))
    assert first["bytes"] == sum(path.stat().st_size for path in entries(directory))
    assert (first["directory"], first["unusable"]) == (str(directory), None)
    assert directory.stat().st_mode & 0o777 == 0o700
    second = run(directory)
    assert second["from_disk"] == second["count"] == first["count"]
    assert (second["misses"], second["stored"]) == (0, 0)
    assert second["y"] == first["y"]


@pytest.mark.parametrize(
    "damage",
    {
        "empty": lambda b: b"",
        "torn": lambda b: b[: len(b) // 2],
        "flipped": lambda b: b[:-100] + bytes([b[-100] ^ 1]) + b[-99:],
        "longer": lambda b: b + b"\0",
        "foreign": lambda b: b"something else entirely, of some length, that is no program",
    }.items(),
    ids=lambda item: item[0],
)
def test_damaged_entries_are_replaced(tmp_path, damage):
    first = run(tmp_path)
    good = {path: path.read_bytes() for path in entries(tmp_path)}
    for path, contents in good.items():
        path.write_bytes(damage[1](contents))
    again = run(tmp_path)
    assert again["y"] == first["y"]
    assert (again["from_disk"], again["stored"]) == (0, first["count"])
    assert run(tmp_path)["from_disk"] == first["count"]


def test_entry_under_another_key_is_a_miss(tmp_path):
    """As after a collision of hashes: an entry holds its key."""
    first = run(tmp_path)
    paths = entries(tmp_path)
    contents = [path.read_bytes() for path in paths]
    for path, other in zip(paths, contents[1:] + contents[:1], strict=True):
        path.write_bytes(other)
    again = run(tmp_path)
    assert (again["from_disk"], again["y"]) == (0, first["y"])


def test_compiler_flags_are_part_of_the_key(tmp_path):
    first = run(tmp_path)
    other = run(tmp_path, XLA_FLAGS="--xla_cpu_enable_fast_math=false")
    assert other["from_disk"] == 0
    assert other["entries"] == 2 * first["entries"]


def test_link_is_not_followed(tmp_path):
    first = run(tmp_path)
    for path in entries(tmp_path):
        path.rename(tmp_path / (path.stem + ".moved"))
        path.symlink_to(tmp_path / (path.stem + ".moved"))
    again = run(tmp_path)
    assert (again["from_disk"], again["y"]) == (0, first["y"])


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_directory_writable_by_others_is_refused(tmp_path, mode):
    run(tmp_path)
    tmp_path.chmod(mode)
    seen = run(tmp_path)
    assert seen["unusable"] == f"{tmp_path} is writable by others"
    assert (seen["from_disk"], seen["entries"]) == (0, 0)


def test_directory_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    seen = run(tmp_path / "file")
    assert "not a directory" in seen["unusable"] and seen["count"] >= 5


def test_turned_off(tmp_path):
    seen = json.loads(child.check(PROGRAM, TORCH_TPU_CACHE="0", TORCH_TPU_CACHE_DIR=str(tmp_path)))
    assert seen["unusable"] == "turned off"
    assert list(tmp_path.iterdir()) == []


def test_longest_unused_goes_first(tmp_path):
    first = run(tmp_path)
    limit = first["bytes"]
    kept = entries(tmp_path)
    # What was never used again for a day.
    for path in kept[:2]:
        os.utime(path, (path.stat().st_atime - 86400, path.stat().st_mtime - 86400))
    seen = run(tmp_path, TORCH_TPU_CACHE_SIZE=str(limit), XLA_FLAGS="--xla_cpu_enable_fast_math=0")
    assert seen["limit"] == limit
    assert 0 < seen["bytes"] <= limit
    assert not any(path.exists() for path in kept[:2])


@pytest.mark.parametrize(
    ("size", "limit"), [("100K", 100 << 10), ("1.5G", 3 << 29), ("77", 77), ("many", 4 << 30)]
)
def test_sizes(tmp_path, size, limit):
    code = "import torch; print(torch.tpu.cache.info()['limit'])"
    printed = child.check(code, TORCH_TPU_CACHE_DIR=str(tmp_path), TORCH_TPU_CACHE_SIZE=size)
    assert int(printed) == limit


def test_several_processes_at_once(tmp_path):
    environment = {**os.environ, "TORCH_TPU_CACHE_DIR": str(tmp_path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    results = [json.loads(p.communicate(timeout=200)[0]) for p in processes]
    assert all(p.returncode == 0 for p in processes)
    assert all(r["y"] == results[0]["y"] for r in results)
    assert run(tmp_path)["from_disk"] == results[0]["count"]
    assert [p for p in tmp_path.iterdir() if p.suffix not in (".executable", "")] == []


def test_clear(tmp_path):
    run(tmp_path)
    code = "import torch; torch.tpu.cache.clear(); print(torch.tpu.cache.info()['entries'])"
    assert child.check(code, TORCH_TPU_CACHE_DIR=str(tmp_path)) == "0\n"
    assert entries(tmp_path) == []


def test_this_process_has_one():
    assert torch.tpu.cache.info()["unusable"] is None
