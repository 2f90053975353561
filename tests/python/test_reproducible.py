"""Bit-equal results: from run to run, in every mode, on every plugin."""

import json
import textwrap

import child
import plugins
import pytest
import torch
import torch.nn.functional as F
from agreement import agree_on
from rule_inputs import values


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def places(*sizes, below=4):
    return values(*sizes, dtype=torch.int64, low=0, high=below, seed=3)


def backward(function):
    def run(x):
        y = function(x.requires_grad_())
        (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y) / 3)
        return gradient

    return run


# Operators of which other devices have a variant whose sums come in any order, or which they refuse
# where results must be reproducible. Every place below is written many times.
X = values(500)
ALGORITHMS = {
    "index_put_": lambda x: torch.zeros(4, device=x.device).index_put_(
        [places(500).to(x.device)], x, accumulate=True
    ),
    "index_add": lambda x: torch.zeros(4, device=x.device).index_add(
        0, places(500).to(x.device), x
    ),
    "index_copy": lambda x: torch.zeros(4, device=x.device).index_copy(
        0, places(500).to(x.device), x
    ),
    "scatter": lambda x: torch.zeros(4, device=x.device).scatter(0, places(500).to(x.device), x),
    "scatter_add": lambda x: torch.zeros(4, device=x.device).scatter_add(
        0, places(500).to(x.device), x
    ),
    "scatter_reduce": lambda x: torch.ones(4, device=x.device).scatter_reduce(
        0, places(500).to(x.device), x, "prod"
    ),
    "put_": lambda x: torch.zeros(4, device=x.device).put_(
        places(500).to(x.device), x, accumulate=True
    ),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "bincount": lambda x: torch.bincount(places(500).to(x.device), x, minlength=5),
    "histc": lambda x: torch.histc(x, 7),
    "kthvalue": lambda x: x.round().kthvalue(100).values,
    "median": lambda x: x.round().median(0).values,
    "sum": lambda x: x.sum(),
    "gather backward": backward(lambda x: x.gather(0, places(900, below=500).to(x.device))),
    "index backward": backward(lambda x: x[places(900, below=5).to(x.device)]),
    "take backward": backward(lambda x: x.take(places(900, below=5).to(x.device))),
    "embedding backward": backward(
        lambda x: F.embedding(places(90).to(x.device), x.reshape(50, 10))
    ),
    "embedding_bag backward": backward(
        lambda x: F.embedding_bag(places(9, 10).to(x.device), x.reshape(50, 10), mode="sum")
    ),
    "repeat_interleave backward": backward(lambda x: x.repeat_interleave(3)),
    "max_pool2d backward": backward(lambda x: F.max_pool2d(x.reshape(1, 5, 10, 10), 3, 1)),
    "avg_pool3d backward": backward(lambda x: F.avg_pool3d(x.reshape(1, 5, 4, 5, 5), 2, 1)),
    "adaptive_avg_pool2d backward": backward(
        lambda x: F.adaptive_avg_pool2d(x.reshape(1, 5, 10, 10), 3)
    ),
    "grid_sample backward": backward(
        lambda x: F.grid_sample(
            x.reshape(1, 5, 10, 10), values(1, 8, 8, 2).to(x.device), align_corners=False
        )
    ),
    "reflection_pad1d backward": backward(lambda x: F.pad(x.reshape(1, 5, 100), (3, 4), "reflect")),
    "replication_pad2d backward": backward(
        lambda x: F.pad(x.reshape(1, 5, 10, 10), (3, 4, 5, 6), "replicate")
    ),
    "nll_loss": lambda x: F.nll_loss(x.reshape(5, 4, 5, 5), places(5, 5, 5).to(x.device)),
    "cdist backward": backward(lambda x: torch.cdist(x.reshape(50, 10), x.reshape(50, 10) + 1)),
}
for mode in ("linear", "bilinear", "bicubic", "trilinear", "nearest"):
    sizes = {"linear": (1, 5, 100), "trilinear": (1, 5, 4, 5, 5)}.get(mode, (1, 5, 10, 10))
    ALGORITHMS[f"{mode} interpolation backward"] = backward(
        lambda x, m=mode, s=sizes: F.interpolate(x.reshape(s), scale_factor=1.7, mode=m)
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_deterministic_algorithms(name, deterministic):
    run = ALGORITHMS[name]
    first = run(X.to("tpu")).cpu()
    for _ in range(3):
        assert torch.equal(run(X.to("tpu")).cpu(), first)
    # An order of its own must not be a wrong one: where CPU is deterministic, it agrees.
    torch.testing.assert_close(first, run(X.clone()), rtol=1e-4, atol=1e-4)


def test_the_last_write_counts(deterministic):
    """Of equal indices; so CPU PyTorch does it, and deterministic algorithms promise it."""
    i, x = places(40), values(40)
    agree_on(lambda i, x: torch.zeros(4, device=x.device).index_copy(0, i, x), i, x)
    agree_on(lambda i, x: torch.zeros(4, device=x.device).scatter(0, i, x), i, x)
    agree_on(lambda i, x: torch.zeros(4, device=x.device).index_put_((i,), x), i, x)


# Gives digests of random numbers, and a weight after some training.
TRAINING = """
    import hashlib, json
    import torch
    import torch.nn.functional as F

    def digest(t):
        data = t.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        return hashlib.sha1(data).hexdigest()

    def train(d="tpu"):
        torch.manual_seed(7)
        a = torch.full((999,), 0.3, device=d)
        numbers = {
            "rand": torch.rand(99, device=d),
            "float64": torch.rand(99, dtype=torch.float64, device=d),
            "randn": torch.randn(99, device=d),
            "bfloat16": torch.randn(99, dtype=torch.bfloat16, device=d),
            "complex": torch.randn(99, dtype=torch.complex64, device=d),
            "randint": torch.randint(0, 1000, (99,), device=d),
            "randperm": torch.randperm(99, device=d),
            "bernoulli": a.bernoulli(),
            "exponential": torch.empty_like(a).exponential_(),
            "geometric": torch.empty_like(a).geometric_(0.3),
            "cauchy": torch.empty_like(a).cauchy_(),
            "multinomial": torch.multinomial(a, 20),
            "dropout": F.dropout(a, 0.3),
            "rrelu": F.rrelu(-a, training=True),
        }
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.GELU(), torch.nn.Linear(16, 4)
        ).to(d)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        target = torch.arange(32, device=d) % 4
        for step in range(3):
            loss = F.cross_entropy(model(torch.randn(32, 8, device=d)), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        weight = model[0].weight
        return [{k: digest(v) for k, v in numbers.items()}, digest(weight), weight.tolist()]
"""


@pytest.fixture(scope="module")
def train():
    names = {}
    exec(textwrap.dedent(TRAINING), names)
    return names["train"]


@pytest.fixture(scope="module")
def reference(train):
    return train()


def test_training_twice_gives_the_same_bits(train, reference):
    assert train() == reference


def test_debug_mode_gives_the_same_bits(train, reference):
    with torch.tpu.set_eager_mode("debug"):
        assert train() == reference


@pytest.mark.parametrize("name", plugins.FILES)
def test_plugins_draw_the_same_numbers(reference, name):
    path = plugins.path(name)
    if path is None:
        assert name == "newest"  # the others are requirements of the build
        pytest.skip("the plugin is not installed; `make test-plugins` installs it")
    if path == torch.tpu.plugin_info()["path"]:
        pytest.skip("this is the plugin that the numbers are from")
    code = TRAINING + "\n    print(json.dumps(train()))"
    numbers, _, weight = json.loads(child.check(code, TORCH_TPU_PLUGIN=path))
    assert numbers == reference[0]
    # Each plugin's compiler orders the sums of a matrix product in its own way.
    torch.testing.assert_close(torch.tensor(weight), torch.tensor(reference[2]))
