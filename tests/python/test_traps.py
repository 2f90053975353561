"""What went wrong on other devices of this kind, and what frameworks ask of one unsaid."""

import copy
import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

# --- trap 1: module.to() keeps its parameters


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.embedding(ids))


@pytest.mark.parametrize("there_and_back", [["tpu"], ["tpu:1", "tpu:2"], ["tpu", "cpu", "tpu"]])
def test_moved_modules_keep_their_parameters(there_and_back):
    model = Tied()
    before = list(model.parameters())
    assert len(before) == 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for device in there_and_back:
        model.to(device)
    after = list(model.parameters())
    assert after[0] is before[0]
    assert model.head.weight is model.embedding.weight
    assert model.head.weight.data_ptr() == model.embedding.weight.data_ptr()
    # An optimizer made before the move trains what moved.
    weight = model.head.weight.detach().cpu().clone()
    model(torch.tensor([1, 2], device=there_and_back[-1])).sum().backward()
    optimizer.step()
    assert not torch.equal(model.embedding.weight.cpu(), weight)


def test_shallow_copy_type():
    tpu, cpu = torch.ones(2, device="tpu"), torch.ones(2)
    for a, b in ((tpu, tpu), (tpu, cpu), (cpu, tpu), (cpu, cpu)):
        assert torch._has_compatible_shallow_copy_type(a, b) is True
    sparse = torch.ones(2).to_sparse()
    assert torch._has_compatible_shallow_copy_type(tpu, sparse) is False
    assert torch._has_compatible_shallow_copy_type(sparse, cpu) is False


def test_parameter_data_may_be_replaced():
    parameter = nn.Parameter(torch.ones(2))
    parameter.data = torch.full((3,), 2.0, device="tpu")
    assert parameter.is_tpu
    assert parameter.requires_grad
    (parameter * 3).sum().backward()
    assert parameter.grad.tolist() == [3, 3, 3]
    parameter.grad = None
    parameter.data = torch.ones(2)
    assert parameter.is_cpu


# --- trap 2: activation checkpointing restores the generator; see also test_random.py


def test_checkpoint_with_dropout():
    def gradient(wrap):
        torch.manual_seed(0)
        x = torch.ones(64, device="tpu", requires_grad=True)
        wrap(lambda t: F.dropout(t, 0.5), x).sum().backward()
        return x.grad.cpu()

    plain = gradient(lambda f, x: f(x))
    assert set(plain.tolist()) == {0.0, 2.0}
    assert torch.equal(gradient(lambda f, x: checkpoint(f, x, use_reentrant=False)), plain)


# --- trap 3


def test_reset_peak_memory_stats():
    for device in (None, 0, "tpu:3", torch.device("tpu:1")):
        torch.tpu.reset_peak_memory_stats(device)
        index = torch.tpu._utils._get_device_index(device, optional=True)
        torch.accelerator.reset_peak_memory_stats(index)
        assert torch.tpu.max_memory_allocated(device) == torch.tpu.memory_allocated(device)


# --- trap 4: see also test_autocast.py


def test_autocast_is_bfloat16():
    with torch.autocast("tpu"):
        assert (torch.ones(2, 2, device="tpu") @ torch.ones(2, 2, device="tpu")).dtype is (
            torch.bfloat16
        )


# --- trap 5: see also test_devices.py


def test_second_device_is_not_the_first():
    x = torch.ones(3, device="tpu:1")
    assert x.device.index == 1
    before = torch.tpu.memory_allocated(0)
    y = torch.zeros(1000, device="tpu:1")
    assert torch.tpu.memory_allocated(0) == before
    with pytest.raises(RuntimeError, match="tpu:0 and tpu:1"):
        torch.ones(3, device="tpu:0") + x
    del y


# --- trap 6


@pytest.mark.parametrize("contiguous", [True, False])
def test_group_norm_of_channels_last(contiguous):
    x = torch.randn(2, 6, 4, 5)
    weight, bias = torch.randn(6), torch.randn(6)
    if not contiguous:
        x = x.to(memory_format=torch.channels_last)

    def results(device):
        t = x.to(device).detach().requires_grad_()
        assert t.is_contiguous(memory_format=torch.channels_last) is not contiguous
        y = F.group_norm(t, 3, weight.to(device), bias.to(device))
        (y * torch.arange(5.0, device=device)).sum().backward()
        return y, t.grad

    for cpu, tpu in zip(results("cpu"), results("tpu"), strict=True):
        torch.testing.assert_close(tpu.cpu(), cpu)
        assert tpu.stride() == cpu.stride()


