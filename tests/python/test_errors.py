"""Bad input: the error's type and words, and that the device works afterwards.

Where the check is PyTorch's own, the words are the CPU's.
"""

import pathlib

import child
import pytest
import torch
from torch import nn
from torch.nn import functional as F


@pytest.fixture(autouse=True)
def device_works_afterwards():
    yield
    torch.tpu.synchronize()
    x = torch.arange(4.0, device="tpu")
    assert (x @ x + x[1]).item() == 15.0


def on(device):
    def make(*shape, dtype=torch.float32):
        return torch.ones(*shape, dtype=dtype, device=device)

    return make


# Each takes a maker of tensors.
SAME_AS_CPU = {
    # --- shapes
    "add": lambda t: t(2, 3) + t(4),
    "add_": lambda t: t(3).add_(t(2, 3)),
    "mm": lambda t: torch.mm(t(2, 3), t(2, 3)),
    "mm of vectors": lambda t: torch.mm(t(3), t(3)),
    "matmul": lambda t: t(2, 3, 4) @ t(2, 5, 4),
    "bmm": lambda t: torch.bmm(t(2, 3, 4), t(3, 4, 5)),
    "linear": lambda t: F.linear(t(2, 3), t(4, 5)),
    "addmm": lambda t: torch.addmm(t(5), t(2, 3), t(3, 4)),
    "cat": lambda t: torch.cat([t(2, 3), t(2, 4)]),
    "stack": lambda t: torch.stack([t(2), t(3)]),
    "view": lambda t: t(6).view(4),
    "view of strided": lambda t: t(2, 3).T.view(6),
    "reshape": lambda t: t(6).reshape(-1, 4),
    "expand": lambda t: t(3).expand(4),
    "broadcast_to": lambda t: torch.broadcast_to(t(2, 3), (3, 3)),
    "permute": lambda t: t(2, 3).permute(0, 0),
    "where": lambda t: torch.where(t(2, dtype=torch.bool), t(3), t(2)),
    "conv2d channels": lambda t: F.conv2d(t(1, 3, 5, 5), t(4, 2, 3, 3)),
    "conv2d kernel": lambda t: F.conv2d(t(1, 3, 2, 2), t(4, 3, 3, 3)),
    "layer_norm": lambda t: F.layer_norm(t(2, 3), (4,)),
    "batch_norm": lambda t: F.batch_norm(t(2, 3), t(4), t(4)),
    "group_norm": lambda t: F.group_norm(t(2, 6), 4),
    "batch_norm of one": lambda t: F.batch_norm(t(1, 3), t(3), t(3), training=True),
    "cross_entropy": lambda t: F.cross_entropy(t(2, 3), t(3, dtype=torch.long)),
    "embedding weight": lambda t: F.embedding(t(2, dtype=torch.long), t(3)),
    "scatter": lambda t: t(2, 2).scatter(0, t(3, 3, dtype=torch.long), t(3, 3)),
    "gather": lambda t: t(2, 2).gather(0, t(2, dtype=torch.long)),
    "index": lambda t: t(3)[t(2, 2, 1, dtype=torch.bool)],
    "index_select": lambda t: t(2, 2).index_select(0, t(2, 2, dtype=torch.long)),
    "index_put": lambda t: t(3).index_put((t(2, dtype=torch.long),), t(3)),
    "masked_fill": lambda t: t(3).masked_fill(t(2, dtype=torch.bool), 0),
    "out": lambda t: torch.add(t(2, 3), t(3, 3), out=t(2, 3)),
    "copy_": lambda t: t(2).copy_(t(3)),
    "backward": lambda t: t(2, 3).requires_grad_().sum(0).backward(),
    "dot": lambda t: torch.dot(t(2), t(3)),
    "split": lambda t: t(5).split_with_sizes([2, 2]),
    "norm_": lambda t: nn.utils.clip_grad_norm_([1], 1.0),
    # --- dimensions and indices known on the host
    "dimension": lambda t: t(2, 3).sum(2),
    "softmax dimension": lambda t: t(2, 3).softmax(2),
    "repeated dimension": lambda t: t(2, 3).sum((0, 0)),
    "transpose": lambda t: t(2, 3).transpose(0, 2),
    "select": lambda t: t(2, 3)[2],
    "narrow": lambda t: t(3).narrow(0, 2, 2),
    "too many indices": lambda t: t(3)[0, 0],
    "topk": lambda t: t(3).topk(4),
    "max of nothing": lambda t: t(0).max(),
    "as_strided": lambda t: t(3).as_strided((2,), (-1,)),
    "item": lambda t: t(2).item(),
    "bool": lambda t: bool(t(2)),
    # --- dtypes
    "mm dtypes": lambda t: torch.mm(t(2, 2), t(2, 2, dtype=torch.float64)),
    "in place dtype": lambda t: t(2, dtype=torch.long).add_(t(2)),
    "true division": lambda t: t(2, dtype=torch.long).div_(2),
    "out dtype": lambda t: torch.add(t(2), t(2), out=t(2, dtype=torch.long)),
    "mean of integers": lambda t: t(2, dtype=torch.long).mean(),
    "index dtype": lambda t: t(3)[t(2)],
    "embedding dtype": lambda t: F.embedding(t(2), t(3, 2)),
    "gather dtype": lambda t: t(3).gather(0, t(2, dtype=torch.int16)),
    "cross_entropy dtype": lambda t: F.cross_entropy(t(2, 3), t(2, dtype=torch.int32)),
    "shift": lambda t: t(2) << 1,
    "bitwise": lambda t: ~t(2),
    "subtract bool": lambda t: t(2, dtype=torch.bool) - t(2, dtype=torch.bool),
    "masked_fill dtype": lambda t: t(3).masked_fill(t(3), 0),
    "gradient of integers": lambda t: t(2, dtype=torch.long).requires_grad_(),
    "layer_norm dtype": lambda t: F.layer_norm(t(2, 3), (3,), t(3, dtype=torch.float64)),
    # --- values
    "alpha": lambda t: torch.add(t(2, dtype=torch.long), t(2, dtype=torch.long), alpha=0.5),
    "normal std": lambda t: t(2).normal_(0, -1),
    "uniform": lambda t: t(2).uniform_(2, 1),
    "bernoulli": lambda t: t(2).bernoulli_(2.0),
    "dropout": lambda t: F.dropout(t(2), 1.5),
    "group_norm groups": lambda t: F.group_norm(t(2, 3), 2),
    "negative size": lambda t: t(-1),
    "negative resize": lambda t: t(3).resize_(-2),
    "arange": lambda t: torch.arange(3, 0, 1, device=t(1).device),
    "multinomial": lambda t: torch.multinomial(t(3), 4),
    # --- in-place on what must not be written
    "internal overlap": lambda t: t(1).expand(3).add_(1),
    "leaf": lambda t: t(2).requires_grad_().add_(1),
    "version": lambda t: modified_after_use(t),
}


