"""FSDP2 through Accelerate: five steps equal a single process's, and a saved state comes back.

usage: accelerated.py DIRECTORY
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from problem import ROWS, adamw, batch, close, net, reference
from ranks import say
from torch.utils.data import DataLoader, TensorDataset

# Accelerate does not know the device: it is told which, and to treat the ranks as it does GPUs.
os.environ["ACCELERATE_TORCH_DEVICE"] = "tpu"

from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import DistributedType


def whole(model):
    """The same with whole parameters, which rank 0 has."""
    state = accelerator.get_state_dict(model)
    result = net().cpu()
    if accelerator.is_main_process:
        result.load_state_dict(state)
    return result


directory = sys.argv[1]
PartialState(backend="tpu_dist").distributed_type = DistributedType.MULTI_GPU
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2,
    auto_wrap_policy="transformer_based_wrap",
    transformer_cls_names_to_wrap=["Linear"],
)
accelerator = Accelerator(fsdp_plugin=plugin)
world = accelerator.num_processes
assert world == dist.get_world_size() == 2 and accelerator.device.type == "tpu"

data = [torch.cat(part).cpu() for part in zip(*map(batch, range(5)), strict=True)]
model = net()
model, optimizer, loader = accelerator.prepare(
    model,
    adamw(model.parameters()),
    DataLoader(TensorDataset(*data), batch_size=ROWS),
)
assert model.second.weight.to_local().shape == (32 // world, 32)
for step, (x, y) in enumerate(loader):
    loss = F.mse_loss(model(x, step), y)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
assert step == 4
mean = accelerator.gather(loss.detach()).mean()
torch.testing.assert_close(mean, accelerator.reduce(loss.detach(), "mean"))

trained = whole(model)
if accelerator.is_main_process:
    close(trained, reference(clip=0.5))
accelerator.save_state(directory)
with torch.no_grad():
    for p in model.parameters():
        p.zero_()
accelerator.load_state(directory)
loaded = whole(model)
if accelerator.is_main_process:
    close(loaded, trained, rtol=0, atol=0)
    say("passed")
accelerator.end_training()
