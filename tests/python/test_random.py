"""Random numbers: one generator a device, 16 bytes of state, the same numbers everywhere."""

import child
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

DEVICES = [f"tpu:{i}" for i in range(4)]


@pytest.fixture(autouse=True)
def first_device():
    yield
    torch.tpu.set_device(0)


def test_seed_before_and_after_initialisation():
    printed = child.check("""
        import torch
        torch.manual_seed(7)
        before = torch.rand(3, device="tpu"), torch.rand(3, device="tpu:2")
        torch.manual_seed(7)
        after = torch.rand(3, device="tpu"), torch.rand(3, device="tpu:2")
        print([torch.equal(a.cpu(), b.cpu()) for a, b in zip(before, after)])
        print(torch.tpu.initial_seed())
    """)
    assert printed == "[True, True]\n7\n"


def test_last_seed_before_initialisation_counts():
    printed = child.check("""
        import torch
        torch.tpu.manual_seed_all(1)
        torch.tpu.manual_seed(2)
        torch.tpu.set_rng_state(torch.arange(16, dtype=torch.uint8) // 4 * 4, "tpu:3")
        assert not torch.tpu.is_initialized()
        print([g.initial_seed() for g in torch.tpu.default_generators[:3]])
        print(torch.tpu.get_rng_state(3).tolist())
    """)
    assert printed.splitlines() == ["[2, 1, 1]", str([i // 4 * 4 for i in range(16)])]


def test_manual_seed():
    torch.tpu.manual_seed(5)
    x = torch.rand(4, device="tpu")
    assert torch.tpu.initial_seed() == 5
    torch.tpu.manual_seed(5)
    assert torch.equal(torch.rand(4, device="tpu").cpu(), x.cpu())
    assert not torch.equal(torch.rand(4, device="tpu").cpu(), x.cpu())
    torch.tpu.manual_seed(6)
    assert not torch.equal(torch.rand(4, device="tpu").cpu(), x.cpu())


def test_manual_seed_is_of_the_current_device():
    torch.tpu.manual_seed_all(1)
    states = torch.tpu.get_rng_state_all()
    with torch.tpu.device(2):
        torch.tpu.manual_seed(9)
    changed = [
        not torch.equal(a, b) for a, b in zip(states, torch.tpu.get_rng_state_all(), strict=True)
    ]
    assert changed == [False, False, True, False]


def test_torch_manual_seed_seeds_all_devices():
    torch.manual_seed(3)
    assert [g.initial_seed() for g in torch.tpu.default_generators] == [3] * 4
    xs = [torch.randn(5, device=d).cpu() for d in DEVICES]
    torch.manual_seed(3)
    for device, x in zip(DEVICES, xs, strict=True):
        assert torch.equal(torch.randn(5, device=device).cpu(), x)


def test_seed_draws_a_seed():
    torch.tpu.seed()
    first = torch.tpu.initial_seed()
    torch.tpu.seed()
    assert torch.tpu.initial_seed() != first
    torch.tpu.seed_all()
    assert len({g.initial_seed() for g in torch.tpu.default_generators}) == 1


DRAWS = {
    "rand": lambda d, g: torch.rand(7, device=d, generator=g),
    "randn": lambda d, g: torch.randn(3, 5, device=d, generator=g),
    "randint": lambda d, g: torch.randint(0, 100, (9,), device=d, generator=g),
    "randperm": lambda d, g: torch.randperm(6, device=d, generator=g),
    "bernoulli": lambda d, g: torch.full((8,), 0.5, device=d).bernoulli_(generator=g),
    "normal_": lambda d, g: torch.empty(4, dtype=torch.bfloat16, device=d).normal_(generator=g),
    "multinomial": lambda d, g: torch.multinomial(
        torch.ones(6, device=d), 4, replacement=True, generator=g
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_same_seed_same_numbers_on_every_device_and_in_every_mode(name):
    draw = DRAWS[name]
    results = []
    for device in DEVICES:
        results.append(draw(device, torch.Generator(device).manual_seed(11)).cpu())
    with torch.tpu.set_eager_mode("debug"):
        results.append(draw("tpu:1", torch.Generator("tpu:1").manual_seed(11)).cpu())
    assert all(torch.equal(result, results[0]) for result in results)
    other = draw("tpu:0", torch.Generator("tpu").manual_seed(12)).cpu()
    assert not torch.equal(other, results[0])


def test_numbers_do_not_depend_on_the_process():
    code = """
        import torch
        torch.manual_seed(4)
        print(torch.randn(3, device="tpu:1").tolist(), torch.randperm(5, device="tpu:1").tolist())
    """
    torch.manual_seed(4)
    here = f"{torch.randn(3, device='tpu:1').tolist()} {torch.randperm(5, device='tpu:1').tolist()}"
    assert child.check(code).strip() == here


# --- generators


def test_generator_does_not_touch_the_default_one():
    before = torch.tpu.get_rng_state()
    generator = torch.Generator("tpu")
    torch.rand(3, device="tpu", generator=generator)
    assert torch.equal(torch.tpu.get_rng_state(), before)
    assert generator.get_offset() > 0


def test_generator():
    generator = torch.Generator("tpu:2")
    assert generator.device == torch.device("tpu:2")
    assert torch.Generator("tpu").device == torch.device("tpu:0")
    with torch.tpu.device(3):
        assert torch.Generator("tpu").device == torch.device("tpu:3")
    assert generator.manual_seed(5) is generator
    assert generator.initial_seed() == 5
    first = torch.rand(3, device="tpu:2", generator=generator).cpu()
    copy = generator.clone_state()
    second = torch.rand(3, device="tpu:2", generator=generator).cpu()
    assert not torch.equal(first, second)
    assert torch.equal(torch.rand(3, device="tpu:2", generator=copy).cpu(), second)
    generator.set_offset(0)
    assert torch.equal(torch.rand(3, device="tpu:2", generator=generator).cpu(), first)
    assert generator.seed() == generator.initial_seed()
    with pytest.raises(RuntimeError, match="multiple of 4"):
        generator.set_offset(3)


def test_generator_of_the_wrong_kind():
    with pytest.raises(
        RuntimeError, match="Expected a 'tpu' device type for generator but found 'cpu'"
    ):
        torch.rand(3, device="tpu", generator=torch.Generator())
    with pytest.raises(RuntimeError):
        torch.rand(3, generator=torch.Generator("tpu"))


# --- state


def test_state_is_seed_and_offset():
    torch.tpu.manual_seed(0x0102)
    state = torch.tpu.get_rng_state()
    assert (state.dtype, state.device.type, state.shape) == (torch.uint8, "cpu", (16,))
    assert state.tolist() == [2, 1] + [0] * 14
    torch.rand(1000, device="tpu")
    moved = torch.tpu.get_rng_state()
    assert moved[:8].tolist() == state[:8].tolist()
    assert moved[8:].tolist() != state[8:].tolist()


def test_state_may_be_set():
    state = torch.tpu.get_rng_state()
    x = torch.rand(3, device="tpu").cpu()
    torch.tpu.set_rng_state(state)
    assert torch.equal(torch.rand(3, device="tpu").cpu(), x)
    torch.tpu.set_rng_state(state, "tpu:1")
    assert torch.equal(torch.rand(3, device="tpu:1").cpu(), x)
    states = torch.tpu.get_rng_state_all()
    assert len(states) == 4
    xs = [torch.rand(3, device=d).cpu() for d in DEVICES]
    torch.tpu.set_rng_state_all(states)
    for device, x in zip(DEVICES, xs, strict=True):
        assert torch.equal(torch.rand(3, device=device).cpu(), x)


def test_wrong_states():
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        torch.tpu.set_rng_state(torch.zeros(15, dtype=torch.uint8))
    with pytest.raises((RuntimeError, TypeError), match="ByteTensor"):
        torch.tpu.set_rng_state(torch.zeros(16))
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.tpu.get_rng_state(4)


def test_fork_rng():
    torch.manual_seed(1)
    states = torch.tpu.get_rng_state_all()
    with torch.random.fork_rng(devices=[0, 2], device_type="tpu"):
        torch.manual_seed(2)
        inside = torch.rand(3, device="tpu:0").cpu()
    after = torch.tpu.get_rng_state_all()
    assert torch.equal(after[0], states[0])
    assert torch.equal(after[2], states[2])
    assert not torch.equal(after[1], states[1])
    assert not torch.equal(torch.rand(3, device="tpu:0").cpu(), inside)
    # All devices, unless told otherwise.
    before = torch.tpu.get_rng_state_all()
    with torch.random.fork_rng(device_type="tpu", devices=range(4)):
        torch.rand(3, device="tpu:1")
    for a, b in zip(before, torch.tpu.get_rng_state_all(), strict=True):
        assert torch.equal(a, b)


# --- numbers


def test_distributions():
    torch.manual_seed(0)
    x = torch.rand(100_000, device="tpu")
    assert x.min().item() >= 0
    assert x.max().item() < 1
    assert abs(x.mean().item() - 0.5) < 5e-3
    y = torch.randn(100_000, device="tpu")
    assert abs(y.mean().item()) < 1e-2
    assert abs(y.std().item() - 1) < 1e-2
    z = torch.randint(3, 7, (10_000,), device="tpu")
    assert z.unique().tolist() == [3, 4, 5, 6]
    p = torch.randperm(1000, device="tpu")
    assert p.sort().values.tolist() == list(range(1000))


def test_draws_do_not_repeat():
    """Consecutive draws, of whatever size, share no numbers."""
    torch.manual_seed(0)
    seen = torch.cat(
        [torch.rand(n, dtype=torch.float64, device="tpu").cpu() for n in (1, 3, 8, 64)]
    )
    assert seen.unique().numel() == seen.numel()


def test_dropout():
    torch.manual_seed(0)
    x = torch.ones(10_000, device="tpu", requires_grad=True)
    y = nn.functional.dropout(x, 0.25)
    kept = y != 0
    assert abs(kept.float().mean().item() - 0.75) < 0.02
    assert torch.allclose(y[kept].cpu(), torch.tensor(1 / 0.75))
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())


# --- activation checkpointing


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("device", ["tpu:0", "tpu:1"])
def test_checkpointing_restores_the_generator(use_reentrant, device):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 8), nn.Dropout(0.5)
    ).to(device)
    x = torch.randn(4, 8, device=device, requires_grad=True)
    parameters = [x, *model.parameters()]

    def gradients(forward):
        torch.manual_seed(123)
        loss = forward(x).square().sum()
        # What is drawn between forward and backward must not matter, nor be disturbed.
        drawn = torch.rand(3, device=device).cpu()
        for parameter in parameters:
            parameter.grad = None
        loss.backward()
        grads = [parameter.grad for parameter in parameters]
        after = torch.rand(3, device=device).cpu()
        return loss.item(), [g.cpu() for g in grads], drawn, after

    plain = gradients(model)
    saved = gradients(lambda x: checkpoint(model, x, use_reentrant=use_reentrant))
    assert saved[0] == plain[0]
    for a, b in zip(saved[1], plain[1], strict=True):
        assert torch.equal(a, b)
    assert torch.equal(saved[2], plain[2])
    assert torch.equal(saved[3], plain[3])