# The CPU names its kernels, or says something about overflow.
OWN_WORDS = {"shift", "negative resize"}


def modified_after_use(t):
    x = t(2).requires_grad_()
    y = x.exp()
    y.add_(1)
    y.sum().backward()


def failure(f, device):
    try:
        f(on(device))
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("name", SAME_AS_CPU)
def test_same_error_as_on_the_cpu(name):
    expected = failure(SAME_AS_CPU[name], "cpu")
    assert expected is not None, "the CPU accepts this"
    actual = failure(SAME_AS_CPU[name], "tpu")
    assert type(actual) is type(expected), actual
    # Tensor types are named in some.
    words = str(actual).replace("tpuFloatType", "torch.FloatTensor")
    assert name in OWN_WORDS or words == str(expected)


# --- devices: see test_devices.py

# --- indices known on the device alone: the error comes at the next synchronisation


def ids(*values, device="tpu"):
    return torch.tensor(values, device=device)


OUT_OF_RANGE = {
    "embedding": lambda d: F.embedding(ids(1, 7, device=d), torch.ones(3, 2, device=d)),
    "index.Tensor": lambda d: torch.ones(3, device=d)[ids(0, 3, device=d)],
    "index.Tensor of two": lambda d: torch.ones(3, 3, device=d)[
        ids(0, device=d), ids(-4, device=d)
    ],
    "index_select": lambda d: torch.ones(3, device=d).index_select(0, ids(3, device=d)),
    "gather": lambda d: torch.ones(3, device=d).gather(0, ids(5, device=d)),
    "scatter": lambda d: torch.ones(3, device=d).scatter(0, ids(5, device=d), 1.0),
    "index_put": lambda d: torch.ones(3, device=d).index_put(
        (ids(5, device=d),), torch.tensor(1.0)
    ),
    "index_add": lambda d: torch.ones(3, device=d).index_add(
        0, ids(5, device=d), torch.ones(1, device=d)
    ),
    "take": lambda d: torch.ones(3, device=d).take(ids(9, device=d)),
    "nll_loss": lambda d: F.cross_entropy(torch.ones(2, 3, device=d), ids(1, 5, device=d)),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
@pytest.mark.parametrize("how", ["synchronize", "cpu", "item"])
def test_out_of_range_index(name, how):
    """The type is the CPU's; the words name the operator."""
    with pytest.raises(Exception) as expected:
        OUT_OF_RANGE[name]("cpu")
    result = OUT_OF_RANGE[name]("tpu")  # asynchronous: raises nothing
    with pytest.raises(expected.type, match=name.split()[0]):
        if how == "synchronize":
            torch.tpu.synchronize()
        elif how == "cpu":
            result.cpu()
        else:
            result.flatten()[0].item()
    # Once.
    torch.tpu.synchronize()


def test_first_of_several_errors_is_raised():
    OUT_OF_RANGE["embedding"]("tpu")
    OUT_OF_RANGE["gather"]("tpu")
    with pytest.raises(IndexError, match="embedding"):
        torch.tpu.synchronize()


def test_checks_do_not_pile_up():
    """A program that never synchronizes looks up many times; an early mistake is still found."""
    weight = torch.ones(3, 2, device="tpu")
    OUT_OF_RANGE["index_select"]("tpu")
    before = torch.tpu.memory_stats()["allocation.all.current"]
    good = ids(1)
    for _ in range(1500):
        F.embedding(good, weight)
    assert torch.tpu.memory_stats()["allocation.all.current"] - before < 1200
    with pytest.raises(IndexError, match="index_select"):
        torch.tpu.synchronize()


def test_errors_belong_to_their_device():
    OUT_OF_RANGE["embedding"]("tpu:1")
    torch.tpu.synchronize("tpu:0")
    with pytest.raises(IndexError, match="embedding"):
        torch.tpu.synchronize("tpu:1")


def test_valid_indices_raise_nothing():
    weight = torch.arange(6.0, device="tpu").reshape(3, 2)
    assert F.embedding(ids(2, 0), weight).tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert weight[ids(-1), ids(-2)].tolist() == [4.0]
    torch.tpu.synchronize()


# --- memory

ELEMENTS = 1 << 40


TOO_MUCH = {
    "fill": lambda: torch.empty(ELEMENTS, device="tpu").fill_(1),
    "ones": lambda: torch.ones(ELEMENTS, device="tpu"),
    "clone": lambda: torch.zeros(1, device="tpu").expand(ELEMENTS).clone(),
    "add": lambda: torch.zeros(1 << 20, 1, device="tpu") + torch.zeros(1, 1 << 20, device="tpu"),
    "normal": lambda: torch.randn(ELEMENTS, device="tpu"),
}


@pytest.mark.parametrize("name", TOO_MUCH)
@pytest.mark.parametrize("keep", [True, False])
def test_out_of_memory(name, keep):
    torch.zeros(1, device="tpu"), torch.ones(1, device="tpu")
    torch.tpu.synchronize()
    before = torch.tpu.memory_stats()["num_ooms"]
    held = torch.tpu.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError, match=r"tpu out of memory: .*in aten::") as info:
        kept = TOO_MUCH[name]()
        if not keep:
            del kept
        torch.tpu.synchronize()
    assert isinstance(info.value, torch.tpu.OutOfMemoryError)
    if name == "add":
        assert "aten::add.Tensor" in str(info.value)
    del info
    assert torch.tpu.memory_stats()["num_ooms"] == before + 1
    torch.tpu.synchronize()  # raised once
    kept = None
    assert torch.tpu.memory_allocated() == held


