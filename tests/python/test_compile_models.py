"""Transformers' models compiled for tpu: loss and gradients are those of the CPU, in one graph."""

import copy

import pytest
import torch
from torch._dynamo.utils import counters
from torch.optim.adamw import adamw

transformers = pytest.importorskip("transformers")

# Of the largest gradient. The compiler sums in an order of its own.
TOLERANCE = 2e-4
TOKENS = 12
SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "vocab_size": 64, "max_position_embeddings": 32,
}  # fmt: skip
ENCODER = SMALL | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def tokens(*shape, high=64, seed=0):
    return torch.randint(1, high, shape, generator=torch.Generator().manual_seed(seed))


def pixels(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def causal(name, **settings):
    config = getattr(transformers, f"{name}Config")(**settings)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.loss_type = "ForCausalLM"  # unset, it is warned about, which breaks the graph
    ids = tokens(2, TOKENS)
    return model, {"input_ids": ids, "labels": ids}


def llama():
    return causal("Llama", **SMALL, num_key_value_heads=2)


def qwen3():
    return causal("Qwen3", **SMALL, num_key_value_heads=2, head_dim=8)


def gemma():
    return causal("Gemma", **SMALL, num_key_value_heads=1, head_dim=8)


def gpt2():
    return causal(
        "GPT2", n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=32,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip


def mamba2():
    return causal(
        "Mamba2", hidden_size=32, num_hidden_layers=2, vocab_size=64, head_dim=8, num_heads=8,
        state_size=8, n_groups=2, chunk_size=4, expand=2,
    )  # fmt: skip


def mixtral():
    return causal("Mixtral", **SMALL, num_key_value_heads=2, num_local_experts=4)


def bert():
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**ENCODER))
    mask = torch.ones(2, TOKENS, dtype=torch.int64)
    mask[1, 8:] = 0
    return model, {
        "input_ids": tokens(2, TOKENS),
        "attention_mask": mask,
        "labels": torch.tensor([0, 1]),
    }


def vit():
    settings = {k: v for k, v in ENCODER.items() if k not in ("vocab_size",)}
    del settings["max_position_embeddings"]
    config = transformers.ViTConfig(**settings, image_size=16, patch_size=4)
    inputs = {"pixel_values": pixels(2, 3, 16, 16), "labels": torch.tensor([0, 1])}
    return transformers.ViTForImageClassification(config), inputs


def resnet():
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
    )
    inputs = {"pixel_values": pixels(4, 3, 32, 32), "labels": torch.tensor([0, 1, 1, 0])}
    return transformers.ResNetForImageClassification(config), inputs


def t5():
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=64, dropout_rate=0.0,
        decoder_start_token_id=0,
    )  # fmt: skip
    inputs = {"input_ids": tokens(2, TOKENS), "labels": tokens(2, 6, seed=1)}
    return transformers.T5ForConditionalGeneration(config), inputs


def whisper():
    config = transformers.WhisperConfig(
        d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=64,
        num_mel_bins=8, max_source_positions=16, max_target_positions=16, dropout=0.0,
        attention_dropout=0.0, activation_dropout=0.0, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1, suppress_tokens=[], begin_suppress_tokens=[],
    )  # fmt: skip
    inputs = {"input_features": pixels(2, 8, 32), "labels": tokens(2, 6)}
    return transformers.WhisperForConditionalGeneration(config), inputs


def clip():
    text = SMALL | {"eos_token_id": 63, "bos_token_id": 62, "pad_token_id": 0}
    vision = {k: v for k, v in SMALL.items() if k in ("hidden_size", "intermediate_size")}
    vision |= {"num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 16, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    ids = tokens(3, TOKENS, high=60)
    ids[:, -1] = 63
    inputs = {"input_ids": ids, "pixel_values": pixels(3, 3, 16, 16), "return_loss": True}
    return transformers.CLIPModel(config), inputs


MODELS = [
    llama, qwen3, gemma, gpt2, bert, vit, t5, whisper, clip, resnet, mamba2, mixtral,
]  # fmt: skip


def on(device, inputs):
    return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}


