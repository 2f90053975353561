"""Every test runs in a process that sees four devices and keeps its programs for this run alone."""

import atexit
import os
import shutil
import tempfile

# Read when the client starts; before anything imports torch.
os.environ["TORCH_TPU_DEVICES"] = "4"
if "TORCH_TPU_CACHE_DIR" not in os.environ:
    os.environ["TORCH_TPU_CACHE_DIR"] = tempfile.mkdtemp(prefix="torch_tpu_test_")
    atexit.register(shutil.rmtree, os.environ["TORCH_TPU_CACHE_DIR"], ignore_errors=True)
if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
    # AOTAutograd's cache, which `torch.compile` uses.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(os.environ["TORCH_TPU_CACHE_DIR"], "aot")
# Most tests of compiled code count what is traced and compiled. `test_traces` turns it on.
os.environ.setdefault("TORCH_TPU_TRACE_CACHE", "0")
