"""torch.tpu and torch.accelerator: what torch.cuda has and a TPU can mean."""

import importlib

import child
import pytest
import torch

# What the README promises, by torch.cuda's names and our own.
FUNCTIONS = [
    "is_available",
    "device_count",
    "current_device",
    "set_device",
    "device",
    "device_of",
    "synchronize",
    "get_device_name",
    "get_device_properties",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "initial_seed",
    "get_rng_state",
    "get_rng_state_all",
    "set_rng_state",
    "set_rng_state_all",
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "reset_peak_memory_stats",
    "reset_accumulated_memory_stats",
    "memory_stats",
    "memory_summary",
    "mem_get_info",
    "empty_cache",
    "Stream",
    "Event",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
    "is_bf16_supported",
    "get_amp_supported_dtype",
    "fallbacks",
    "eager_mode",
    "set_eager_mode",
    "plugin_info",
    "init",
    "is_initialized",
    "_is_in_bad_fork",
    "_lazy_init",
    "_lazy_call",
]


@pytest.fixture(autouse=True)
def first_device():
    yield
    torch.tpu.set_device(0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_has(name):
    assert callable(getattr(torch.tpu, name))
    if not name.startswith("_"):
        assert name in torch.tpu.__all__


def test_all_is_what_is_there():
    assert sorted(torch.tpu.__all__) == torch.tpu.__all__
    for name in torch.tpu.__all__:
        assert getattr(torch.tpu, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = torch.tpu.nonsense


def test_import_and_first_use_print_nothing():
    printed = child.check("""
        import torch
        x = torch.randn(4, 4, device="tpu")
        (x @ x).relu().sum().item()
        repr(x)
        torch.tpu.synchronize()
    """)
    assert printed == ""


def test_import_starts_no_client():
    printed = child.check("""
        import torch
        print(torch.device("tpu").type, torch.tpu.is_initialized())
        print(torch.tpu.is_available(), torch.tpu.device_count(), torch.tpu.is_initialized())
        torch.manual_seed(1)
        torch.tpu.manual_seed_all(1)
        torch.tpu.empty_cache()
        print(torch.tpu.memory_stats(), torch.tpu.is_initialized())
        torch.tpu.init()
        print(torch.tpu.is_initialized())
    """)
    assert printed.split("\n") == ["tpu False", "True 4 False", "{} False", "True", ""]


def test_one_device_unless_asked_for():
    code = "import torch; print(torch.tpu.device_count())"
    assert child.check(code, TORCH_TPU_DEVICES="") == "1\n"


def test_without_autoload():
    printed = child.check(
        """
        import torch
        assert not hasattr(torch, "tpu")
        import torch_tpu
        print(torch.ones(2, device="tpu").sum().item())
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert printed == "2.0\n"


def test_modules():
    assert torch.get_device_module("tpu") is torch.tpu
    assert torch.get_device_module() is torch.tpu
    assert importlib.import_module("torch.tpu") is torch.tpu
    assert importlib.import_module("torch.tpu.memory") is torch.tpu.memory
    assert hasattr(torch.backends, "tpu")
    assert torch.backends.tpu.is_built() is True
    assert torch.backends.tpu.is_available() is True


def test_nothing_of_torch_is_replaced():
    changed = child.check(
        """
        import torch, types

        def functions(module):
            for name, value in vars(module).items():
                if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
                    yield module.__name__ + "." + name, value

        modules = [torch, torch.nn.functional, torch.serialization, torch.storage, torch.random,
                   torch.accelerator, torch.amp.autocast_mode, torch._tensor, torch._tensor_str]
        before = {name: value for module in modules for name, value in functions(module)}
        methods = dict(vars(torch.Tensor)), dict(vars(torch._C.TensorBase))
        import torch_tpu
        after = {name: value for module in modules for name, value in functions(module)}
        print([name for name in before if after[name] is not before[name]])
        now = dict(vars(torch.Tensor)), dict(vars(torch._C.TensorBase))
        print([n for old, new in zip(methods, now) for n in old if new[n] is not old[n]])
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert changed == "[]\n[]\n"


# --- devices


def test_devices():
    assert torch.tpu.is_available() is True
    assert torch.tpu.device_count() == 4
    assert torch.tpu.current_device() == 0
    torch.tpu.set_device("tpu:2")
    assert torch.tpu.current_device() == 2
    torch.tpu.set_device(torch.device("tpu", 1))
    assert torch.tpu.current_device() == 1


def test_properties():
    name = torch.tpu.get_device_name()
    assert name == torch.tpu.get_device_name("tpu:3") != ""
    properties = torch.tpu.get_device_properties(2)
    assert properties.name == name
    assert properties.total_memory == torch.tpu.mem_get_info(2)[1]
    assert "2" in properties.description
    assert properties != torch.tpu.get_device_properties(1)
    for wrong in (4, "tpu:4"):
        with pytest.raises(AssertionError, match="Invalid device id"):
            torch.tpu.get_device_properties(wrong)
    with pytest.raises(ValueError, match="Expected a tpu device, but got: cpu"):
        torch.tpu.get_device_name("cpu")
    with pytest.raises(TypeError, match="got: float"):
        torch.tpu.get_device_name(1.5)


def test_peers():
    assert torch.tpu.can_device_access_peer(0, 1) is False
    with pytest.raises(AssertionError, match="own peer"):
        torch.tpu.can_device_access_peer(1, 1)


def test_plugin_info():
    info = torch.tpu.plugin_info()
    assert info["path"].endswith(".so")
    assert info["source"] in ("environment", "tpu", "cpu")
    assert info["api_version"] >= (0, 81)
    assert info["platform"] in ("cpu", "tpu")
    assert len(info["devices"]) == 4
    assert info["loaded"] is True


# --- memory


@pytest.fixture
def ones():
    """torch.ones, once the number 1 is on every device."""
    for i in range(4):
        torch.ones(1, device=f"tpu:{i}")
    return torch.ones


def test_memory_is_counted(ones):
    before, buffers = torch.tpu.memory_allocated(), torch.tpu.memory_stats()
    x = ones(256, 1024, device="tpu")
    assert torch.tpu.memory_allocated() - before == x.nbytes
    view = x[3:]
    assert torch.tpu.memory_allocated() - before == x.nbytes
    now = torch.tpu.memory_stats()
    assert now["allocation.all.current"] - buffers["allocation.all.current"] == 1
    assert now["allocated_bytes.all.current"] == torch.tpu.memory_allocated()
    assert torch.tpu.memory_reserved() == torch.tpu.memory_allocated()
    del x, view
    assert torch.tpu.memory_allocated() == before


def test_memory_of_each_device(ones):
    before = [torch.tpu.memory_allocated(i) for i in range(4)]
    x = ones(1000, device="tpu:2")
    after = [torch.tpu.memory_allocated(f"tpu:{i}") for i in range(4)]
    assert [a - b for a, b in zip(after, before, strict=True)] == [0, 0, x.nbytes, 0]


def test_peak_memory():
    torch.tpu.reset_peak_memory_stats()
    base = torch.tpu.memory_allocated()
    assert torch.tpu.max_memory_allocated() == base
    x = torch.ones(1 << 20, device="tpu")
    del x
    assert torch.tpu.max_memory_allocated() >= base + (4 << 20)
    assert torch.tpu.max_memory_reserved() == torch.tpu.max_memory_allocated()
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() == torch.tpu.memory_allocated() < base + (4 << 20)


def test_memory_summary():
    x = torch.ones(1 << 20, device="tpu:1")
    text = torch.tpu.memory_summary(1)
    assert "memory of tpu:1" in text
    assert "4.0 MiB" in text
    assert "allocated_bytes.all.peak" in text
    assert "allocated_bytes.all.peak" not in torch.tpu.memory_summary(1, abbreviated=True)
    del x


def test_memory_info():
    free, total = torch.tpu.mem_get_info()
    assert 0 < free <= total
    torch.tpu.empty_cache()
    torch.tpu.ipc_collect()


def test_writing_is_what_allocates():
    before = torch.tpu.memory_allocated()
    x = torch.empty(1 << 40, dtype=torch.float16, device="tpu")
    assert torch.tpu.memory_allocated() == before
    del x
    y = torch.empty(1000, device="tpu")
    y.zero_()
    assert torch.tpu.memory_allocated() - before == y.nbytes


# --- torch.accelerator


def test_accelerator_device():
    assert torch.accelerator.current_accelerator() == torch.device("tpu")
    assert torch.accelerator.current_accelerator(check_available=True).type == "tpu"
    assert torch.accelerator.is_available() is True
    assert torch.accelerator.device_count() == 4
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index("tpu:3")
    assert torch.accelerator.current_device_index() == torch.tpu.current_device() == 3
    with torch.accelerator.device_index(1):
        assert torch.tpu.current_device() == 1
        assert torch.ones(1, device="tpu").device.index == 1
    assert torch.tpu.current_device() == 3
    torch.accelerator.synchronize()
    torch.accelerator.synchronize("tpu:2")


def test_accelerator_capability():
    dtypes = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool} <= dtypes
    assert torch.complex64 in dtypes
    assert torch.qint8 not in dtypes
    for dtype in dtypes:
        assert torch.zeros(3, dtype=dtype, device="tpu").cpu().dtype is dtype


def test_accelerator_streams():
    stream = torch.Stream("tpu:1")
    before = torch.accelerator.current_stream("tpu:1")
    torch.accelerator.set_stream(stream)
    assert torch.accelerator.current_stream("tpu:1") == stream != before
    assert torch.tpu.current_device() == 1
    torch.accelerator.set_stream(before)


def test_accelerator_memory(ones):
    index = 3
    torch.accelerator.reset_peak_memory_stats(index)
    before = torch.accelerator.memory_allocated(index)
    x = ones(1 << 18, device="tpu:3")
    assert torch.accelerator.memory_allocated(index) - before == x.nbytes
    assert torch.accelerator.max_memory_allocated(index) - before >= x.nbytes
    assert torch.accelerator.memory_reserved(index) == torch.accelerator.memory_allocated(index)
    assert torch.accelerator.max_memory_reserved(index) >= before + x.nbytes
    stats = torch.accelerator.memory_stats(index)
    assert stats["allocated_bytes.all.current"] == torch.tpu.memory_allocated(index)
    del x
    torch.accelerator.reset_peak_memory_stats(index)
    assert torch.accelerator.max_memory_allocated(index) == before
    torch.accelerator.reset_accumulated_memory_stats(index)
    stats = torch.accelerator.memory_stats(index)
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == 0
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()
    free, total = torch.accelerator.get_memory_info(index)
    assert 0 < free <= total


# --- precision


def test_dtypes_for_mixed_precision():
    assert torch.tpu.is_bf16_supported() is True
    assert torch.tpu.get_amp_supported_dtype() == [torch.bfloat16, torch.float16]


# --- modes


def test_eager_mode():
    assert torch.tpu.eager_mode() == "strict"
    with torch.tpu.set_eager_mode("debug"):
        assert torch.tpu.eager_mode() == "debug"
    assert torch.tpu.eager_mode() == "strict"
    torch.tpu.set_eager_mode("debug")
    assert torch.tpu.eager_mode() == "debug"
    torch.tpu.set_eager_mode("strict")
    with pytest.raises(ValueError, match=r'must be .* got "fast"'):
        torch.tpu.set_eager_mode("fast")
    assert torch.tpu.eager_mode() == "strict"


def test_compilations():
    x = torch.arange(7.0, device="tpu")
    (x * 3 + x).cpu()
    before = torch.tpu.compilations()
    (x * 5 + x).cpu()
    after = torch.tpu.compilations()
    assert after["count"] == before["count"]
    assert after["misses"] == before["misses"]
    assert after["hits"] == before["hits"] + 2
    torch.arange(11.0, device="tpu").neg().cpu()
    assert torch.tpu.compilations()["count"] > after["count"]
    assert torch.tpu.compilations()["seconds"] > after["seconds"]
