"""The model that a command line names, on "meta", and what it is called with."""

import dataclasses
import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch


@dataclasses.dataclass(frozen=True)
class Call:
    """How a model from a configuration is called."""

    batch: int = 1
    seq: int = 2048  # tokens a sequence
    dtype: torch.dtype = torch.bfloat16
    train: bool = False
    cache: int | None = None  # tokens in a static cache: one token is decoded
    checkpointing: bool = False
    tensor_parallel: int = 1  # ranks that a cache's heads are divided among


@dataclasses.dataclass
class Source:
    name: str
    model: torch.nn.Module
    args: Sequence
    kwargs: Mapping[str, Any]


def from_function(name: str) -> Source:
    """Calls "module:function" under the device "meta"; it returns (model, args, kwargs)."""
    module, _, function = name.partition(":")
    make = getattr(importlib.import_module(module), function, None)
    if make is None:
        raise ValueError(f"{name}: {module} has no {function}")
    with torch.device("meta"):
        made = make()
    try:
        model, args, kwargs = made
    except (TypeError, ValueError):
        raise ValueError(f"{name} has to return (model, args, kwargs)") from None
    return Source(function, model, args, kwargs)


def _static_cache(config, call: Call):
    from transformers import StaticCache

    text = config.get_text_config(decoder=True)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    cache = StaticCache(text, max_cache_len=call.cache)
    heads //= call.tensor_parallel
    cache.early_initialization(call.batch, heads, width, call.dtype, torch.device("meta"))
    return cache


def _inputs(model, config, call: Call) -> dict[str, Any]:
    """What the model's main input is, by its configuration."""
    if model.main_input_name == "pixel_values":
        size = config.image_size
        shape = (call.batch, getattr(config, "num_channels", 3), size, size)
        return {"pixel_values": torch.empty(shape, dtype=call.dtype)}
    if model.main_input_name != "input_ids":
        raise ValueError(
            f"{type(model).__name__} is called with {model.main_input_name}: name a "
            "module:function that returns (model, args, kwargs) instead of a configuration"
        )
    tokens = torch.empty((call.batch, 1 if call.cache else call.seq), dtype=torch.int64)
    inputs = {"input_ids": tokens}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.empty_like(tokens)
    if call.cache:
        inputs |= {"past_key_values": _static_cache(config, call), "use_cache": True}
    elif hasattr(config.get_text_config(), "use_cache"):
        inputs["use_cache"] = False
    if call.train:
        inputs["labels"] = torch.empty_like(tokens)
    return inputs


def from_config(path: Path, call: Call) -> Source:
    """A Transformers model by its configuration file and the class among its `architectures`, or a
    causal language model. Needs the package transformers. Raises ValueError for a file that is not
    such a configuration."""
    import transformers

    try:
        values = json.loads(path.read_text())
        config = transformers.AutoConfig.for_model(**values)
    except (json.JSONDecodeError, TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is not a Transformers configuration: {error}") from None
    architecture = (values.get("architectures") or [None])[0]
    build = transformers.AutoModelForCausalLM.from_config
    if architecture is not None:
        if not hasattr(transformers, architecture):
            raise ValueError(f"{path}: transformers has no {architecture}")
        build = getattr(transformers, architecture)._from_config
    with torch.device("meta"):
        model = build(config, dtype=call.dtype)
        inputs = _inputs(model, config, call)
    model.train(call.train)
    if call.checkpointing:
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False, "preserve_rng_state": False}
        )
    what = f"decode at {call.cache}" if call.cache else f"seq {call.seq}"
    kind = "training step" if call.train else "forward" if not call.cache else "step"
    dtype = str(call.dtype).removeprefix("torch.")
    name = f"{path.stem} {what} {kind}, batch {call.batch}, {dtype}"
    return Source(name, model, (), inputs)


def find_model(name: str, call: Call) -> Source:
    """`name` is a configuration file or "module:function"."""
    path = Path(name)
    if path.is_file():
        return from_config(path, call)
    if ":" in name:
        return from_function(name)
    raise ValueError(f"{name}: neither a file nor module:function")
