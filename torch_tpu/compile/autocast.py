"""Higher-order operators under autocast on tpu."""

import torch
from torch._C import DispatchKey

_KEY = DispatchKey.AutocastPrivateUse1


def pass_through_autocast() -> None:
    """Lets autocast on tpu treat higher-order operators as it does on other devices.

    PyTorch lists the autocast keys that they pass through, and the list lacks that of devices which
    register from outside. What is inside of them is cast; `flex_attention` itself casts its inputs.
    """
    if _KEY in torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS:
        return
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(_KEY)
    for operator in torch._ops._higher_order_ops.values():
        operator.fallthrough(_KEY)
    attention = torch.ops.higher_order.flex_attention

    @attention.py_impl(_KEY)
    def _(query, key, value, *args, **kwargs):
        dtype = torch.get_autocast_dtype("tpu")
        cast = [t if t.dtype is torch.float64 else t.to(dtype) for t in (query, key, value)]
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY)):
            return attention(*cast, *args, **kwargs)