def test_what_is_computed_from_a_failed_result_names_the_failure():
    x = torch.zeros(1 << 20, 1, device="tpu") - torch.zeros(1, 1 << 20, device="tpu")
    y = x.sum() * 2
    with pytest.raises(torch.OutOfMemoryError, match=r"in aten::sub\.Tensor, which computes"):
        y.item()
    torch.tpu.synchronize()
    # Read again it still has no value.
    with pytest.raises(torch.OutOfMemoryError):
        y.item()


def test_out_of_memory_leaves_the_tensor_as_it_was():
    x = torch.ones(1, device="tpu")
    wide = x.expand(ELEMENTS)
    with pytest.raises(torch.OutOfMemoryError):
        wide.add(1).sum().item()
    assert x.item() == 1


def test_more_than_any_address():
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match="Storage size calculation overflowed"):
            torch.empty(1 << 62, device=device)
    with pytest.raises(torch.OutOfMemoryError, match="tried to allocate"):
        torch.empty(1 << 58, device="tpu")


# --- plugins


def plugin_failure(path, code="torch.ones(1, device='tpu')"):
    """The error that comes instead of a result, and whether the CPU works on."""
    done = child.run(
        f"""
        import torch
        print(torch.tpu.is_available(), torch.tpu.device_count(), torch.accelerator.is_available())
        for _ in range(2):
            try:
                {code}
            except Exception as error:
                print(type(error).__name__, error)
        print(torch.ones(3).sum().item())
        """,
        TORCH_TPU_PLUGIN=str(path),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "False 0 False"
    assert lines[-1] == "3.0"
    assert lines[1:-1] and len(set(lines[1:-1])) * 2 == len(lines[1:-1])
    return lines[1]


def test_plugin_that_does_not_exist():
    message = plugin_failure("/nonexistent/plugin.so")
    assert message.startswith("RuntimeError tpu: PJRT plugin not found: ")
    assert "/nonexistent/plugin.so" in message


def test_file_that_is_no_library(tmp_path):
    path = tmp_path / "plugin.so"
    path.write_text("not a library")
    message = plugin_failure(path)
    assert message.startswith(f"RuntimeError tpu: cannot load the PJRT plugin '{path}'")


def test_library_that_is_no_plugin():
    (library,) = pathlib.Path(torch.__file__).parent.glob("lib/libc10.so")
    message = plugin_failure(library)
    assert message.endswith("is not a PJRT plugin: it does not export GetPjrtApi")


def test_client_that_cannot_start(tmp_path):
    """A plugin that is one in all but its client, as libtpu is where there is no TPU."""
    message = plugin_failure(failing_plugin(tmp_path))
    assert message == "RuntimeError tpu: TPU initialization failed: no chip found"


def test_number_of_devices_that_is_none():
    done = child.run(
        """
        import torch
        print(torch.tpu.device_count())
        torch.ones(1, device="tpu")
        """,
        TORCH_TPU_DEVICES="many",
    )
    assert done.stdout == "0\n"
    assert 'TORCH_TPU_DEVICES must be a number from 1 to 64, got "many"' in done.stderr


def failing_plugin(directory):
    """Builds a plugin over the real one that refuses to start a client."""
    import shutil
    import subprocess
    import sysconfig

    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    headers = pathlib.Path(sysconfig.get_paths()["purelib"]) / "xla_plugins/xla_cpu_pjrt/include"
    if not headers.exists():
        pytest.skip("no PJRT header")
    source = directory / "plugin.cpp"
    source.write_text(
        f"""
        #include <dlfcn.h>
        #include "pjrt_c_api.h"
        struct PJRT_Error {{}};
        static PJRT_Error failure;
        static PJRT_Api real;
        static PJRT_Error* Create(PJRT_Client_Create_Args*) {{ return &failure; }}
        static void Destroy(PJRT_Error_Destroy_Args*) {{}}
        static void Message(PJRT_Error_Message_Args* args) {{
          args->message = "TPU initialization failed: no chip found";
          args->message_size = sizeof "TPU initialization failed: no chip found" - 1;
        }}
        static PJRT_Error* GetCode(PJRT_Error_GetCode_Args* args) {{
          args->code = PJRT_Error_Code_FAILED_PRECONDITION;
          return nullptr;
        }}
        extern "C" const PJRT_Api* GetPjrtApi() {{
          void* library = dlopen("{torch.tpu.plugin_info()["path"]}", RTLD_NOW | RTLD_LOCAL);
          real = *reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"))();
          real.struct_size = sizeof real;
          real.PJRT_Client_Create = &Create;
          real.PJRT_Error_Destroy = &Destroy;
          real.PJRT_Error_Message = &Message;
          real.PJRT_Error_GetCode = &GetCode;
          return &real;
        }}
        """
    )
    library = directory / "plugin.so"
    subprocess.run(
        [compiler, "-std=c++17", "-shared", "-fPIC", "-I", headers, source, "-o", library, "-ldl"],
        check=True,
    )
    return library