# --- trap 7: AdamW in all its forms, with the step on the host or the device


ADAMW = {
    "foreach": {"foreach": True},
    "single tensor": {"foreach": False},
    "fused": {"fused": True},
    "amsgrad": {"foreach": True, "amsgrad": True},
    "fused amsgrad": {"fused": True, "amsgrad": True},
    "capturable": {"foreach": True, "capturable": True},
    "single capturable": {"foreach": False, "capturable": True},
    "maximize": {"maximize": True},
    "tensor lr": {"lr": torch.tensor(0.01)},
    "default": {},
}


@pytest.mark.parametrize("name", ADAMW)
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.Adam])
def test_adam(optimizer, name):
    torch.manual_seed(0)
    start = [torch.randn(4, 3), torch.randn(5)]
    gradients = [[torch.randn_like(p) for p in start] for _ in range(3)]

    def train(device, **options):
        parameters = [nn.Parameter(p.to(device)) for p in start]
        chosen = optimizer(parameters, **{"lr": 0.01, **options})
        for step in gradients:
            for parameter, gradient in zip(parameters, step, strict=True):
                parameter.grad = gradient.to(device)
            chosen.step()
        steps = {float(state["step"]) for state in chosen.state.values()}
        assert steps == {3.0}
        return [p.detach().cpu() for p in parameters], chosen

    torch.tpu.clear_fallbacks()
    tpu, chosen = train("tpu", **ADAMW[name])
    assert torch.tpu.fallbacks() == []
    (step,) = {state["step"].device.type for state in chosen.state.values()}
    on_device = ADAMW[name].get("fused") or ADAMW[name].get("capturable")
    assert step == ("tpu" if on_device else "cpu")
    reference = {k: v for k, v in ADAMW[name].items() if k in ("amsgrad", "maximize")}
    for a, b in zip(tpu, train("cpu", **reference)[0], strict=True):
        torch.testing.assert_close(a, b)


