"""Every test runs in a process that sees four devices."""

import os

# Read when the client starts; before anything imports torch.
os.environ["TORCH_TPU_DEVICES"] = "4"
