"""What automatic mixed precision asks a device. The casting itself is registered natively."""

import torch


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes autocast may compute in; the default is the first."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: bfloat16 is a TPU's own number format."""
    return True