def step(model, function, inputs):
    """Loss and gradients of one step."""
    model.zero_grad()
    loss = function(**inputs)
    loss.backward()
    return loss.detach().cpu(), {
        name: p.grad.detach().cpu() for name, p in model.named_parameters() if p.grad is not None
    }


def breaks():
    return sum(counters["graph_break"].values())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_loss_and_gradients(make):
    torch.manual_seed(0)
    model, inputs = make()
    model.train()

    def loss_of(model):
        return lambda **inputs: model(**inputs).loss

    expected = step(model, loss_of(model), inputs)

    # As many breaks as PyTorch's own backends have.
    torch._dynamo.reset()
    counters.clear()
    torch.compile(loss_of(model), backend="eager")(**inputs)
    allowed = breaks()

    torch._dynamo.reset()
    counters.clear()
    torch.tpu.clear_fallbacks()
    model = copy.deepcopy(model).to("tpu")
    compiled = torch.compile(loss_of(model))
    for _ in range(2):
        loss, gradients = step(model, compiled, on("tpu", inputs))
    assert breaks() <= allowed, counters["graph_break"]
    assert torch.tpu.fallbacks() == []
    torch.testing.assert_close(loss, expected[0], rtol=1e-5, atol=1e-5)
    assert gradients.keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        bound = TOLERANCE * max(gradient.abs().max().item(), 1e-3)
        torch.testing.assert_close(
            gradients[name], gradient, rtol=0, atol=bound, msg=lambda m, name=name: f"{name}: {m}"
        )


def follow(cpu, tpu):
    """Five training steps of either device: the same losses, and they fall."""
    losses = [[step().item() for _ in range(5)] for step in (cpu, tpu)]
    assert losses[0][4] < losses[0][0] - 0.5
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-4)


def same_weights(tpu, cpu):
    for actual, expected in zip(tpu.parameters(), cpu.parameters(), strict=True):
        torch.testing.assert_close(actual.detach().cpu(), expected, rtol=1e-3, atol=2e-3)


@pytest.mark.filterwarnings("ignore")
def test_training_with_an_optimizer():
    """Forward, backward and `AdamW.step` in one function, cut where Dynamo cuts it."""
    torch.manual_seed(0)
    model, inputs = gpt2()
    models = {"cpu": model, "tpu": copy.deepcopy(model).to("tpu")}

    def trainer(device):
        model, given = models[device], on(device, inputs)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-3)

        def train():
            optimizer.zero_grad()
            loss = model(**given).loss
            loss.backward()
            optimizer.step()
            return loss.detach()

        return train

    torch._dynamo.reset()
    torch.tpu.clear_fallbacks()
    follow(trainer("cpu"), torch.compile(trainer("tpu")))
    same_weights(models["tpu"], models["cpu"])
    assert torch.tpu.fallbacks() == []


@pytest.mark.filterwarnings("ignore")
def test_a_whole_training_step_is_one_program():
    torch.manual_seed(0)
    model, inputs = gpt2()
    models = {"cpu": model, "tpu": copy.deepcopy(model).to("tpu")}
    decay = {"lr": 1e-2, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-3}

    def trainer(device):
        model, given = models[device], on(device, inputs)
        parameters = list(model.parameters())
        first, second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
        steps = [torch.zeros((), device=device) for _ in parameters]

        def train():
            loss = model(**given).loss
            gradients = list(torch.autograd.grad(loss, parameters))
            with torch.no_grad():
                adamw(
                    parameters, gradients, first, second, [], steps, amsgrad=False,
                    maximize=False, capturable=device == "tpu", foreach=device == "tpu", **decay,
                )  # fmt: skip
            return loss.detach()

        return train

    torch._dynamo.reset()
    counters.clear()
    run = torch.compile(trainer("tpu"), fullgraph=True)
    programs = []

    def counted():
        loss = run()
        programs.append(torch.tpu.compilations()["count"])
        return loss

    with torch._dynamo.config.patch(trace_autograd_ops=True):
        follow(trainer("cpu"), counted)
    assert counters["stats"]["unique_graphs"] == 1
    assert programs[-1] == programs[0]
    same_weights(models["tpu"], models["cpu"])