def test_changing_learning_rate_compiles_nothing():
    model = nn.Linear(3, 3, device="tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)

    def step():
        optimizer.zero_grad()
        model(torch.ones(2, 3, device="tpu")).sum().backward()
        optimizer.step()
        schedule.step()

    step()
    step()
    before = torch.tpu.compilations()["count"]
    for _ in range(5):
        step()
    assert torch.tpu.compilations()["count"] == before


# --- trap 8: a model that never trains


def test_a_loop_written_for_any_device_trains():
    torch.manual_seed(0)
    device = torch.accelerator.current_accelerator()
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.02
    )  # before the move, as accelerate does
    model = model.to(device)
    x = torch.randn(32, 2)
    y = x.prod(1, keepdim=True)
    losses = []
    for batch, target in DataLoader(TensorDataset(x.repeat(12, 1), y.repeat(12, 1)), batch_size=32):
        batch, target = batch.to(device, non_blocking=True), target.to(device, non_blocking=True)
        with torch.autocast(device.type):
            loss = F.mse_loss(model(batch), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert len(set(losses)) == len(losses)


# --- hooks


def test_accelerator():
    """What transformers' is_torch_tpu_available looks at."""
    assert torch.accelerator.current_accelerator().type == "tpu"
    assert torch.accelerator.is_available()
    assert torch._C._get_accelerator().type == "tpu"
    assert torch.utils.backend_registration._get_custom_mod_func("device_count")() == 4
    assert torch._C._get_privateuse1_backend_name() == "tpu"


def test_package_has_its_distributions_name():
    """What diffusers' is_torch_tpu_available looks at."""
    from importlib import metadata, util

    assert util.find_spec("torch_tpu") is not None
    assert metadata.version("torch_tpu")


def test_torch_backends():
    assert hasattr(torch.backends, "tpu")


def test_warm_up_allocation_is_cheap():
    """transformers allocates half of a model's bytes before loading it."""
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    start = time.perf_counter()
    for _ in range(10):
        block = torch.empty(100 << 30, dtype=torch.float16, device="tpu")
        assert block.nbytes == 200 << 30
    assert time.perf_counter() - start < 0.5
    assert torch.tpu.memory_allocated() == before


def test_pinned_memory():
    x = torch.arange(6.0).reshape(2, 3)
    assert not x.is_pinned()
    pinned = x.pin_memory()
    assert pinned.is_pinned()
    assert torch.equal(pinned, x)
    assert pinned[1:].is_pinned()
    assert pinned.pin_memory() is pinned
    assert torch.ones(2, pin_memory=True).is_pinned()
    assert torch.empty(0).pin_memory().shape == (0,)
    assert torch.empty_like(x, pin_memory=True).is_pinned()
    assert nn.utils.rnn.pack_sequence([x]).pin_memory().is_pinned()
    assert x.untyped_storage().pin_memory().is_pinned()
    moved = pinned.to("tpu", non_blocking=True)
    assert moved.tolist() == x.tolist()
    pinned.copy_(moved + 1, non_blocking=True)
    torch.tpu.synchronize()
    assert torch.equal(pinned, x + 1)
    assert not moved.is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        moved.pin_memory()


def test_freed_pinned_memory_is_forgotten():
    for _ in range(3):
        x = torch.ones(1 << 16, pin_memory=True)
        address = x.data_ptr()
        assert x.is_pinned()
        del x
        y = torch.ones(1 << 16)
        assert y.data_ptr() != address or not y.is_pinned()


def test_data_loader_with_pinned_memory():
    data = TensorDataset(torch.arange(8.0))
    loader = DataLoader(data, batch_size=4, pin_memory=True)
    batches = [batch for (batch,) in loader]
    assert [b.tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert all(b.is_pinned() for b in batches)


def test_threads_may_load_weights():
    """transformers copies from four threads, with a dtype."""
    from concurrent.futures import ThreadPoolExecutor

    sources = [torch.full((64, 64), float(i)) for i in range(32)]
    with ThreadPoolExecutor(4) as pool:
        moved = list(pool.map(lambda t: t.to("tpu", torch.bfloat16), sources))
    assert [m.dtype for m in moved] == [torch.bfloat16] * 32
    assert [m.float().mean().item() for m in moved] == list(range(32))


def test_source_of_a_copy_may_be_changed_or_freed():
    for non_blocking in (False, True):
        copies = []
        for i in range(20):
            x = torch.full((1000,), float(i))
            copies.append(x.to("tpu", non_blocking=non_blocking))
            if not non_blocking:
                x.fill_(-1)
            del x
        assert all(
            torch.equal(c.cpu(), torch.full((1000,), float(i))) for i, c in enumerate(copies)
        )


def test_grouped_mm():
    """Mixtures of experts, forward and backward, with transposed weights."""
    x, w = torch.randn(12, 8), torch.randn(2, 4, 8)
    offsets = torch.tensor([4, 12], dtype=torch.int32)

    def results(device):
        a, b = (t.to(device).detach().requires_grad_() for t in (x, w))
        y = F.grouped_mm(a, b.transpose(1, 2), offs=offsets.to(device))
        y.square().sum().backward()
        return y, a.grad, b.grad

    torch.tpu.clear_fallbacks()
    tpu = results("tpu")
    assert torch.tpu.fallbacks() == []
    for a, b in zip(tpu, results("cpu"), strict=True):
        torch.testing.assert_close(a.cpu(), b)


def test_integer_histogram_cumsum_and_sort():
    ids = torch.tensor([3, 1, 3, 0], dtype=torch.int32, device="tpu")
    assert torch.histc(ids, bins=4, min=0, max=3).tolist() == [1, 1, 0, 2]
    assert ids.cumsum(0, dtype=torch.int32).dtype is torch.int32
    assert ids.sort(stable=True).indices.tolist() == [3, 1, 0, 2]


def test_attention_with_grouped_heads():
    q, k = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    for options in ({}, {"is_causal": True}, {"attn_mask": mask}):
        here = {name: v.to("tpu") if torch.is_tensor(v) else v for name, v in options.items()}
        y = F.scaled_dot_product_attention(q.tpu(), k.tpu(), k.tpu(), enable_gqa=True, **here)
        expected = F.scaled_dot_product_attention(q, k, k, enable_gqa=True, **options)
        torch.testing.assert_close(y.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_fully_masked_row_is_safe():
    scores = torch.full((2, 3), -float("inf"), device="tpu")
    assert torch._safe_softmax(scores, -1).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_float64_rotary_embedding():
    """Flux computes its rotary embedding in float64."""
    position = torch.arange(4, dtype=torch.float64, device="tpu")
    frequencies = 1.0 / (10000 ** (torch.arange(0, 8, 2, dtype=torch.float64, device="tpu") / 8))
    angles = torch.outer(position, frequencies)
    rotation = torch.polar(torch.ones_like(angles), angles)
    assert rotation.dtype is torch.complex128
    assert (rotation.abs() - 1).abs().max().item() < 1e-15


# --- running statistics of batch norm


FORMS = {
    "module": lambda x, m, v, t: F.batch_norm(x, m, v, training=t, momentum=0.3),
    "weighted": lambda x, m, v, t: F.batch_norm(
        x, m, v, torch.arange(3.0, device=x.device), torch.ones(3, device=x.device), t, 0.3
    ),
    "native": lambda x, m, v, t: torch.native_batch_norm(x, None, None, m, v, t, 0.3, 1e-5)[0],
    "legit": lambda x, m, v, t: torch.ops.aten._native_batch_norm_legit(
        x, None, None, m, v, t, 0.3, 1e-5
    )[0],
    "instance": lambda x, m, v, t: F.instance_norm(x, m, v, use_input_stats=t, momentum=0.3),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", FORMS)
def test_running_statistics(name, training):
    x = torch.randn(4, 3, 5)

    def results(device):
        mean, var = torch.full((3,), 0.5, device=device), torch.full((3,), 2.0, device=device)
        aliases = mean[:], var.view(3)
        y = FORMS[name](x.to(device), mean, var, training)
        assert torch.equal(aliases[0].cpu(), mean.cpu())
        return y, mean, var

    for tpu, cpu in zip(results("tpu"), results("cpu"), strict=True):
        torch.testing.assert_close(tpu.cpu(), cpu)
    changed = not torch.equal(results("tpu")[1].cpu(), torch.full((3,), 0.5))
    assert changed is training


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm_module(momentum):
    torch.manual_seed(0)
    cpu = nn.BatchNorm2d(3, momentum=momentum)
    tpu = copy.deepcopy(cpu).to("tpu")
    for _ in range(3):
        x = torch.randn(4, 3, 2, 2)
        torch.testing.assert_close(tpu(x.tpu()).cpu(), cpu(x))
    assert tpu.num_batches_tracked.item() == 3
    cpu.eval(), tpu.eval()
    torch.testing.assert_close(tpu(x.tpu()).cpu(), cpu(x))
    for a, b in zip(tpu.buffers(), cpu.buffers(), strict=True):
        torch.testing.assert_close(a.cpu(), b)


def test_batch_norm_without_running_statistics():
    x = torch.randn(4, 3)
    y = F.batch_norm(x.tpu(), None, None, training=True)
    torch.testing.assert_close(y.cpu(), F.batch_norm(x, None, None, training=True))


# --- storages


def test_storages_may_grow():
    x = torch.arange(4.0, device="tpu")
    view = x.view(2, 2)
    x.resize_(6)
    x[4:] = 9
    assert x.tolist() == [0, 1, 2, 3, 9, 9]
    assert view.tolist() == [[0, 1], [2, 3]]
    view.mul_(2)
    assert x[:4].tolist() == [0, 2, 4, 6]
    y = torch.empty(0, device="tpu").set_(x.untyped_storage(), 2, (3,), (1,))
    assert y.tolist() == [4, 6, 9]
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0
    x.untyped_storage().resize_(24)
    x.fill_(1)
    assert y.tolist() == [1, 1, 1]


def test_negation_and_conjugation_reach_the_host():
    z = torch.tensor([1 + 2j, 3 - 4j], device="tpu")
    assert z.conj().cpu().tolist() == [1 - 2j, 3 + 4j]
    assert z.conj().imag.cpu().tolist() == [-2.0, 4.0]
    assert z.conj().is_conj()
    assert z.conj().imag.is_neg()
    assert z.conj().resolve_conj().cpu().tolist() == [1 - 2j, 3 + 4j]
    host = torch.zeros(2, dtype=torch.complex64)
    host.copy_(z.conj())
    assert host.tolist() == [1 - 2j, 3 + 4j]
